//! The rules of the definitions as a real API server evaluates them, by the table of cases that
//! the check of manifests is tested with too (`coordinator/kube-api/tests/rules.rs`).

#[path = "../../../../coordinator/kube-api/testdata/rules/cases.rs"]
mod cases;

use kube::api::PostParams;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tests::kube::Cluster;

use self::cases::{Case, cases};
use super::{admit, defined, objects};

/// What the API server would answer to an update of a stored object.
async fn admit_update(client: &Client, namespace: &str, case: &Case) -> Result<(), String> {
    let old = case.old.as_ref().expect("a stored object");
    let api = objects(client, namespace, &case.kind);
    let mut stored: Value = old.clone();
    stored["metadata"] = json!({ "generateName": "case-" });
    let stored = serde_json::from_value(stored).expect("an object");
    let stored = api.create(&PostParams::default(), &stored).await.expect("a stored object");
    let mut object = case.object.clone();
    let version = stored.resource_version().expect("a version");
    object["metadata"] = json!({ "name": stored.name_any(), "resourceVersion": version });
    let object = serde_json::from_value(object).expect("an object");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let answer = api.replace(&stored.name_any(), &dry, &object).await;
    answer.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_gives_the_verdict_of_the_table() {
    let Some(access) = defined() else { return };
    let client = access.client().await;
    let namespace = Cluster::shared().expect("as before").namespace("rules");
    let mut wrong = Vec::new();
    for case in cases() {
        let answer = match &case.old {
            Some(_) => admit_update(&client, &namespace, &case).await,
            None => admit(&client, &case.object).await.map(|_| ()),
        };
        let shown = format!("{} {:?}: {}", case.kind, case.rule, case.object["spec"]);
        match (answer, case.accepted) {
            (Ok(()), true) => {}
            (Err(refusal), false) if refusal.contains(&case.rule) => {}
            (Ok(()), false) => wrong.push(format!("accepted: {shown}")),
            (Err(refusal), true) => wrong.push(format!("refused: {shown}: {refusal}")),
            (Err(refusal), false) => wrong.push(format!("another refusal: {shown}: {refusal}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
