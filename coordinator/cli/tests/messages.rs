//! Errors and warnings of the program. After an error stdout is empty.

mod shared;

use std::io::Read;
use std::process::Stdio;

use shared::{leasehold, output, run, stderr, testdata};

const POD: &str = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: w}]}\n";

/// The exit code and the error for a text on stdin; stdout must be empty.
fn failure(args: &[&str], input: &[u8]) -> (Option<i32>, String) {
    let output = run(args, input);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "all or nothing");
    (output.status.code(), stderr(&output))
}

#[test]
fn errors_name_file_document_line_and_field() {
    let cluster = "metadata: {labels: {leasehold.dev/cluster: c}}";
    let cases = [
        // Broken YAML, in a later document.
        (format!("{POD}---\na: [1,\nb: }}\n"), "stdin: line 5, document 2: "),
        ("a: \"open\n".into(), "stdin: line "),
        ("a: *nowhere\n".into(), "stdin: line 1, document 1: reference to unknown value"),
        // No containers.
        (
            format!(
                "{POD}---\nkind: Deployment\nmetadata: {{name: web}}\nspec: {{template: {{}}}}\n"
            ),
            "stdin: line 5, document 2: Deployment web: spec.template.spec.containers is missing",
        ),
        ("kind: Pod\nspec:\n  containers: []\n".into(), "Pod without a name: spec.containers"),
        // An annotation.
        (
            "kind: Pod\nmetadata:\n  name: p\n  annotations:\n    a: b\n    \
             config.leasehold.dev/imgae: x\nspec: {containers: [{name: w}]}\n"
                .into(),
            "stdin: line 6, document 1: Pod p: config.leasehold.dev/imgae is unknown; \
             did you mean config.leasehold.dev/image?",
        ),
        (
            "kind: Pod\nmetadata: {annotations: {config.leasehold.dev/file-path: 3}}\n\
             spec: {containers: [{name: w}]}\n"
                .into(),
            "write it in quotes",
        ),
        // A field.
        (
            format!("kind: Pod\n{cluster}\nspec:\n  containers:\n  - name: w\n    env: x\n"),
            "stdin: line 6, document 1: Pod without a name: spec.containers[0].env is not a list",
        ),
        (
            format!("kind: Pod\n{cluster}\nspec:\n  containers:\n  - {{name: w, name: x}}\n"),
            "stdin: line 5, document 1: duplicate mapping key: name not allowed here",
        ),
        // JSON after JSON.
        (
            "{\"kind\":\"Pod\",\"spec\":{\"containers\":[{\"name\":\"a\"}]}}\n\n{\"kind\":\"Pod\"}"
                .into(),
            "stdin: line 3, document 2: Pod without a name: spec.containers is missing",
        ),
        (
            "a: &a [*a, *a]\nkind: Pod\n".into(),
            "stdin: line 1, document 1: Recursive reference not allowed here",
        ),
    ];
    for (text, wanted) in cases {
        let args = ["inject", "-f", "-", "--cluster", "builds"];
        let (code, message) = failure(&args, text.as_bytes());
        assert_eq!(code, Some(1), "{message}");
        assert!(message.starts_with("error: ") && message.contains(wanted), "{message}\n{text}");
    }
    let (code, message) = failure(&["inject", "-f", "-"], POD.as_bytes());
    assert_eq!(code, Some(1));
    assert!(
        message.contains("line 2, document 1: Pod p: metadata.labels: leasehold.dev/cluster is")
    );
    let (_, message) = failure(&["uninject", "-f", "-"], b"a: 1\nb: \xff\n");
    assert!(message.contains("stdin: line 2 is not UTF-8"), "{message}");
}

#[test]
fn aliases_that_expand_beyond_the_limit_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    text.push_str(POD);
    let (code, message) = failure(&["inject", "-f", "-"], text.as_bytes());
    assert_eq!(code, Some(1));
    assert!(message.contains("too large"), "{message}");
}

#[test]
fn invalid_arguments_exit_with_2() {
    for (args, wanted) in [
        (vec!["inject"], "--filename"),
        (vec!["inject", "-f", "-", "--set", "adapter"], "NAME=VALUE"),
        (vec!["inject", "-f", "-", "--set", "adaptor=file"], "did you mean adapter?"),
        (vec!["inject", "-f", "-", "--set", "adapter=paper"], "use one of api"),
        (vec!["inject", "-f", "-", "--set", "worker=w"], "the pod's name decides it"),
        (vec!["inject", "-f", "-", "--set", "container=w"], "annotation of the pod"),
        (vec!["inject", "-f", "-", "--set", "memory-limit=64MB"], "64Mi"),
        (vec!["inject", "-f", "-", "--cluster", "ns/c"], "write c"),
        (vec!["inject", "-f", "-", "--cluster", "C"], "--cluster"),
        (vec!["inject", "-f", "-", "--drain-deadline", "5"], "30s"),
        (vec!["inject", "-f", "-", "--image", ""], "--image"),
        (vec!["explode"], "explode"),
    ] {
        let (code, message) = failure(&args, POD.as_bytes());
        assert_eq!(code, Some(2), "{args:?}: {message}");
        assert!(message.contains(wanted), "{args:?}: {message}");
    }
}

#[test]
fn files_and_folders_are_read_in_order_and_missing_ones_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (code, message) = failure(&["uninject", "-f", &path("none.yaml")], b"");
    assert!(code == Some(1) && message.contains("none.yaml"), "{message}");
    let (_, message) = failure(&["uninject", "-f", &path("")], b"");
    assert!(message.contains("no .yaml, .yml or .json file"), "{message}");
    for (name, text) in [("b.yml", "b: 1"), ("a.yaml", "a: 1\n"), ("c.txt", "no")] {
        std::fs::write(path(name), text).expect("it is written");
    }
    let all = output(&["uninject", "-f", &path(""), "-f", "-"], b"%YAML 1.2\n---\nc: 1\n");
    assert_eq!(String::from_utf8_lossy(&all), "a: 1\n---\nb: 1\n...\n%YAML 1.2\n---\nc: 1\n");
    let (_, message) = failure(&["uninject", "-f", "-", "-f", "-"], b"");
    assert!(message.contains("twice"), "{message}");
    std::fs::write(path("z.yaml"), "a: [").expect("it is written");
    let (_, message) = failure(&["uninject", "-f", &path("")], b"");
    assert!(message.contains("z.yaml: line "), "{message}");
}

#[test]
fn warnings_go_to_stderr_and_name_the_pod() {
    let args = ["inject", "-f", "-", "--cluster", "c", "--drain-deadline", "10m"];
    let warned = run(&args, POD.as_bytes());
    assert_eq!(warned.status.code(), Some(0));
    assert!(!warned.stdout.is_empty());
    let message = stderr(&warned);
    let wanted = "warning: stdin: document 1, Pod p: spec.terminationGracePeriodSeconds is 30 (the \
                 default), and a drain may take 600 s";
    assert!(message.starts_with(wanted), "{message}");
    let message = stderr(&run(&args, b"kind: Secret\n"));
    assert!(message.contains("nothing was injected"), "{message}");
    // A WorkerCluster says itself which cluster its pods are of, and how long a drain may take.
    let file = testdata().join("worker-cluster.yaml").display().to_string();
    let own = run(&["inject", "-f", &file], b"");
    assert!(stderr(&own).contains("600 s"), "{}", stderr(&own));
    let text = String::from_utf8_lossy(&own.stdout).into_owned();
    assert!(text.contains("leasehold.dev/cluster: builds"), "{text}");
    // A WorkerClass also says where its workers are reached, unless somebody else does.
    let file = testdata().join("worker-class.yaml").display().to_string();
    let text = |args: &[&str]| String::from_utf8(output(args, b"")).expect("UTF-8");
    let own = text(&["inject", "-f", &file]);
    let names = own.matches("leasehold.dev/cluster: green").count();
    let ports = own.matches("value: \"8080\"").count();
    assert_eq!((names, ports), (1, 1), "{own}");
    assert!(own.contains("leasehold.dev/cluster: blue"), "{own}");
    let given = text(&["inject", "-f", &file, "--set", "worker-port=9000"]);
    assert_eq!(given.matches("value: \"9000\"").count(), 2, "{given}");
}

#[test]
fn settings_reach_the_agent_unless_the_pod_has_its_own() {
    let pod = "kind: Pod\nmetadata:\n  annotations: {config.leasehold.dev/log-format: json}\n\
               spec: {containers: [{name: w}]}\n";
    let args = [
        ["inject", "-f", "-", "--cluster", "c", "--image", "mine:1"].as_slice(),
        &["--coordinator", "lh.ns.svc:1", "--set", "adapter=file", "--set", "log-format=text"],
        &["--set", "file-path=/leasehold/a=b.yml", "--set", "cpu-limit=1"],
    ]
    .concat();
    let text = String::from_utf8(output(&args, pod.as_bytes())).expect("UTF-8");
    for wanted in [
        "image: mine:1",
        "LEASEHOLD_COORDINATOR, value: lh.ns.svc:1",
        "LEASEHOLD_TLS_SERVER_NAME, value: lh.ns.svc",
        "LEASEHOLD_ADAPTER, value: file",
        "LEASEHOLD_FILE_PATH, value: /leasehold/a=b.yml",
        "LEASEHOLD_LOG_FORMAT, value: json",
        "cpu: \"1\"",
    ] {
        assert!(text.contains(wanted), "{wanted}:\n{text}");
    }
}

#[test]
fn an_invalid_address_of_the_coordinator_is_refused() {
    for (flag, value, wanted) in [
        ("--coordinator", "nowhere", "expected HOST:PORT"),
        ("--coordinator", "http://c:7400", "expected HOST:PORT"),
        ("--server-name", "", "--server-name"),
        ("--audience", "", "--audience"),
    ] {
        let args = ["inject", "-f", "-", "--cluster", "c", flag, value];
        let (code, message) = failure(&args, POD.as_bytes());
        assert!(code == Some(2) && message.contains(wanted), "{flag} {value:?}: {message}");
    }
    let args = ["inject", "-f", "-", "--cluster", "c", "--coordinator", "[fd00::1]:7400"];
    let out = String::from_utf8(output(&args, POD.as_bytes())).expect("UTF-8");
    assert!(out.contains("\"[fd00::1]:7400\"") && out.contains("value: fd00::1}"), "{out}");
}

#[test]
fn ignores_a_closed_stdout() {
    let many = format!("{POD}---\n").repeat(500);
    let mut child = leasehold()
        .args(["inject", "-f", "-", "--cluster", "c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, many.as_bytes()));
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0; 10]).expect("it begins to write");
    drop(stdout);
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it read everything");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains("panicked"));
}

#[cfg(unix)]
#[test]
fn help_names_kubectl_when_run_as_its_plugin() {
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("kubectl-leasehold");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leasehold"), &link).expect("a link");
    let help = std::process::Command::new(link).args(["inject", "--help"]).output().expect("help");
    let help = String::from_utf8(help.stdout).expect("UTF-8");
    assert!(help.contains("Usage: kubectl leasehold inject"), "{help}");
    assert!(help.contains("Examples:"), "{help}");
}

/// The same pod in objects of all kinds.
#[test]
fn a_short_grace_period_gets_a_warning_in_every_kind_of_workload() {
    let warned = |kind: &str, grace: &str, more: &str, args: &[&str]| {
        let template = format!(
            "template: {{metadata: {{labels: {{a: b}}}}, \
             spec: {{{grace}containers: [{{name: w}}]}}}}"
        );
        let text = match kind {
            "CronJob" => format!("spec: {{jobTemplate: {{spec: {{{template}}}}}}}"),
            _ => format!("spec: {{{template}}}"),
        };
        let text = format!("kind: {kind}\nmetadata: {{name: o}}\n{text}\n{more}");
        let args = [&["inject", "-f", "-", "--cluster", "builds"], args].concat();
        stderr(&run(&args, text.as_bytes()))
    };
    let cluster = "---\nkind: WorkerCluster\nmetadata: {name: builds}\n\
        spec: {maxJobs: 1, maxJobsPerWorker: 1, drain: {deadline: 10m}}\n";
    for kind in ["CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"] {
        for grace in ["", "terminationGracePeriodSeconds: 5, "] {
            for (more, args) in
                [("", vec![]), ("", vec!["--drain-deadline", "10m"]), (cluster, vec![])]
            {
                let message = warned(kind, grace, more, &args);
                let wanted = format!("{kind} o: spec.terminationGracePeriodSeconds is ");
                assert!(message.contains(&wanted), "{kind} {grace:?} {args:?}: {message:?}");
            }
        }
        let enough = "terminationGracePeriodSeconds: 601, ";
        assert_eq!(warned(kind, enough, cluster, &[]), "", "{kind}: its cluster says 10m");
        assert_eq!(warned(kind, enough, "", &["--drain-deadline", "10m"]), "", "{kind}");
        let always = "terminationGracePeriodSeconds: 7201, ";
        assert_eq!(warned(kind, always, "", &[]), "", "{kind}: it covers 2h");
    }
}
