//! Who may do what: the coordinator no more than it needs and all that it needs, and people what
//! Kubernetes' own roles say.

use std::process::Stdio;

use leasehold_proto::admin::v1::GetStatusRequest;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::kube::{
    Access, CoordinatorEndpoints, Fleet, HollowNode, Namespace, TokenFor, Work, list, names,
    object, until,
};
use tests::process::{eventually, get};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Request};

use super::super::installed::{
    ExclusiveControlPlane, Installed, LocalCoordinator, coordinator_with_its_own_rights, folder,
    until_kinds_are_known, until_pods_are_admitted,
};
use super::fence::fence;
use super::rules::{self, Requests, Role};
use super::{Applied, listed_streams, render, stand_ins};

/// As whom the coordinator speaks.
pub(super) const COORDINATOR: &str = "system:serviceaccount:leasehold-system:leasehold-coordinator";

/// Whether a user may do something in a namespace; `as_whom` also holds other arguments.
pub(super) fn may(access: &Access, as_whom: &str, namespace: &str, what: &str) -> bool {
    let mut command = access.kubectl_command(&["auth", "can-i", "--quiet"]);
    command.args(["--as", as_whom, "--namespace", namespace]).args(what.split(' '));
    let output = command.stdin(Stdio::null()).output().expect("kubectl starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("rror"), "can-i {what}: {said}");
    output.status.success()
}

#[test]
fn the_coordinator_has_exactly_the_rights_that_it_needs() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _installed = Installed::new(access, &folder("overlays/ha"));
    rules::assert_documented(access);
    let listed = access.kubectl(&["auth", "can-i", "--list", "--as", COORDINATOR]);
    let starred = listed.lines().find(|line| line.contains('*') && !line.contains("[/"));
    assert_eq!(starred, None, "{listed}");
    let own = "leasehold-system";
    let configurations = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
    let validating = "validatingwebhookconfigurations.admissionregistration.k8s.io";
    for (namespace, what) in [
        ("default", "patch workerclusters.leasehold.dev --subresource=status"),
        ("default", "delete pods"),
        ("default", "create pods --subresource=eviction"),
        ("default", "create deployments.apps"),
        ("default", "watch configmaps"),
        ("default", "patch configmaps/leasehold-ca"),
        ("default", "patch pipelines.leasehold.dev --subresource=status"),
        ("default", "delete pipelinebindings.leasehold.dev"),
        ("default", "delete services"),
        ("default", "create endpointslices.discovery.k8s.io"),
        (own, "create secrets"),
        (own, "update secrets/leasehold-ca"),
        (own, "update leases.coordination.k8s.io/leasehold-coordinator"),
        (own, "create tokenreviews.authentication.k8s.io"),
        (own, "create subjectaccessreviews.authorization.k8s.io"),
        (own, "watch nodes"),
        (own, &format!("patch {configurations}/leasehold-injector")),
        (own, &format!("patch {validating}/leasehold-validator")),
        ("default", "watch pipelines.leasehold.dev"),
        ("default", "patch workerclasses.leasehold.dev --subresource=status"),
    ] {
        assert!(may(access, COORDINATOR, namespace, what), "not {what} in {namespace}");
    }
    for (namespace, what) in [
        ("default", "update workerclusters.leasehold.dev"),
        ("default", "patch streamsets.leasehold.dev"),
        ("default", "delete workerclusters.leasehold.dev"),
        ("default", "patch pipelines.leasehold.dev"),
        ("default", "delete pipelines.leasehold.dev"),
        ("default", "patch services --subresource=status"),
        ("default", "get nodes"),
        ("default", "get poddisruptionbudgets.policy"),
        ("default", "get deployments.apps"),
        ("default", "get configmaps"),
        ("default", "update workerclusters.leasehold.dev --subresource=finalizers"),
        ("default", "update workerclasses.leasehold.dev --subresource=finalizers"),
        ("default", "update pipelines.leasehold.dev --subresource=finalizers"),
        ("default", "patch endpoints"),
        ("default", "create poddisruptionbudgets.policy"),
        ("default", "patch poddisruptionbudgets.policy"),
        ("default", "create pods"),
        ("default", "create pods --subresource=exec"),
        ("default", "get secrets"),
        ("default", "create secrets"),
        ("default", "patch configmaps/theirs"),
        ("default", "delete configmaps"),
        ("default", "create leases.coordination.k8s.io"),
        ("default", "create serviceaccounts --subresource=token"),
        ("default", "create rolebindings.rbac.authorization.k8s.io"),
        ("kube-system", "update leases.coordination.k8s.io"),
        (own, "get secrets/theirs"),
        (own, "list secrets"),
        (own, "list leases.coordination.k8s.io"),
        (own, "update leases.coordination.k8s.io/theirs"),
        (own, "patch nodes"),
        (own, "impersonate users"),
        (own, &format!("patch {configurations}/theirs")),
        (own, &format!("patch {validating}/theirs")),
        ("default", "delete pipelines.leasehold.dev"),
        (own, &format!("create {configurations}")),
        (own, &format!("delete {configurations}/leasehold-injector")),
    ] {
        assert!(!may(access, COORDINATOR, namespace, what), "{what} in {namespace}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_forbids_no_request_of_the_coordinator_and_no_right_is_unused() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let requests = Requests::since_now(turn.audit_log());
    let installed = Installed::new(access, &folder("overlays/ha"));
    // Neither policy must be in its way.
    let _fence = fence(access);
    let _register = Applied::new(access, "deploy/components/pod-register/policy.yaml");
    until_pods_are_admitted(access, 3);
    until_kinds_are_known(access);
    let own = tempfile::tempdir().expect("a folder");
    let coordinator = coordinator_with_its_own_rights(access, own.path()).await;
    let LocalCoordinator { process: mut coordinator, grpc, http, .. } = coordinator;
    // Its pods would be played, too.
    let none = ["scale", "deployment/leasehold-coordinator", "--replicas=0"];
    access.kubectl(&[&none[..], &["--namespace=leasehold-system"]].concat());
    eventually("a ready coordinator", || get(http, "/readyz").filter(|(status, _)| *status == 200));
    let bundle = ["get", "configmap/leasehold-ca", "--namespace=leasehold-system"];
    let bundle = [&bundle[..], &["--output=jsonpath={.data.ca\\.crt}"]].concat();
    let bundle = eventually("the published certificate", || access.try_kubectl(&bundle).ok());
    let trusted = "--output=jsonpath={.webhooks[0].clientConfig.caBundle}";
    let trusted = ["get", "mutatingwebhookconfiguration/leasehold-injector", trusted];
    eventually("the API server's trust", || (!access.kubectl(&trusted).is_empty()).then_some(()));
    let authority = own.path().join("ca.crt");
    std::fs::write(&authority, bundle).expect("written");
    let server_name = "leasehold-coordinator.leasehold-system.svc".to_owned();
    let dials = CoordinatorEndpoints { addresses: vec![grpc], authority, server_name };
    let work = Work::Jobs { ms_min: 50, ms_max: 200 };
    ask_as_a_person(access, &dials).await;
    let fleet = Fleet::new(access, work, Some(dials.clone()));
    let node = HollowNode::join(access.client().await, JOBS_NODE, fleet).await;
    let fleet = Fleet::new(access, Work::Bindings, Some(dials));
    let pipelines_node = HollowNode::join(access.client().await, PIPELINES_NODE, fleet).await;
    let namespace = &Namespace::existing(access, "default");
    let status = |kind: &str, path: &str| {
        let output = format!("--output=jsonpath={{.status.{path}}}");
        namespace.kubectl(&["get", kind, &output])
    };
    namespace.apply(&cluster_with_streams(4));
    eventually("two workers and three streams", || {
        let workers = status("wc/builds", "workers.ready") == "2";
        (workers && status("ss/cars", "streams.owned") == "3").then_some(())
    });
    // No coordinator runs behind the Service to validate it.
    let validator = "validatingwebhookconfiguration/leasehold-validator";
    let trusted = ["get", validator, "--output=jsonpath={.webhooks[0].clientConfig.caBundle}"];
    eventually("its trust, too", || (!access.kubectl(&trusted).is_empty()).then_some(()));
    access.kubectl(&["delete", validator]);
    // It waits for a class, and what it runs on is there, and goes with its node.
    for node in ["in", "out"] {
        namespace.apply(&pipeline(node, "missing", 10));
        let services = "--output=jsonpath={.items[*].metadata.name}";
        let ours = "--selector=leasehold.dev/pipeline=first";
        eventually("its Service alone", || {
            let names = namespace.kubectl(&["get", "services", ours, services]);
            (names == format!("first-{node}")).then_some(())
        });
        let binding = format!("plb/first-{node}");
        eventually("its binding", || {
            let phase = "--output=jsonpath={.status.phase}";
            let found = namespace.try_kubectl(&["get", &binding, phase]);
            found.ok().filter(|phase| phase == "Unset").map(drop)
        });
    }
    eventually("its state", || (status("pl/first", "phase") == "Pending").then_some(()));
    serve_a_pipeline(namespace);
    namespace.kubectl(&["delete", "pl/first", "wcl/green"]);
    // One of them is drained and goes. The other is replaced, since its node is cordoned.
    namespace.apply(&cluster_with_streams(2));
    eventually("one worker", || (status("wc/builds", "workers.total") == "1").then_some(()));
    let workers = || names(&namespace.all_pods());
    let earlier = workers();
    access.kubectl(&["cordon", node.name()]);
    until("another worker", workers, |now| {
        !now.is_empty() && now.iter().all(|name| !earlier.contains(name))
    });
    access.kubectl(&["uncordon", node.name()]);
    eventually("it works", || (status("wc/builds", "workers.ready") == "1").then_some(()));
    namespace.kubectl(&["delete", "wc/builds", "ss/cars"]);
    until("the end of all workers", workers, Vec::is_empty);
    coordinator.signal(Signal::TERM);
    assert!(coordinator.wait().success(), "{}", coordinator.log());
    let log = coordinator.log();
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("is forbidden")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    requests.assert_none_forbidden_and_each_rule_used(access);
    node.leave().await;
    pipelines_node.leave().await;
    drop(installed);
}

/// Asks the admin API as somebody who may not: the coordinator asks the API server whether they
/// may.
async fn ask_as_a_person(access: &Access, dials: &CoordinatorEndpoints) {
    let authority = Certificate::from_pem(std::fs::read(&dials.authority).expect("a certificate"));
    let tls = ClientTlsConfig::new().ca_certificate(authority);
    let tls = tls.domain_name(dials.server_name.clone());
    let endpoint = Endpoint::from_shared(format!("https://{}", dials.addresses[0]));
    let endpoint = endpoint.and_then(|endpoint| endpoint.tls_config(tls)).expect("an endpoint");
    let channel = endpoint.connect().await.expect("a connection");
    let token = TokenFor {
        namespace: "default",
        service_account: "default",
        audience: Some("leasehold.dev"),
        pod: None,
        seconds: 600,
    };
    let token = access.token(token).await.expect("a token");
    let mut request = Request::new(GetStatusRequest {});
    let bearer = format!("Bearer {token}").parse().expect("a header");
    request.metadata_mut().insert("authorization", bearer);
    let refused = AdminServiceClient::new(channel).get_status(request).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}

/// The nodes of workers with jobs, and of those with pipelines.
const JOBS_NODE: &str = "deploy-1";
const PIPELINES_NODE: &str = "deploy-2";

/// A worker of a class serves a pipeline; its load, its class's port and its node's name change,
/// and the name is another's at first.
fn serve_a_pipeline(namespace: &Namespace) {
    let get = |what: &str, path: &str| {
        let path = format!("--output=jsonpath={path}");
        namespace.try_kubectl(&["get", what, &path]).unwrap_or_default()
    };
    let serves = |node: &str| {
        let slice = format!("endpointslice/first-{node}-ipv4-0");
        eventually("a worker that serves", || {
            (get(&slice, "{.endpoints[*].conditions.serving}") == "true").then_some(())
        });
    };
    namespace.apply(&class(9000));
    namespace.apply(&pipeline("out", "green", 10));
    serves("out");
    namespace.apply(&pipeline("out", "green", 5));
    eventually("the new load", || {
        (get("plb/first-out", "{.spec.documentsPerSecond}") == "5").then_some(())
    });
    namespace.apply(&class(9001));
    for (object, port) in [
        ("service/first-out", "{.spec.ports[0].port}"),
        ("endpointslice/first-out-ipv4-0", "{.ports[0].port}"),
    ] {
        eventually("the new port", || (get(object, port) == "9001").then_some(()));
    }
    namespace.kubectl(&["create", "service", "clusterip", "first-in", "--tcp=80"]);
    namespace.apply(&pipeline("in", "green", 5));
    eventually("that the name is taken", || {
        let why = "{.status.conditions[?(@.type=='Ready')].reason}";
        (get("pl/first", why) == "NameTaken").then_some(())
    });
    namespace.kubectl(&["delete", "service/first-in"]);
    serves("in");
}

/// A pod's spec on a node.
fn pod_spec(node: &str) -> Value {
    json!({
        "nodeSelector": { "kubernetes.io/hostname": node },
        "containers": [{ "name": "worker", "image": "example.invalid/worker" }],
    })
}

/// A class of one worker, in a StatefulSet, on a node of its own.
fn class(port: u16) -> Value {
    let spec = json!({
        "capacity": 20, "minReplicas": 1, "maxReplicas": 1, "port": port,
        "workload": { "kind": "StatefulSet" }, "template": { "spec": pod_spec(PIPELINES_NODE) },
    });
    object("WorkerClass", "green", spec)
}

/// A pipeline of one node.
fn pipeline(node: &str, class: &str, load: u32) -> Value {
    let workers = json!({ node: { "class": class } });
    object("Pipeline", "first", json!({ "documentsPerSecond": load, "workers": workers }))
}

/// A cluster for this many jobs, two a worker, and a set of three streams from a ConfigMap.
fn cluster_with_streams(jobs: u32) -> Value {
    let spec = json!({
        "maxJobs": jobs, "maxJobsPerWorker": 2, "onCordon": "Drain",
        "template": { "spec": pod_spec(JOBS_NODE) },
    });
    let [map, set] = listed_streams();
    list([map, object("WorkerCluster", "builds", spec), set])
}

#[test]
fn a_namespaced_coordinator_has_no_rights_in_other_namespaces() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _cert_manager = stand_ins(access);
    let _installed = Installed::new(access, &folder("overlays/namespaced"));
    for what in [
        "watch workerclusters.leasehold.dev",
        "delete pods",
        "create deployments.apps",
        "watch services",
        "patch endpointslices.discovery.k8s.io",
        "create pipelinebindings.leasehold.dev",
    ] {
        assert!(may(access, COORDINATOR, "default", what), "not {what}");
        assert!(!may(access, COORDINATOR, "kube-public", what), "{what} elsewhere");
        assert!(!may(access, COORDINATOR, "leasehold-system", what), "{what} at home");
    }
    let injector = "mutatingwebhookconfigurations.admissionregistration.k8s.io/leasehold-injector";
    let validator =
        "validatingwebhookconfigurations.admissionregistration.k8s.io/leasehold-validator";
    for what in [
        "watch nodes".to_owned(),
        format!("patch {injector}"),
        format!("list {injector}"),
        format!("patch {validator}"),
        "create configmaps".to_owned(),
        "patch configmaps/leasehold-ca".to_owned(),
        "create secrets".to_owned(),
    ] {
        for namespace in ["default", "kube-public", "leasehold-system"] {
            assert!(!may(access, COORDINATOR, namespace, &what), "{what} in {namespace}");
        }
    }
    assert!(may(access, COORDINATOR, "default", "create tokenreviews.authentication.k8s.io"));
    let clusterwide = Role::bound_in_all_namespaces(access);
    let names: Vec<&str> = clusterwide.iter().map(|role| role.name.as_str()).collect();
    assert_eq!(names, ["system:auth-delegator"]);
    let rendered = render(access, &folder("overlays/namespaced"));
    assert!(rendered.contains("LEASEHOLD_WATCH_NAMESPACE"), "{rendered}");
}

/// `overlays/namespaced` has no `components/aggregate-roles`.
#[test]
fn without_aggregation_only_leaseholds_own_role_lets_a_user_change_objects() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _cert_manager = stand_ins(access);
    let _installed = Installed::new(access, &folder("overlays/namespaced"));
    let bind = |role: &str| {
        let role = format!("--clusterrole={role}");
        let namespace = "--namespace=default";
        access.kubectl(&["create", "rolebinding", &role[14..], &role, "--user=ada", namespace]);
    };
    let may = |what: &str| may(access, "ada", "default", what);
    bind("edit");
    // The controller manager has put the role together.
    eventually("the rights of edit", || may("create deployments.apps").then_some(()));
    let (look, change) = ("list workerclusters.leasehold.dev", "create streamsets.leasehold.dev");
    assert_eq!([look, change].map(may), [false, false]);
    bind("leasehold-editor");
    eventually("the rights of an editor", || may(change).then_some(()));
    access.kubectl(&["delete", "rolebinding", "edit", "leasehold-editor", "--namespace=default"]);
}

#[test]
fn the_view_edit_and_admin_roles_include_leasehold_objects() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _installed = Installed::new(access, &folder("overlays/ha"));
    for role in ["view", "edit", "admin"] {
        let (role, user) = (format!("--clusterrole={role}"), format!("--user={role}"));
        access.kubectl(&["create", "rolebinding", &user[7..], &role, &user, "--namespace=default"]);
    }
    let look = "list workerclusters.leasehold.dev";
    let change = "create streamsets.leasehold.dev";
    let scale = "patch workerclusters.leasehold.dev --subresource=scale";
    let steer = "create workerclusters.leasehold.dev --subresource=drain";
    let rights =
        |user: &str| [look, change, scale, steer].map(|what| may(access, user, "default", what));
    for (user, wanted) in [
        ("view", [true, false, false, false]),
        ("edit", [true, true, true, false]),
        ("admin", [true, true, true, true]),
    ] {
        // The controller manager puts the roles together.
        eventually(&format!("the rights of {user}"), || (rights(user) == wanted).then_some(()));
    }
    assert!(!may(access, "view", "kube-system", look));
    access.kubectl(&["delete", "rolebinding", "view", "edit", "admin", "--namespace=default"]);
}
