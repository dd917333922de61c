//! The command line, which asks a fleet on Kubernetes through the API server.

use std::process::{Command, Stdio};

use tests::kube::RealInstallation;
use tests::process::eventually;
use tests::toolbox;

use super::{cluster, deployment, pods};

/// A user with a kubeconfig, in the name of a service account: it sees what the account may see,
/// and a drain needs another role.
#[test]
fn the_command_line_asks_with_the_rights_of_a_service_account() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("asked");
    namespace.apply(&cluster(4, ""));
    namespace.apply(&deployment(&namespace, 1, &[]));
    namespace.until("wc/builds", ".status.jobs.running", "2");
    let own = namespace.name();
    let bind = |role: &str| {
        let role = format!("--clusterrole={role}");
        let account = format!("--serviceaccount={own}:looker");
        namespace.kubectl(&["create", "rolebinding", &role[14..], &role, &account]);
    };
    namespace.kubectl(&["create", "serviceaccount", "looker"]);
    let leasehold = |line: &str| {
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(line.split(' ')).args(["--service-account", &format!("{own}/looker")]);
        command.env("KUBECONFIG", installation.cluster().access().kubeconfig());
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    };
    let workers = format!("workers {own}/builds -o name");
    // A busy API server may be too slow for the command line's patience.
    namespace.until_holds("a refusal that names the right", || match leasehold(&workers) {
        Err(refused) if refused.contains("get workerclusters.leasehold.dev") => Ok(()),
        other => Err(format!("{other:?}")),
    });

    bind("leasehold-viewer");
    let worker = &pods(&namespace)[0];
    let seen = eventually("the worker", || leasehold(&workers).ok().filter(|it| !it.is_empty()));
    assert_eq!(seen, format!("{own}/builds/{worker}\n"));
    let explained =
        leasehold(&format!("explain worker {own}/builds/{worker}")).expect("a sentence");
    assert!(explained.starts_with(&format!("{own}/builds/{worker} has its share")), "{explained}");
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
    namespace.until_holds("another worker in its place", || {
        let now = pods(&namespace);
        if now.iter().any(|pod| pod == worker) { Err(now.join(" ")) } else { Ok(()) }
    });
}
