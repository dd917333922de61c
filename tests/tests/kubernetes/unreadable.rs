//! The rights of the coordinator in one namespace are taken away: only that namespace waits for
//! them, under a leader that was elected without them.

use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::json;
use tests::kube::{
    Access, Cluster, CoordinatorEndpoints, Fleet, FleetFixture, HollowNode, Namespace, Replicas,
    TokenFor, Work, feeds, list, names, object, until,
};
use tests::process::{eventually, get, soon, until_ok};

const BINDING: &str = "coordinator";

/// Gives the coordinator of namespace `own` every right in `namespace`.
fn bind(own: &str, namespace: &Namespace) {
    let account = format!("--serviceaccount={own}:coordinator");
    let role = "--clusterrole=cluster-admin";
    namespace.kubectl(&["create", "rolebinding", BINDING, role, &account]);
}

/// Access as the coordinator, which has rights in both namespaces, and none elsewhere but to
/// review tokens.
async fn coordinator(own: &Namespace, other: &Namespace, folder: &Path) -> Access {
    let access = &own.access;
    own.kubectl(&["create", "serviceaccount", "coordinator"]);
    let account = format!("--serviceaccount={own}:coordinator");
    let delegator = "--clusterrole=system:auth-delegator";
    access.kubectl(&["create", "clusterrolebinding", own, delegator, &account]);
    bind(own, own);
    bind(own, other);
    let token = TokenFor {
        namespace: own,
        service_account: "coordinator",
        audience: None,
        pod: None,
        seconds: 3_600,
    };
    access.with_token(&access.token(token).await.expect("a token"), &folder.join("kubeconfig"))
}

/// Waits until this many jobs run in a namespace, as its WorkerCluster says.
fn jobs_run(namespace: &Namespace, jobs: u64) {
    let what = format!("{jobs} jobs running in {namespace}");
    namespace
        .wait_for(&what, "wc", "builds", |cluster| cluster["status"]["jobs"]["running"] == jobs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_namespace_whose_rights_are_gone_holds_no_other_one() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let (own, other) = (cluster.namespace("readable"), cluster.namespace("unreadable"));
    let folder = tempfile::tempdir().expect("a folder");
    let restricted = coordinator(&own, &other, folder.path()).await;
    Replicas::define(access);
    let mut replicas = Replicas::new(&restricted, &own, &["--watch-namespace", &other]);
    replicas.start();
    replicas.start();
    soon("ready replicas", || replicas.are_ready().then_some(())).await;
    let dials = CoordinatorEndpoints {
        addresses: replicas.addresses(),
        authority: replicas.authority(),
        server_name: format!("leasehold-coordinator.{own}.svc"),
    };
    let fleet = Fleet::new(access, Work::Jobs { ms_min: 500, ms_max: 1_500 }, Some(dials));
    let node = HollowNode::join(access.client().await, &own, Arc::clone(&fleet)).await;
    let mut fixture = FleetFixture { namespace: own.clone(), replicas, nodes: vec![node], fleet };
    let spec = json!({
        "maxJobs": 4, "maxJobsPerWorker": 2, "lease": { "ttl": "3s" },
        "template": fixture.template(),
    });
    let mut builds = object("WorkerCluster", "builds", spec);
    let set = json!({ "cluster": "builds", "streams": feeds(1) });
    for namespace in [&own, &other] {
        namespace.apply(&list([builds.clone(), object("StreamSet", "feeds", set.clone())]));
        jobs_run(namespace, 4);
    }

    other.kubectl(&["delete", "rolebinding", BINDING]);
    // The next leader has never read the other namespace.
    let leader = fixture.replicas.leader();
    fixture.replicas.replace(1 - leader);
    soon("a ready standby", || fixture.replicas.are_ready().then_some(())).await;
    let mut former = fixture.replicas.running.remove(leader);
    former.process.signal(Signal::KILL);
    former.process.wait();
    assert_eq!(fixture.replicas.leader(), 0, "the standby leads");
    builds["spec"]["maxJobs"] = json!(3);
    own.apply(&builds);
    jobs_run(&own, 3);
    let log = || fixture.replicas.running[0].process.log();
    assert!(log().contains("may not list the pods of some namespaces"), "{}", log());
    let series = format!("leasehold_unreadable_namespaces{{served_namespace=\"{other}\"");
    eventually("the metric", || {
        let (_, metrics) = get(fixture.replicas.running[0].http, "/metrics")?;
        metrics.contains(&series).then_some(())
    });

    bind(&own, &other);
    until_ok("the workers of the other namespace", || {
        let log = log();
        if log.contains("the workers of namespaces are served again") { Ok(()) } else { Err(log) }
    });
    builds["spec"]["maxJobs"] = json!(2);
    other.apply(&builds);
    jobs_run(&other, 2);

    other.kubectl(&["delete", "wc", "builds", "--wait=false"]);
    until("the end of all pods", || names(&other.all_pods()), Vec::is_empty);
    access.kubectl(&["delete", "clusterrolebinding", &own]);
    fixture.end();
}
