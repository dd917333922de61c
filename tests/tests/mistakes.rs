//! Mistakes on a command line that everything starts with: what is said names what is wrong and
//! what to do.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use tests::certificates::{authority, signed};
use tests::process::{Coordinator, Process, Replica, eventually, free_address, get};
use tests::toolbox;

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 4, maxJobsPerWorker: 2}
";

/// An agent that dials `coordinator`, with `more` flags.
fn agent(folder: &Path, coordinator: &str, more: &[&str]) -> Process {
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["run", "--coordinator", coordinator, "--cluster", "builds", "--worker", "w"]);
    command.args(["--listen", &free_address().to_string(), "--state-dir"]);
    command.arg(folder.join("state-w")).args(more);
    Process::start(&mut command, &folder.join("w.log"))
}

/// Waits for a line of the log with this in it.
fn says(process: &Process, words: &str) -> String {
    eventually(words, || process.log().lines().find(|line| line.contains(words)).map(str::to_owned))
}

#[test]
fn a_missing_manifest_folder_is_reported_at_every_start() {
    let first = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let folder = first.folder();
    eventually("what was last good", || folder.join("state/manifests.good").exists().then_some(()));
    let manifests = folder.join("manifests");
    std::fs::rename(&manifests, folder.join("moved")).expect("it is there");
    let addresses = || [free_address(), free_address()];
    let later = Replica::start_at(folder, "later", addresses(), &[]);
    let line = says(&later.process, "manifest problem");
    let named = format!("file=\"{}\"", manifests.display());
    assert!(line.contains("WARN") && line.contains(&named), "{line}");

    let empty = tempfile::tempdir().expect("a folder");
    let mut never = Replica::start_at(empty.path(), "never", addresses(), &[]);
    assert_eq!(never.process.wait().code(), Some(1));
    let log = never.process.log();
    let named = empty.path().join("manifests").display().to_string();
    assert!(log.contains("error: --manifests") && log.contains(&named), "{log}");
}

#[test]
fn a_coordinator_without_a_cluster_says_that_no_worker_can_join() {
    const NO_CLUSTER: &str = "no WorkerCluster is in force, so no worker can join";
    let folder = tempfile::tempdir().expect("a folder");
    let manifests = folder.path().join("manifests");
    std::fs::create_dir(&manifests).expect("a folder");
    let addresses = [free_address(), free_address()];
    let replica = Replica::start_at(folder.path(), "coordinator", addresses, &[]);
    let line = says(&replica.process, NO_CLUSTER);
    let named = format!("add one to the folder {}", manifests.display());
    assert!(line.contains("WARN") && line.contains(&named), "{line}");
    std::fs::write(manifests.join("builds.yaml"), MANIFESTS).expect("a manifest");
    let worker = agent(folder.path(), &replica.grpc.to_string(), &[]);
    says(&worker, "welcomed");
    let log = replica.process.log();
    assert_eq!(log.matches(NO_CLUSTER).count(), 1, "{log}");
}

/// Waits for the end of a program that fails, and returns its log.
fn failed(mut process: Process) -> String {
    assert_eq!(process.wait().code(), Some(1), "{}", process.log());
    process.log()
}

#[test]
fn a_program_refuses_the_state_folder_of_the_other_and_a_file() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let folder = coordinator.folder();
    let own = agent(folder, &coordinator.grpc.to_string(), &[]);
    says(&own, "welcomed");
    drop(own);
    let state_dir = |name: &str| folder.join(name).display().to_string();
    std::fs::write(folder.join("file"), "").expect("a file");
    let start = |program: &str, flags: &[&str]| {
        let mut command = Command::new(toolbox::binary(program));
        failed(Process::start(command.arg("run").args(flags), &folder.join("refused.log")))
    };
    let [grpc, http] = [free_address(), free_address()].map(|address| address.to_string());
    let manifests = state_dir("manifests");
    let agent = |state: &str| {
        let flags = ["--coordinator", &grpc, "--cluster", "builds", "--worker", "w"];
        start("leasehold-agent", &[&flags[..], &["--state-dir", state]].concat())
    };
    let coordinator = |state: &str, manifests: &str| {
        let flags = ["--listen", &grpc, "--http-listen", &http, "--manifests", manifests];
        start("leasehold-coordinator", &[&flags[..], &["--state-dir", state]].concat())
    };
    for (log, words) in [
        (agent(&state_dir("state")), "is the state folder of coordinators"),
        (agent(&state_dir("file")), "is a file: expected a folder"),
        (coordinator(&state_dir("state-w"), &manifests), "it is the state folder of an agent"),
        (coordinator(&state_dir("file"), &manifests), "it is a file: expected a folder"),
        (coordinator(&state_dir("new"), &state_dir("file")), "is a file: expected a folder"),
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(!folder.join("state/lock").exists(), "an agent wrote in the coordinators' folder");
    assert!(!folder.join("state-w/epochs").exists(), "a coordinator wrote in an agent's folder");
}

#[test]
fn the_http_port_reports_that_it_does_not_serve_grpc() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    eventually("readiness", || get(coordinator.http, "/readyz").filter(|(code, _)| *code == 200));
    let dialled = agent(coordinator.folder(), &coordinator.http.to_string(), &[]);
    let line = says(&dialled, "no session with the coordinator");
    let port = format!("gRPC is served on port {}", coordinator.grpc.port());
    assert!(line.contains("health and metrics (--http-listen)") && line.contains(&port), "{line}");
    assert!(!line.contains("compression"), "{line}");
    let (_, missing) = get(coordinator.http, "/nothing").expect("it answers");
    assert!(missing.contains("/readyz"), "people read the paths: {missing}");
}

/// Writes an authority, a certificate that it has signed, its key and a token into files.
fn write_certificates(folder: &Path) {
    let ca = authority();
    let (cert, key) = signed(&ca, "localhost", None);
    for (name, text) in [
        ("ca.pem", ca.pem()),
        ("cert.pem", cert),
        ("key.pem", key),
        ("token", "a.b.c".to_owned()),
        ("empty.pem", String::new()),
    ] {
        std::fs::write(folder.join(name), text).expect("a file");
    }
}

#[test]
fn a_wrong_file_of_tls_or_of_a_token_is_named_with_its_flag() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    write_certificates(folder);
    let file = |name: &str| folder.join(name).display().to_string();
    let client = |[ca, cert, key, token]: [&str; 4]| {
        [("ca", ca), ("cert", cert), ("key", key)]
            .map(|(flag, name)| [format!("--tls-{flag}"), file(name)])
            .into_iter()
            .flatten()
            .chain(["--token-file".to_owned(), file(token)])
            .collect::<Vec<_>>()
    };
    let run = |program: &str, base: &[&str], flags: &[String]| {
        let mut command = Command::new(toolbox::binary(program));
        failed(Process::start(command.args(base).args(flags), &folder.join("failed.log")))
    };
    let address = free_address().to_string();
    let agent = ["run", "--cluster", "builds", "--worker", "w", "--coordinator", &address];
    let agent = [&agent[..], &["--listen", "127.0.0.1:0"]].concat();
    let person = ["status", "--coordinator", &address];
    for (files, words) in [
        (["no.pem", "cert.pem", "key.pem", "token"], ["--tls-ca", "no.pem", "No such file"]),
        (["key.pem", "cert.pem", "key.pem", "token"], ["--tls-ca", "key.pem", "a private key"]),
        (["ca.pem", "empty.pem", "key.pem", "token"], ["--tls-cert", "empty.pem", "is empty"]),
        (["ca.pem", "cert.pem", "ca.pem", "token"], ["--tls-key", "ca.pem", "a certificate"]),
        (["ca.pem", "cert.pem", "key.pem", "no"], ["--token-file", "/no", "No such file"]),
        (["ca.pem", "cert.pem", "key.pem", "empty.pem"], ["--token-file", "empty.pem", "token"]),
    ] {
        for (program, base) in [("leasehold-agent", &agent[..]), ("leasehold", &person)] {
            let log = run(program, base, &client(files));
            assert!(words.iter().all(|word| log.contains(word)), "{program} {words:?}: {log}");
        }
    }
    let base = ["run", "--manifests", ".", "--state-dir", ".", "--listen", &address];
    for ([cert, key], words) in [
        (["no.pem", "key.pem"], ["cannot read --tls-cert", "no.pem", "No such file"]),
        (["key.pem", "key.pem"], ["--tls-cert", "expected a certificate", "has a private key"]),
        (["cert.pem", "cert.pem"], ["--tls-key", "expected a private key", "has a certificate"]),
    ] {
        let flags = ["--tls-cert".into(), file(cert), "--tls-key".into(), file(key)];
        let log = run("leasehold-coordinator", &base, &flags);
        assert!(words.iter().all(|word| log.contains(word)), "{words:?}: {log}");
    }
}

#[test]
fn a_port_without_tls_is_named_to_those_who_expect_it() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let folder = coordinator.folder();
    write_certificates(folder);
    let (address, ca) = (coordinator.grpc.to_string(), folder.join("ca.pem").display().to_string());
    eventually("readiness", || get(coordinator.http, "/readyz").filter(|(code, _)| *code == 200));
    let mut command = Command::new(toolbox::binary("leasehold"));
    command.args(["status", "--coordinator", &address, "--tls-ca", &ca]);
    let said = failed(Process::start(&mut command, &folder.join("status.log")));
    assert!(
        said.contains(&format!("the port {address} does not use TLS: leave --tls-ca")),
        "{said}"
    );
    assert!(said.contains("--tls-cert") && !said.contains("no coordinator answers"), "{said}");
    let agent = agent(folder, &address, &["--tls-ca", &ca]);
    let line = says(&agent, "no session with the coordinator");
    assert!(line.contains("this port does not use TLS"), "{line}");
    assert!(line.contains("or remove --tls-ca"), "{line}");
}

#[test]
fn a_port_in_use_is_reported_with_the_flag_to_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = other.local_addr().expect("its address").to_string();
    for flag in ["--listen", "--health-listen"] {
        let mut command = Command::new(toolbox::binary("leasehold-agent"));
        command.args(["run", "--coordinator", &taken, "--cluster", "builds", "--worker", "w"]);
        command.env("LEASEHOLD_LISTEN", "127.0.0.1:0").args([flag, &taken]);
        let log = failed(Process::start(&mut command, &folder.path().join("agent.log")));
        let next = format!("by another agent: stop that one, or set {flag} to");
        assert!(log.contains("in use") && log.contains(&next), "{log}");
    }
}

#[test]
fn an_ignored_token_flag_logs_a_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    write_certificates(folder.path());
    std::fs::create_dir(path("manifests")).expect("a folder");
    std::fs::write(path("manifests/builds.yaml"), MANIFESTS).expect("a manifest");
    let file = |name: &str| path(name).display().to_string();
    let addresses = [free_address(), free_address()];
    let tls = ["--tls-cert", &file("cert.pem"), "--tls-key", &file("key.pem")];
    let replica = Replica::start_at(folder.path(), "coordinator", addresses, &tls);
    let localhost = |port: u16| format!("localhost:{port}");
    let flags = ["--tls-ca", &file("ca.pem"), "--token-file", &file("token")];
    let shown = agent(folder.path(), &localhost(replica.grpc.port()), &flags);
    says(&shown, "welcomed");
    let line = says(&shown, "--token-file has no effect");
    assert!(line.contains("WARN") && line.contains("ignores tokens"), "{line}");
    drop(shown);
    let plain = agent(folder.path(), &localhost(replica.http.port()), &flags);
    says(&plain, "this port does not use TLS");
    drop(plain);
    let without = agent(folder.path(), &localhost(replica.grpc.port()), &flags[..2]);
    says(&without, "welcomed");
    assert!(!without.log().contains("has no effect"), "{}", without.log());
}
