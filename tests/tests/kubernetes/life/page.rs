//! `leasehold dashboard` on Kubernetes: the page shows what its caller may see.

use std::process::Command;

use serde_json::json;
use tests::browser::Browser;
use tests::kube::{Access, RealInstallation};
use tests::process::{Process, eventually, free_address};
use tests::toolbox;

use super::{cluster, deployment, pods};

/// The dashboard of a service account.
struct Dashboard {
    process: Process,
    _folder: tempfile::TempDir,
}

impl Dashboard {
    fn start(access: &Access, account: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(["dashboard", "--listen", &free_address().to_string()]);
        command.args(["--service-account", account]).args(more);
        command.env("KUBECONFIG", access.kubeconfig());
        let process = Process::start(&mut command, &folder.path().join("dashboard.log"));
        Self { process, _folder: folder }
    }

    /// The address that it prints.
    fn address(&self) -> String {
        eventually("the page's address", || {
            let log = self.process.log();
            let address = log.split_once("The fleet: ")?.1.lines().next()?;
            Some(address.to_owned())
        })
    }
}

#[test]
fn the_dashboard_shows_the_one_cluster_that_its_caller_may_read() {
    let Some(installation) = RealInstallation::shared() else { return };
    let Some(browser) = Browser::start("the page on Kubernetes") else { return };
    let namespace = installation.namespace("seen");
    namespace.apply(&cluster(4, ""));
    namespace.apply(&deployment(&namespace, 1, &[]));
    namespace.until("wc/builds", ".status.jobs.running", "2");
    let (own, access) = (namespace.name(), installation.cluster().access());
    namespace.kubectl(&["create", "serviceaccount", "looker"]);
    let account = format!("--serviceaccount={own}:looker");
    let role = "--clusterrole=leasehold-viewer";
    namespace.kubectl(&["create", "rolebinding", "look", role, &account]);
    let (account, builds) = (format!("{own}/looker"), format!("{own}/builds"));
    let worker = &pods(&namespace)[0];

    let refused = access.leasehold(&account, "dashboard").expect_err("it may not read everything");
    assert!(refused.contains("may not get workerclusters.leasehold.dev"), "{refused}");

    let dashboard = Dashboard::start(access, &account, &["--cluster", &builds]);
    browser.open(&dashboard.address());
    let cell = "return document.querySelector(arguments[0])?.dataset.running === '2'";
    let named = format!("[data-worker=\"{builds}/{worker}\"]");
    browser.until("the worker with its jobs", cell, &[json!(named)]);
    let scope = "return document.querySelector('#leader').textContent === arguments[0]";
    browser.until("what is shown", scope, &[json!(format!("only {builds} is shown"))]);
    let is_alone = "return [...document.querySelectorAll('[data-worker]')].every(
        cell => cell.dataset.worker.startsWith(arguments[0]))";
    browser.until("no other cluster's workers", is_alone, &[json!(format!("{builds}/"))]);
    browser.click(&named);
    let explained = "return document.querySelector('#explanation [data-part=summary]')?.textContent
        .startsWith(`${arguments[0]} has its share`)";
    browser.until("an explanation", explained, &[json!(format!("{builds}/{worker}"))]);

    // A worker that joins later is seen as it comes.
    namespace.kubectl(&["scale", "deployment/builds", "--replicas=2"]);
    let two = "return document.querySelectorAll('[data-worker]').length === 2";
    browser.until("the second worker", two, &[]);
}
