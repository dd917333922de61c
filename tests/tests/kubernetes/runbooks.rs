//! The runbooks' commands for Kubernetes, copied out of the pages and typed as they stand, beside a
//! real installation with a real node. They only look: what other tests have stays as it is.

use serde_json::json;
use tests::kube::{RealInstallation, list, names, object};
use tests::process::until_ok;
use tests::runbooks::{self, Place};
use tests::toolbox;

use super::life::{cluster, deployment};

/// It goes on until it is interrupted, at a port that another program of this machine may have.
const NOT_TYPED: &str = " port-forward ";

/// It says by its exit code alone that all is well.
const SILENT: &str = "/leasehold-agent probe";

/// The objects that NAME stands for, by their kind.
const NAMES: [(&str, &str); 4] =
    [("wc", "builds"), ("ss", "feeds"), ("wcl", "green"), ("pl", "first")];

/// The command with the namespace, the pod, its node and the objects of this test.
fn in_place(command: &str, [namespace, pod, node]: [&str; 3]) -> String {
    let mut line =
        command.replace("NAMESPACE", namespace).replace("POD", pod).replace("NODE", node);
    for (kind, name) in NAMES {
        line = line.replace(&format!(" {kind} NAME"), &format!(" {kind} {name}"));
    }
    assert!(!line.contains(" NAME"), "what is NAME in {command}?");
    line
}

#[test]
fn every_command_of_the_runbooks_for_kubernetes_works() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("runbooks");
    namespace.apply(&list(cluster(4)));
    namespace.apply(&deployment(&namespace, 1, &[]));
    namespace.until("wc/builds", ".status.jobs.running", "2");
    // They come after the pod: it belongs to the only fleet of its namespace.
    let spec = json!({ "documentsPerSecond": 10, "workers": { "only": { "class": "green" } } });
    namespace.apply(&list([
        object("WorkerClass", "green", json!({ "capacity": 15, "maxReplicas": 2 })),
        object("Pipeline", "first", spec),
    ]));
    let (own, access) = (&**namespace, &namespace.access);
    let pod = &names(&namespace.pods())[0];
    let node = namespace.field(&format!("pod/{pod}"), ".spec.nodeName");
    let programs = toolbox::binary("leasehold");
    let programs = programs.parent().expect("a folder").display();
    // A check that finds something exits with 1.
    let leasehold = format!("leasehold() {{ {programs}/leasehold \"$@\" || [ $? -eq 1 ]; }}\n");
    let mut typed = 0;
    for command in runbooks::commands() {
        if command.place != Place::Kubernetes || command.text.contains(NOT_TYPED) {
            continue;
        }
        let line = in_place(&command.text, [own, pod, &node]);
        // A search in what kubectl shows may find nothing; kubectl itself succeeds.
        let looks = line.split(" | ").next().unwrap_or(&line);
        let shell = |line: &str| access.try_shell(&format!("{leasehold}{line}"), toolbox::root());
        let shown = until_ok(&command.text, || shell(looks));
        println!("$ {looks}\n{shown}");
        let is_of_object = ["NAME", "POD", "NODE"].iter().any(|name| command.text.contains(name));
        let may_be_silent = !is_of_object || looks.contains(SILENT);
        assert!(may_be_silent || !shown.trim().is_empty(), "{looks}: shows nothing");
        if looks != line {
            until_ok(&command.text, || shell(&format!("{line} || [ $? -eq 1 ]")));
        }
        typed += 1;
    }
    assert!(typed > 0, "no page has a command for Kubernetes");
}
