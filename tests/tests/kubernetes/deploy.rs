//! What `deploy/` installs: a cluster without anything takes it whole, it has the rights that it
//! needs and no others, and its removal leaves nothing. These tests install into one namespace of
//! one name, so they have a control plane of their own and take it in turns.

#[path = "deploy/fence.rs"]
mod fence;
#[path = "deploy/flow_control.rs"]
mod flow_control;
#[path = "deploy/helm.rs"]
mod helm;
#[path = "deploy/lean.rs"]
mod lean;
#[path = "deploy/places.rs"]
mod places;
#[path = "deploy/pod_register.rs"]
mod pod_register;
#[path = "deploy/rights.rs"]
mod rights;
#[path = "deploy/rules.rs"]
mod rules;

use std::collections::BTreeSet;
use std::path::Path;

use leasehold_injection::Sidecar;
use leasehold_release::Program;
use serde_json::{Value, json};
use tests::kube::{Access, Namespace, RealCluster, object};
use tests::process::{Coordinator, eventually, get, until_ok};
use tests::toolbox;

use super::installed::{
    ExclusiveControlPlane, Installed, coordinator_pods, folder, remove, strictly_apply,
    until_kinds_are_known, until_pods_are_admitted,
};

/// Kinds that an installation makes objects of, and those that objects are made of for it.
const KINDS: &str = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,roles,\
    rolebindings,priorityclasses,serviceaccounts,secrets,services,deployments,statefulsets,\
    replicasets,pods,poddisruptionbudgets,networkpolicies,leases,configmaps,\
    mutatingwebhookconfigurations";

/// The objects of a file, as long as this value is there.
pub(crate) struct Applied<'a> {
    access: &'a Access,
    file: String,
}

impl<'a> Applied<'a> {
    /// Applies a file of the checkout.
    fn new(access: &'a Access, file: &str) -> Self {
        let file = toolbox::root().join(file).to_str().expect("UTF-8").to_owned();
        access.kubectl(&["apply", "-f", &file]);
        Self { access, file }
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        remove(self.access, &["-f", &self.file]);
    }
}

/// The definitions of other projects' kinds that `deploy/` has objects of.
pub(crate) fn stand_ins(access: &Access) -> Applied<'_> {
    let applied = Applied::new(access, "tests/tests/kubernetes/stand_in_crds.yaml");
    access.kubectl(&["wait", "--for=condition=Established", "-f", &applied.file]);
    applied
}

/// What a folder renders to.
pub(crate) fn render(access: &Access, folder: &Path) -> String {
    access.kubectl(&["kustomize", folder.to_str().expect("UTF-8")])
}

/// The names of all objects of [`KINDS`], each with its namespace.
fn objects(access: &Access) -> BTreeSet<String> {
    let columns = "--output=jsonpath={range .items[*]}\
        {.kind} {.metadata.namespace}/{.metadata.name}{\"\\n\"}{end}";
    let text = access.kubectl(&["get", KINDS, "--all-namespaces", columns]);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn each_overlay_installs_on_an_empty_cluster_and_uninstalls_completely() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _stand_ins = stand_ins(access);
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

/// The folders of `deploy/samples`: all of them.
const SAMPLES: [&str; 8] =
    ["builds", "swarm", "pipelines", "runners", "transcoder", "feeds", "backups", "documents"];

/// What in them has a template of a pod that asks for an agent: kind and name.
const TEMPLATES: [(&str, &str); 7] = [
    ("wc", "builds"),
    ("wcl", "blue"),
    ("wc", "runners"),
    ("wc", "transcoder"),
    ("deployment", "feeds"),
    ("wc", "backups"),
    ("wcl", "parse"),
];

#[test]
fn the_samples_apply_and_their_pods_pass_the_restricted_level() {
    assert_eq!(sample_folders(), BTreeSet::from(SAMPLES.map(str::to_owned)));
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _installed = Installed::new(access, &folder("overlays/ha"));
    until_kinds_are_known(access);
    let namespace = Namespace::create_with_prefix(access, "samples");
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    access.kubectl(&["label", "namespace", &namespace, restricted]);
    // No coordinator runs, so the webhook would refuse every class and pipeline.
    access.kubectl(&["delete", "validatingwebhookconfiguration/leasehold-validator"]);
    for sample in SAMPLES {
        let sample = folder("samples").join(sample);
        strictly_apply(access, &["--namespace", &namespace, "-k", sample.to_str().expect("UTF-8")]);
    }
    // Written in the stead of the coordinator: the pods of each template, as the webhook changes
    // them. It is not there to be asked, so that a pod which asks for it is not made.
    for (kind, name) in TEMPLATES {
        let object = namespace.get(kind, name).expect(name);
        let template = &object["spec"]["template"];
        let labels = &template["metadata"]["labels"];
        let image = template["spec"]["containers"][0]["image"].as_str().expect("an image");
        assert!(image.contains(':'), "{name}: without a tag each node takes another {image}");
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": format!("{name}-0"), "namespace": &*namespace, "labels": labels,
            },
            "spec": template["spec"],
        });
        let refused = namespace.try_apply(&pod).expect_err("no server answers");
        assert!(refused.contains("injector.leasehold.dev"), "{name}: {refused}");
        inject(&mut pod, name);
        namespace.apply(&pod);
    }
    eventually("the StatefulSet's pods", || {
        let pods = namespace.all_pods();
        let swarm = |pod: &&Value| pod["metadata"]["labels"]["leasehold.dev/cluster"] == "swarm";
        (pods.iter().filter(swarm).count() == 2).then_some(())
    });
    access.kubectl(&["delete", "namespace", &namespace]);
}

/// The names of the folders of `deploy/samples`.
fn sample_folders() -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder("samples")).expect("the samples");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let names = paths
        .filter(|path| path.is_dir())
        .filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
    names.collect()
}

/// Does to a pod what the webhook would, and takes the label away by which it would be asked.
fn inject(pod: &mut Value, cluster: &str) {
    let sidecar = Sidecar {
        cluster: Some(cluster.into()),
        ..Sidecar::standard("registry.invalid/leasehold/agent:0.1.0")
    };
    let injection = leasehold_injection::inject(pod, &sidecar).expect("the sample is good");
    assert!(!injection.edits.is_empty());
    leasehold_injection::apply(&injection.edits, pod);
    let labels = pod["metadata"]["labels"].as_object_mut().expect("labels");
    assert_eq!(labels.remove("leasehold.dev/inject"), Some("true".into()));
}

/// The worker's hook ends its drain with its container, and no volume keeps a node.
#[test]
fn the_sidecar_that_is_written_by_hand_has_the_hook_of_an_injected_one() {
    let text = std::fs::read_to_string(folder("samples/swarm/stateful-set.yaml")).expect("a file");
    let set: Value = serde_yaml::from_str(&text).expect("YAML");
    let template = &set["spec"]["template"];
    let labels = json!({ "leasehold.dev/inject": "true" });
    let containers = json!([{ "name": "worker" }]);
    let mut bare =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": containers } });
    inject(&mut bare, "builds");
    let hook = |spec: &Value| spec["containers"][0]["lifecycle"]["preStop"]["exec"].clone();
    assert_eq!(hook(&template["spec"]), hook(&bare["spec"]));
    let marks = &template["metadata"]["annotations"];
    let marked = &marks["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"];
    let marked: Vec<&str> = marked.as_str().expect("a list").split(',').collect();
    let volumes = template["spec"]["volumes"].as_array().expect("volumes").iter();
    let local = volumes.filter(|volume| volume.get("emptyDir").is_some());
    let local: Vec<&str> = local.filter_map(|volume| volume["name"].as_str()).collect();
    assert_eq!(marked, local);
}

#[test]
fn the_sample_and_the_standalone_stream_lists_are_equal() {
    let read = |path| std::fs::read_to_string(folder(path)).expect("a list");
    let list = read("samples/swarm/swarm-streams.txt");
    assert_eq!(list, read("standalone/manifests/swarm-streams.txt"));
    assert_eq!(list.lines().filter(|line| !line.starts_with('#')).count(), 27);
}

/// A folder in the checkout, since kustomize takes no absolute paths, with a kustomization of these
/// parts of `deploy/`.
pub(crate) fn kustomization(resource: &str, components: &[&str], more: &str) -> tempfile::TempDir {
    let cache = toolbox::root().join(".cache");
    let folder = tempfile::tempdir_in(cache).expect("a folder in the checkout");
    let component = |name: &&str| format!("  - ../../deploy/components/{name}\n");
    let components: String = components.iter().map(component).collect();
    let text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\n\
         kind: Kustomization\n\
         resources:\n  - {resource}\n\
         components:\n{components}{more}"
    );
    std::fs::write(folder.path().join("kustomization.yaml"), text).expect("written");
    folder
}

/// A ConfigMap with a list of three streams, and the set of them on the WorkerCluster `builds`.
fn listed_streams() -> [Value; 2] {
    let labels = json!({ "leasehold.dev/stream-list": "true" });
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "cars", "labels": labels },
        "data": { "list": "cars:new\ncars:updated\ncars:sold" },
    });
    let key = json!({ "configMapKeyRef": { "name": "cars", "key": "list" } });
    [map, object("StreamSet", "cars", json!({ "cluster": "builds", "streamsFrom": [key] }))]
}

#[test]
fn the_components_apply_and_one_field_sets_the_image() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _stand_ins = stand_ins(access);
    let images = "\
images:
  - name: registry.invalid/leasehold/coordinator
    newName: mirror/of/leasehold
    newTag: 0.2.0
";
    let components = [
        "cert-manager",
        "prometheus",
        "service-monitor",
        "ipv6",
        "egress",
        "host-network",
        "openshift",
        "fence",
        "pod-register",
        "flow-control",
        "api-server",
        "aggregate-roles",
        "webhook-clients",
    ];
    let overlay = kustomization("../../deploy/overlays/ha", &components, images);
    let _installed = Installed::new(access, overlay.path());
    until_pods_are_admitted(access, 3);
    let spec = &coordinator_pods(access)[0]["spec"];
    assert_eq!(spec["nodeSelector"], json!({ "kubernetes.io/os": "linux" }));
    let pod = &spec["containers"][0];
    assert_eq!(pod["image"], "mirror/of/leasehold:0.2.0");
    let set = |name: &str| {
        let variables = pod["env"].as_array().expect("variables");
        let variable = variables.iter().find(|variable| variable["name"] == name);
        variable.map_or("", |variable| variable["value"].as_str().expect("a text")).to_owned()
    };
    assert_eq!(set("LEASEHOLD_ADVERTISE"), "[$(POD_IP)]:7400");
    let mounts = pod["volumeMounts"].as_array().expect("mounts");
    for (variable, volume, file) in [
        ("LEASEHOLD_TLS_CERT", "tls", "tls.crt"),
        ("LEASEHOLD_WEBHOOK_CLIENT_CA", "webhook-clients", "ca.crt"),
    ] {
        let mount = mounts.iter().find(|mount| mount["name"] == volume).expect(volume);
        let path = mount["mountPath"].as_str().expect("a path");
        assert_eq!(set(variable), format!("{path}/{file}"));
    }
    let spoken = "--output=jsonpath={.spec.ports[*].appProtocol}";
    let service = ["get", "service/leasehold-coordinator", "--namespace=leasehold-system", spoken];
    assert_eq!(access.kubectl(&service), "tls https", "meshes leave TLS alone");
    let trust = "--output=jsonpath={.metadata.annotations.cert-manager\\.io/inject-ca-from}";
    let injector = "mutatingwebhookconfiguration/leasehold-injector";
    let certificate = access.kubectl(&["get", injector, trust]);
    assert_eq!(certificate, "leasehold-system/leasehold-coordinator");
    let roles = access.kubectl(&["get", "clusterroles,roles", "--all-namespaces", "--output=name"]);
    for unused in ["coordinator-webhook", "coordinator-bundle", "coordinator-authority"] {
        assert!(!roles.contains(unused), "cert-manager makes {unused} needless: {roles}");
    }
}

#[test]
fn every_metric_in_an_alert_exists() {
    let read = |file: &str| std::fs::read_to_string(folder(file)).expect("a component's file");
    let texts = read("components/prometheus/alerts.yaml") + &read("components/hpa/autoscaler.yaml");
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let is_metric = |word: &&str| {
        word.starts_with("leasehold_")
            || word.starts_with("workerclass_") && *word != "workerclass_name"
    };
    let names: BTreeSet<&str> = texts.split(|c: char| !is_part(c)).filter(is_metric).collect();
    assert!(names.len() >= 6, "{names:?}");
    let cluster = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 8, maxJobsPerWorker: 3}
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 15, maxReplicas: 3}
";
    let coordinator = Coordinator::start(&[("builds.yaml", cluster)]);
    let agent = coordinator.agent("builds", "w-0", &[]);
    eventually("all that alerts ask for", || {
        let (_, of_coordinator) = get(coordinator.http, "/metrics")?;
        let (_, of_agent) = get(agent.api, "/metrics")?;
        let text = of_coordinator + &of_agent;
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
    let pods = coordinator_pods(access);
    let names: Vec<&str> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let leads = |name: &&&str| holder.starts_with(**name);
    assert_eq!(names.iter().filter(leads).count(), 1, "{holder:?} of {names:?}");

    // All three, whichever answers.
    access.kubectl(&["create", "serviceaccount", "viewer"]);
    let role = "--clusterrole=leasehold-viewer";
    let account = "--serviceaccount=default:viewer";
    access.kubectl(&["create", "clusterrolebinding", "viewer", role, account]);
    let replicas =
        |status: &str, role: &str| status.lines().filter(|line| line.contains(role)).count();
    until_ok("a status with all replicas", || {
        let status = access.leasehold("default/viewer", "status")?;
        let seen = (replicas(&status, " leads term "), replicas(&status, " stands by "));
        if seen == (1, 2) { Ok(()) } else { Err(status) }
    });
}
