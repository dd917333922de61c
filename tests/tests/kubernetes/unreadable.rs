//! The rights of the coordinator in one namespace are taken away: only that namespace waits for
//! them, under a leader that was elected without them.

use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use tests::kube::{
    Access, Cluster, CoordinatorEndpoints, Fleet, FleetFixture, HollowNode, Replicas, TokenFor,
    Work,
};
use tests::process::{eventually, get, soon, until_ok};

const BINDING: &str = "coordinator";

/// Gives the coordinator of namespace `own` every right in `namespace`.
fn bind(access: &Access, own: &str, namespace: &str) {
    let account = format!("--serviceaccount={own}:coordinator");
    let role = "--clusterrole=cluster-admin";
    access.kubectl(&["create", "rolebinding", BINDING, "-n", namespace, role, &account]);
}

/// Access as the coordinator, which has rights in both namespaces, and none elsewhere but to
/// review tokens.
async fn coordinator(access: &Access, own: &str, other: &str, folder: &Path) -> Access {
    access.kubectl(&["create", "serviceaccount", "coordinator", "-n", own]);
    let account = format!("--serviceaccount={own}:coordinator");
    let delegator = "--clusterrole=system:auth-delegator";
    access.kubectl(&["create", "clusterrolebinding", own, delegator, &account]);
    bind(access, own, own);
    bind(access, own, other);
    let token = TokenFor {
        namespace: own,
        service_account: "coordinator",
        audience: None,
        pod: None,
        seconds: 3_600,
    };
    access.with_token(&access.token(token).await.expect("a token"), &folder.join("kubeconfig"))
}

/// The jobs that run in a namespace, as its WorkerCluster says.
fn running(access: &Access, namespace: &str) -> Option<u64> {
    let cluster = access.objects().get(namespace, "wc", "builds").ok()?;
    cluster["status"]["jobs"]["running"].as_u64()
}

fn apply(access: &Access, namespace: &str, manifest: &str) {
    let applied = access.try_kubectl_with(&["apply", "-n", namespace, "-f", "-"], manifest);
    applied.unwrap_or_else(|error| panic!("{error}\n{manifest}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_namespace_whose_rights_are_gone_holds_no_other_one() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let (own, other) = (cluster.namespace("readable"), cluster.namespace("unreadable"));
    let folder = tempfile::tempdir().expect("a folder");
    let restricted = coordinator(access, &own, &other, folder.path()).await;
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
    let mut fixture = FleetFixture {
        access: access.clone(),
        namespace: own.clone(),
        replicas,
        nodes: vec![node],
        fleet,
    };
    for namespace in [&own, &other] {
        apply(access, namespace, &fixture.builds(4, 1, "3s"));
        let what = format!("4 jobs running in {namespace}");
        eventually(&what, || (running(access, namespace) == Some(4)).then_some(()));
    }

    access.kubectl(&["delete", "rolebinding", BINDING, "-n", &other]);
    // The next leader has never read the other namespace.
    let leader = fixture.replicas.leader();
    fixture.replicas.replace(1 - leader);
    soon("a ready standby", || fixture.replicas.are_ready().then_some(())).await;
    let mut former = fixture.replicas.running.remove(leader);
    former.process.signal(Signal::KILL);
    former.process.wait();
    assert_eq!(fixture.replicas.leader(), 0, "the standby leads");
    apply(access, &own, &fixture.builds(3, 1, "3s"));
    eventually("3 jobs running", || (running(access, &own) == Some(3)).then_some(()));
    let log = || fixture.replicas.running[0].process.log();
    assert!(log().contains("may not list the pods of some namespaces"), "{}", log());
    let series = format!("leasehold_unreadable_namespaces{{namespace=\"{other}\"");
    eventually("the metric", || {
        let (_, metrics) = get(fixture.replicas.running[0].http, "/metrics")?;
        metrics.contains(&series).then_some(())
    });

    bind(access, &own, &other);
    until_ok("the workers of the other namespace", || {
        let log = log();
        if log.contains("the workers of namespaces are served again") { Ok(()) } else { Err(log) }
    });
    apply(access, &other, &fixture.builds(2, 1, "3s"));
    eventually("2 jobs running", || (running(access, &other) == Some(2)).then_some(()));

    access.kubectl(&["delete", "wc", "builds", "-n", &other, "--wait=false"]);
    eventually("the end of all pods", || {
        access.objects().list(&other, "pods").ok()?.is_empty().then_some(())
    });
    access.kubectl(&["delete", "clusterrolebinding", &own]);
    fixture.end();
}
