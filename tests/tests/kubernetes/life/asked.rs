//! The command line, which asks a fleet on Kubernetes through the API server.

use serde_json::{Value, json};
use tests::kube::{RealInstallation, list, object};
use tests::process::{eventually, until_ok};

use super::{cluster, deployment, pods};

/// A user with a kubeconfig, in the name of a service account: it sees what the account may see,
/// and a drain needs another role.
#[test]
fn the_command_line_asks_with_the_rights_of_a_service_account() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("asked");
    namespace.apply(&list(cluster(4)));
    namespace.apply(&deployment(&namespace, 1, &[]));
    namespace.until("wc/builds", ".status.jobs.running", "2");
    let (own, access) = (&**namespace, &namespace.access);
    let bind = |role: &str| {
        let role = format!("--clusterrole={role}");
        let account = format!("--serviceaccount={own}:looker");
        namespace.kubectl(&["create", "rolebinding", &role[14..], &role, &account]);
    };
    namespace.kubectl(&["create", "serviceaccount", "looker"]);
    let leasehold = |line: &str| access.leasehold(&format!("{own}/looker"), line);
    let workers = format!("workers {own}/builds -o name");
    // A busy API server may be too slow for the command line's patience.
    namespace.until_holds("a refusal that names the right", || match leasehold(&workers) {
        Err(refused) if refused.contains("get workerclusters.leasehold.dev") => Ok(()),
        other => Err(format!("{other:?}")),
    });

    bind("leasehold-viewer");
    let worker = &pods(&namespace)[0];
    let seen =
        eventually("the worker", || leasehold(&workers).ok().filter(|output| !output.is_empty()));
    assert_eq!(seen, format!("{own}/builds/{worker}\n"));
    // On a busy machine its agent may lose its connection for a moment.
    namespace.until_holds("a worker that has its share", || {
        let explained = leasehold(&format!("explain worker {own}/builds/{worker}"))?;
        let has_its_share = explained.starts_with(&format!("{own}/builds/{worker} has its share"));
        if has_its_share { Ok(()) } else { Err(explained) }
    });
    let plan = leasehold(&format!("plan {own}/builds --max-jobs 1")).expect("a plan");
    assert!(plan.contains(worker.as_str()), "{plan}");
    let version = leasehold("version").expect_err("it may not read everything");
    assert!(version.contains("get workerclusters.leasehold.dev"), "{version}");

    let drain = format!("drain {own}/builds/{worker}");
    let refused = leasehold(&drain).expect_err("only a viewer");
    let missing = "looker may not create workerclusters/drain.leasehold.dev";
    assert!(refused.contains(missing), "{refused}");
    bind("leasehold-admin");
    eventually("the order", || leasehold(&drain).ok());
    namespace.until_holds("an event on the pod that names who ordered it", || {
        let of_orders = "--field-selector=reason=DrainOrdered";
        let text = "--output=jsonpath={.items[*].note}{.items[*].regarding.name}";
        let event = namespace.kubectl(&["get", "events.events.k8s.io", of_orders, text]);
        let by = format!("system:serviceaccount:{own}:looker");
        if [&by, worker].iter().all(|words| event.contains(*words)) { Ok(()) } else { Err(event) }
    });
    namespace.until_holds("another worker in its place", || {
        let now = pods(&namespace);
        if now.iter().any(|pod| pod == worker) { Err(now.join(" ")) } else { Ok(()) }
    });
}

/// A user of the viewer's role in all namespaces: it sees everything, and orders nothing.
#[test]
fn a_viewer_of_all_namespaces_sees_everything_and_orders_nothing() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("viewed");
    namespace.apply(&list(cluster(4)));
    namespace.apply(&deployment(&namespace, 1, &[]));
    // It waits for the first worker of its class.
    let spec = json!({ "documentsPerSecond": 10, "workers": { "only": { "class": "green" } } });
    namespace.apply(&list([
        object("WorkerClass", "green", json!({ "capacity": 15, "maxReplicas": 2 })),
        object("Pipeline", "first", spec),
    ]));
    namespace.until("wc/builds", ".status.jobs.running", "2");
    let (own, access) = (&**namespace, &namespace.access);
    namespace.kubectl(&["create", "serviceaccount", "viewer"]);
    let account = format!("--serviceaccount={own}:viewer");
    let role = "--clusterrole=leasehold-viewer";
    namespace.kubectl(&["create", "clusterrolebinding", own, role, &account]);
    let leasehold = |line: &str| access.leasehold(&format!("{own}/viewer"), line);
    let said = |line: &str| {
        let answer = until_ok(line, || leasehold(line));
        println!("$ leasehold {line}\n{answer}");
        answer
    };
    let worker = &pods(&namespace)[0];
    for (line, words) in [
        ("status", "leads term"),
        ("status", &format!("{own}/builds")),
        ("clusters", &format!("{own}/builds")),
        ("workers", worker),
        ("sets", &format!("{own}/feeds")),
        (&format!("streams {own}/feeds"), worker),
        ("pipelines", &format!("{own}/first")),
        ("classes", &format!("{own}/green")),
        ("version", "coordinator"),
        ("events --since 10m", worker),
        (&format!("explain cluster {own}/builds"), "builds"),
        (&format!("explain worker {own}/builds/{worker}"), "has its share"),
        (&format!("explain stream {own}/feeds/feed-1"), worker),
        (&format!("explain pipeline {own}/first"), "first"),
    ] {
        let answer = said(line);
        assert!(answer.contains(words), "no {words:?}: {answer}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let edited = folder.path().join("edited.yaml");
    let document = |mut object: Value| {
        object["metadata"]["namespace"] = json!(own);
        format!("---\n{object:#}\n")
    };
    std::fs::write(&edited, cluster(1).map(document).concat()).expect("a file");
    let changes = format!("WorkerCluster {own}/builds changes");
    // On a busy machine its agent may lose its connection for a moment.
    namespace.until_holds("a plan of the edit", || {
        let plan = leasehold(&format!("plan -f {}", edited.display()))?;
        match [&*changes, worker, "1 slot in use now"].iter().find(|words| !plan.contains(**words))
        {
            Some(words) => Err(format!("no {words:?}: {plan}")),
            None => Ok(()),
        }
    });
    let refused = leasehold(&format!("drain {own}/builds/{worker}")).expect_err("only a viewer");
    let missing = "viewer may not create workerclusters/drain.leasehold.dev";
    assert!(refused.contains(missing), "{refused}");
    namespace.kubectl(&["delete", "clusterrolebinding", own]);
}
