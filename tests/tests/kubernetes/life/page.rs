//! `leasehold dashboard` on Kubernetes: the page shows what its caller may see.

use serde_json::json;
use tests::browser::Browser;
use tests::command_line::Dashboard;
use tests::kube::{RealInstallation, list, object};

use super::{cluster, deployment, pods};

#[test]
fn the_dashboard_shows_the_one_cluster_that_its_caller_may_read() {
    let Some(installation) = RealInstallation::shared() else { return };
    let Some(browser) = Browser::start("the page on Kubernetes") else { return };
    let namespace = installation.namespace("seen");
    namespace.apply(&list(cluster(4)));
    namespace.apply(&deployment(&namespace, 1, &[]));
    namespace.until("wc/builds", ".status.jobs.running", "2");
    let (own, access) = (&**namespace, &namespace.access);
    namespace.kubectl(&["create", "serviceaccount", "looker"]);
    let account = format!("--serviceaccount={own}:looker");
    let role = "--clusterrole=leasehold-viewer";
    namespace.kubectl(&["create", "rolebinding", "look", role, &account]);
    let (account, builds) = (format!("{own}/looker"), format!("{own}/builds"));
    let worker = &pods(&namespace)[0];

    let refused = access.leasehold(&account, "dashboard").expect_err("it may not read everything");
    assert!(refused.contains("may not get workerclusters.leasehold.dev"), "{refused}");

    let dashboard = Dashboard::start(|command| {
        command.args(["--service-account", &account, "--cluster", &builds]);
        command.env("KUBECONFIG", access.kubeconfig());
    });
    browser.open(&dashboard.page());
    let cell = "return document.querySelector(arguments[0])?.dataset.running === '2'";
    let named = format!("[data-worker=\"{builds}/{worker}\"]");
    browser.until("the worker with its jobs", cell, &[json!(named)]);
    let scope = "return document.querySelector('#leader').textContent === arguments[0]";
    browser.until("what is shown", scope, &[json!(format!("only {builds} is shown"))]);
    browser.click(&named);
    let explained = "return document.querySelector('#explanation [data-part=summary]')?.textContent
        .startsWith(`${arguments[0]} has its share`)";
    browser.until("an explanation", explained, &[json!(format!("{builds}/{worker}"))]);

    // A worker that joins later is seen as it comes.
    namespace.kubectl(&["scale", "deployment/builds", "--replicas=2"]);
    let two = "return document.querySelectorAll('[data-worker]').length === 2";
    browser.until("the second worker", two, &[]);

    // A page that is opened anew shows no other cluster, although the caller may read it, too.
    let spec = json!({ "maxJobs": 2, "maxJobsPerWorker": 1 });
    namespace.apply(&object("WorkerCluster", "green", spec));
    namespace.until("wc/green", ".status.inForceGeneration", "1");
    browser.open("about:blank");
    browser.open(&dashboard.page());
    browser.until("both workers", two, &[]);
    let clusters = "return [...document.querySelectorAll('[data-cluster]')]
        .map(card => card.dataset.cluster)";
    assert_eq!(browser.script(clusters, &[]), json!([builds]));
}
