//! What `deploy/` installs: a cluster without anything takes it whole, it has the rights that it
//! needs and no others, and its removal leaves nothing. These tests install into one namespace of
//! one name, so they have a control plane of their own and take it in turns.

#[path = "deploy/rights.rs"]
mod rights;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use leasehold_injection::{Resources, Sidecar};
use serde_json::Value;
use tests::kube::{Access, ControlPlane, Program, RealCluster};
use tests::process::{Coordinator, eventually, get};
use tests::toolbox;

/// Kinds that an installation makes objects of, and those that objects are made of for it.
const KINDS: &str = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,roles,\
    rolebindings,priorityclasses,serviceaccounts,secrets,services,deployments,statefulsets,\
    replicasets,pods,poddisruptionbudgets,networkpolicies,leases,configmaps,\
    mutatingwebhookconfigurations";

/// A control plane on which no other test of this kind runs meanwhile.
struct Turn {
    plane: &'static ControlPlane,
    _turn: MutexGuard<'static, ()>,
}

impl Turn {
    /// None where there are no binaries, which is noted.
    fn take() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        static PLANE: OnceLock<Option<ControlPlane>> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let plane = PLANE.get_or_init(ControlPlane::start).as_ref()?;
        Some(Self { plane, _turn: turn })
    }

    fn access(&self) -> &Access {
        self.plane.access()
    }
}

/// An overlay that is installed for as long as this value is there.
struct Installed<'a> {
    access: &'a Access,
    folder: String,
}

impl<'a> Installed<'a> {
    fn new(access: &'a Access, folder: &Path) -> Self {
        let folder = folder.to_str().expect("UTF-8").to_owned();
        // Made first, so that half an installation is removed, too.
        let installed = Self { access, folder };
        strictly_apply(access, &["-k", &installed.folder]);
        installed
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        /// How often the removal is asked for, each time for up to half a minute.
        const ATTEMPTS_MAX: u32 = 20;
        let delete = ["delete", "-k", &self.folder, "--ignore-not-found", "--timeout=30s"];
        let gone = (0..ATTEMPTS_MAX).any(|attempt| match self.access.try_kubectl(&delete) {
            Ok(_) => true,
            Err(why) => {
                eprintln!("not removed yet: {why}");
                nudge(self.access, attempt);
                false
            }
        });
        assert!(gone || std::thread::panicking(), "it is not removed");
    }
}

/// Has the API server look again at the kinds that it is removing, and shows what it says of them:
/// when it starved, its finalizer waits for minutes before it tries once more, or until the next
/// change of the definition.
fn nudge(access: &Access, attempt: u32) {
    let conditions = "--output=jsonpath={range .items[?(@.metadata.deletionTimestamp)]}\
        {.metadata.name}{\"\\n\"}{range .status.conditions[*]}    {.type}={.status} {.message}\
        {\"\\n\"}{end}{end}";
    let text = access.try_kubectl(&["get", "customresourcedefinitions", conditions]);
    let text = text.unwrap_or_else(|why| why);
    eprintln!("{text}");
    let again = format!("leasehold.dev/nudge={attempt}");
    for name in text.lines().filter(|line| line.ends_with(".leasehold.dev")) {
        let annotate = ["annotate", "--overwrite", "customresourcedefinitions", name, &again];
        if let Err(why) = access.try_kubectl(&annotate) {
            eprintln!("{name}: {why}");
        }
    }
}

/// Applies what the arguments name; nothing in it may be unknown, and no warning may come of it.
fn strictly_apply(access: &Access, what: &[&str]) {
    let mut command = access.kubectl_command(&["apply", "--validate=strict"]);
    let output = command.args(what).stdin(Stdio::null()).output().expect("kubectl starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "kubectl apply {what:?}: {said}");
}

fn folder(path: &str) -> PathBuf {
    toolbox::root().join("deploy").join(path)
}

/// What a folder renders to.
fn render(access: &Access, folder: &Path) -> String {
    access.kubectl(&["kustomize", folder.to_str().expect("UTF-8")])
}

/// The names of all objects of [`KINDS`], each with its namespace.
fn objects(access: &Access) -> BTreeSet<String> {
    let columns = "--output=jsonpath={range .items[*]}\
        {.kind} {.metadata.namespace}/{.metadata.name}{\"\\n\"}{end}";
    let text = access.kubectl(&["get", KINDS, "--all-namespaces", columns]);
    text.lines().map(str::to_owned).collect()
}

/// Objects of a namespace as JSON.
fn list(access: &Access, namespace: &str, kind: &str) -> Vec<Value> {
    let text = access.kubectl(&["get", kind, "--namespace", namespace, "--output=json"]);
    let list: Value = serde_json::from_str(&text).expect("JSON");
    list["items"].as_array().expect("a list").clone()
}

/// Waits until all pods of the coordinator are there: their admission is the namespace's level of
/// pod security.
fn until_pods_are_admitted(access: &Access, replicas: usize) {
    eventually("the coordinator's pods", || {
        for event in list(access, "leasehold-system", "events") {
            assert_ne!(event["reason"], "FailedCreate", "{event:#}");
        }
        (list(access, "leasehold-system", "pods").len() == replicas).then_some(())
    });
}

fn until_kinds_are_known(access: &Access) {
    let kinds = ["crd/workerclusters.leasehold.dev", "crd/streamsets.leasehold.dev"];
    access.kubectl(&[&["wait", "--for=condition=Established"], &kinds[..]].concat());
}

#[test]
fn each_overlay_is_taken_by_an_empty_cluster_and_its_removal_leaves_nothing() {
    let Some(turn) = Turn::take() else { return };
    let access = turn.access();
    let before = objects(access);
    for (overlay, replicas) in [("dev", 1), ("ha", 3), ("namespaced", 3)] {
        let installed = Installed::new(access, &folder("overlays").join(overlay));
        // A second time, as an upgrade does.
        strictly_apply(access, &["-k", &installed.folder]);
        until_pods_are_admitted(access, replicas);
        until_kinds_are_known(access);
        for file in ["samples/builds/worker-cluster.yaml", "samples/swarm/stream-set.yaml"] {
            strictly_apply(access, &["-f", folder(file).to_str().expect("UTF-8")]);
        }
        drop(installed);
        let left: Vec<String> = objects(access).difference(&before).cloned().collect();
        assert!(left.is_empty(), "{overlay} leaves {left:#?}");
    }
}

#[test]
fn the_samples_are_taken_and_their_pods_pass_the_restricted_level() {
    let Some(turn) = Turn::take() else { return };
    let access = turn.access();
    let _installed = Installed::new(access, &folder("overlays/ha"));
    until_kinds_are_known(access);
    let namespace = format!("samples-{:06x}", fastrand::u32(..0x100_0000));
    access.kubectl(&["create", "namespace", &namespace]);
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    access.kubectl(&["label", "namespace", &namespace, restricted]);
    for sample in ["samples/builds", "samples/swarm"] {
        let sample = folder(sample);
        strictly_apply(access, &["--namespace", &namespace, "-k", sample.to_str().expect("UTF-8")]);
    }
    // Written in the stead of the coordinator: the pods of the template, as the webhook changes
    // them. It is not there to be asked, so that a pod which asks for it is not made.
    let cluster: Value = serde_json::from_str(&access.kubectl(&[
        "get",
        "workerclusters/builds",
        "--namespace",
        &namespace,
        "--output=json",
    ]))
    .expect("JSON");
    let template = &cluster["spec"]["template"];
    let mut pod = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "builds-0", "namespace": namespace, "labels": template["metadata"]["labels"],
        },
        "spec": template["spec"],
    });
    let apply = ["apply", "--filename=-"];
    let refused = access.try_kubectl_with(&apply, &pod.to_string()).expect_err("nobody answers");
    assert!(refused.contains("injector.leasehold.dev"), "{refused}");
    inject(&mut pod);
    access.apply(&pod.to_string());
    eventually("the StatefulSet's pods", || {
        let pods = list(access, &namespace, "pods");
        let swarm = |pod: &&Value| pod["metadata"]["labels"]["leasehold.dev/cluster"] == "swarm";
        (pods.iter().filter(swarm).count() == 2).then_some(())
    });
    access.kubectl(&["delete", "namespace", &namespace]);
}

/// Does to a pod what the webhook would, and takes the label away by which it would be asked.
fn inject(pod: &mut Value) {
    let sidecar = Sidecar {
        image: "leasehold/agent:0.1.0".into(),
        coordinator: "leasehold-coordinator.leasehold-system.svc:7400".into(),
        server_name: "leasehold-coordinator.leasehold-system.svc".into(),
        audience: "leasehold.dev".into(),
        authority: "leasehold-ca".into(),
        cluster: Some("builds".into()),
        drain_deadline: None,
        flags: Default::default(),
        resources: Resources::standard(),
    };
    let injection = leasehold_injection::inject(pod, &sidecar).expect("the sample is good");
    assert!(!injection.edits.is_empty());
    leasehold_injection::apply(&injection.edits, pod);
    let labels = pod["metadata"]["labels"].as_object_mut().expect("labels");
    assert_eq!(labels.remove("leasehold.dev/inject"), Some("true".into()));
}

#[test]
fn the_samples_list_of_streams_is_the_standalone_one() {
    let read = |path| std::fs::read_to_string(folder(path)).expect("a list");
    let list = read("samples/swarm/swarm-streams.txt");
    assert_eq!(list, read("standalone/manifests/swarm-streams.txt"));
    assert_eq!(list.lines().filter(|line| !line.starts_with('#')).count(), 27);
}

/// A folder in the checkout, since kustomize takes no absolute paths, with a kustomization that
/// adds all components to the overlay for high availability.
fn with_all_components() -> tempfile::TempDir {
    let cache = toolbox::root().join(".cache");
    let folder = tempfile::tempdir_in(cache).expect("a folder in the checkout");
    let text = "\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../deploy/overlays/ha
components:
  - ../../deploy/components/cert-manager
  - ../../deploy/components/prometheus
  - ../../deploy/components/ipv6
images:
  - name: leasehold/coordinator
    newName: mirror/of/leasehold
    newTag: 0.2.0
";
    std::fs::write(folder.path().join("kustomization.yaml"), text).expect("written");
    folder
}

#[test]
fn the_components_are_taken_and_one_field_names_the_image() {
    let Some(turn) = Turn::take() else { return };
    let access = turn.access();
    let stand_ins = toolbox::root().join("tests/tests/kubernetes/stand_in_crds.yaml");
    let stand_ins = stand_ins.to_str().expect("UTF-8");
    access.kubectl(&["apply", "-f", stand_ins]);
    access.kubectl(&["wait", "--for=condition=Established", "-f", stand_ins]);
    let overlay = with_all_components();
    let installed = Installed::new(access, overlay.path());
    until_pods_are_admitted(access, 3);
    let pod = &list(access, "leasehold-system", "pods")[0]["spec"]["containers"][0];
    assert_eq!(pod["image"], "mirror/of/leasehold:0.2.0");
    let set = |name: &str| {
        let variables = pod["env"].as_array().expect("variables");
        let variable = variables.iter().find(|variable| variable["name"] == name);
        variable.map_or("", |variable| variable["value"].as_str().expect("a text")).to_owned()
    };
    assert_eq!(set("LEASEHOLD_ADVERTISE"), "[$(POD_IP)]:7400");
    let mounted = pod["volumeMounts"][0]["mountPath"].as_str().expect("a path");
    assert_eq!(set("LEASEHOLD_TLS_CERT"), format!("{mounted}/tls.crt"));
    let trust = "--output=jsonpath={.metadata.annotations.cert-manager\\.io/inject-ca-from}";
    let injector = "mutatingwebhookconfiguration/leasehold-injector";
    let certificate = access.kubectl(&["get", injector, trust]);
    assert_eq!(certificate, "leasehold-system/leasehold-coordinator");
    drop(installed);
    access.kubectl(&["delete", "-f", stand_ins]);
}

#[test]
fn what_is_alerted_on_is_measured() {
    let alerts = std::fs::read_to_string(folder("components/prometheus/alerts.yaml"));
    let alerts = alerts.expect("the alerts");
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = alerts.split(|c: char| !is_part(c)).filter(|word| word.starts_with("leasehold_"));
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() >= 6, "{names:?}");
    let cluster = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 8, maxJobsPerWorker: 3}
";
    let coordinator = Coordinator::start(&[("builds.yaml", cluster)]);
    eventually("all that alerts ask for", || {
        let (_, text) = get(coordinator.http, "/metrics")?;
        let is_there = |name: &&str| {
            text.lines().any(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
            })
        };
        names.iter().all(is_there).then_some(())
    });
}

#[test]
fn the_installation_for_high_availability_runs_on_a_real_node() {
    let Some(cluster) = RealCluster::start() else { return };
    let program = Program::Coordinator;
    cluster.load(&program.image(&toolbox::binary(program.binary())));
    let access = cluster.access();
    let _installed = Installed::new(access, &folder("overlays/ha"));
    let own = ["--namespace", "leasehold-system"];
    let rollout = ["rollout", "status", "deployment/leasehold-coordinator", "--timeout=120s"];
    if let Err(why) = access.try_kubectl(&[&own[..], &rollout].concat()) {
        let say = |arguments: &[&str]| {
            access.try_kubectl(&[&own[..], arguments].concat()).unwrap_or_else(|error| error)
        };
        let logs = say(&["logs", "--prefix", "--tail=20", "deployment/leasehold-coordinator"]);
        panic!("{why}\n{}\n{logs}", say(&["describe", "pods"]));
    }
    let leader = ["get", "lease/leasehold-coordinator", "--output=jsonpath={.spec.holderIdentity}"];
    let holder = access.kubectl(&[&own[..], &leader].concat());
    let pods = list(access, "leasehold-system", "pods");
    let names: Vec<&str> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let leads = |name: &&&str| holder.starts_with(**name);
    assert_eq!(names.iter().filter(leads).count(), 1, "{holder:?} of {names:?}");
}
