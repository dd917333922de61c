//! A cluster before an installation, and one that is not there.

use std::process::{Command, Stdio};

use serde_json::json;
use tests::kube::TokenFor;
use tests::process::free_address;
use tests::toolbox;

use super::super::installed::{ExclusiveControlPlane, remove};
use super::fixture::{check, check_as_text, definition};
use super::installation::is_documented;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preflight_check_reports_whether_installation_is_possible() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let found = check(access, &["--pre"]);
    assert_eq!((found.that("fail"), found.that("warn")), (vec![], vec![]), "{:#}", found.report);
    assert_eq!(found.code, Some(0));
    is_documented(&found);
    println!("{}", check_as_text(access, &["--pre"]));
    // Without one, only that is said.
    let found = check(access, &[]);
    assert_eq!((found.that("fail"), found.code), (vec!["installed"], Some(1)));
    // A user without rights.
    let token = TokenFor {
        namespace: "default",
        service_account: "default",
        audience: None,
        pod: None,
        seconds: 3_600,
    };
    let token = access.token(token).await.expect("a token");
    let folder = tempfile::tempdir().expect("a folder");
    let no_rights = access.with_token(&token, &folder.path().join("kubeconfig"));
    let found = check(&no_rights, &["--pre"]);
    assert_eq!(found.that("fail"), ["pre-rights", "pre-give-rights"], "{:#}", found.report);
    assert_eq!(found.code, Some(1));
    let rights = found.line("pre-rights")["problems"].to_string();
    assert!(rights.contains("you may not get customresourcedefinitions"), "{rights}");
    // A kind of an older version.
    let older = definition("leasehold.dev", "StreamSet", "streamsets", "v1alpha1");
    access.apply(&older.to_string());
    let found = check(access, &["--pre"]);
    assert_eq!((found.that("fail"), found.code), (vec!["pre-kinds"], Some(1)));
    let mend = found.line("pre-kinds")["problems"][0]["run"][0].as_str().expect("a command");
    access.try_shell(mend, toolbox::root()).expect("it is done");
    let found = check(access, &["--pre"]);
    assert_eq!((found.that("fail"), found.code), (vec![], Some(0)), "{:#}", found.report);
    // An installation in another namespace.
    let injector = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "leasehold-injector" },
        "webhooks": [{
            "name": "injector.leasehold.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "service": { "namespace": "other", "name": "leasehold" } },
            "objectSelector": { "matchLabels": { "leasehold.dev/nowhere": "true" } },
            "sideEffects": "None",
        }],
    });
    access.apply(&injector.to_string());
    let found = check(access, &["--pre"]);
    assert_eq!((found.that("fail"), found.code), (vec!["pre-other"], Some(1)));
    let problem = found.line("pre-other")["problems"][0]["wrong"].to_string();
    assert!(problem.contains("is installed in namespace other"), "{problem}");
    access.kubectl(&["delete", "mutatingwebhookconfiguration/leasehold-injector"]);
    let found = check(access, &["--pre"]);
    assert_eq!((found.that("fail"), found.code), (vec![], Some(0)), "{:#}", found.report);
    let kinds = toolbox::root().join("deploy/crds");
    remove(access, &["--kustomize", kinds.to_str().expect("UTF-8")]);
}

#[test]
fn an_unreachable_api_server_is_one_clear_error() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let file = std::fs::read_to_string(turn.access().kubeconfig()).expect("a kubeconfig");
    let nowhere = free_address();
    let there = turn.url();
    assert!(file.contains(&there), "{file}");
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = folder.path().join("kubeconfig");
    let text = file.replace(&there, &format!("https://{nowhere}"));
    std::fs::write(&wrong, text).expect("written");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(["check", "--kubeconfig"]).arg(&wrong).args(arguments);
        command.stdin(Stdio::null()).output().expect("the program starts")
    };
    for arguments in [&["--pre"][..], &[]] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert_eq!(text.matches("FAIL").count(), 1, "{text}");
        assert!(text.contains(&nowhere.to_string()) && text.contains("refused"), "{text}");
    }
    let output = run(&["--context", "other"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("no cluster is configured"), "{text}");
    assert_eq!(run(&["--timeout", "soon"]).status.code(), Some(2));
    assert_eq!(run(&["--nonsense"]).status.code(), Some(2));
}
