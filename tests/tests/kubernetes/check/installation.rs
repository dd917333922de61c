//! Faults of the installation, planted while there is no leader to repair them.

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::json;
use tests::kube::{Access, RealInstallation};
use tests::toolbox;

use super::super::installed::ExclusiveControlPlane;
use super::fixture::{
    CheckFixture, CheckOutput, Fault, check, check_as_text, definition, until_all_is_well,
};

const OWN: &str = "leasehold-system";
const WEBHOOK: &str = "mutatingwebhookconfiguration/leasehold-injector";

fn fails<'a>(line: &'a str, says: &'a [&'a str]) -> Fault<'a> {
    Fault { line, result: "fail", says }
}

fn patch_json(access: &Access, object: &str, patch: &serde_json::Value) {
    let patch = patch.to_string();
    access.kubectl(&["--namespace", OWN, "patch", object, "--type=json", "--patch", &patch]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_passes_a_healthy_installation_and_reports_each_fault() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let mut fixture = CheckFixture::set(access).await;
    until_all_is_well(access);
    let found = check(access, &[]);
    assert_eq!((found.that("fail"), found.that("warn")), (vec![], vec![]), "{:#}", found.report);
    assert_eq!((&found.report["result"], found.code), (&json!("ok"), Some(0)));
    is_documented(&found);
    let shortest = found.line("deadline-shortest")["check"].as_str().expect("a text");
    assert!(shortest.contains("10m: drain.deadline of WorkerCluster workers-"), "{shortest}");
    let text = check_as_text(access, &[]);
    println!("{text}");
    assert!(text.is_ascii() && text.contains("All checks passed"), "{text}");
    // It would repair some of what follows by itself.
    fixture.coordinator.process.kill();
    fixture.ask_the_service();
    kinds(access);
    rights_and_replicas(access);
    autoscalers(access);
    webhook(access);
    published(access, &fixture);
    election_and_authority(access, &mut fixture).await;
    fixture.end().await;
}

/// Every reported line is documented.
pub(super) fn is_documented(found: &CheckOutput) {
    let document = toolbox::root().join("docs/CLI.md");
    let document = std::fs::read_to_string(document).expect("the document");
    for id in found.that("ok").into_iter().chain(found.that("skip")) {
        assert!(document.contains(&format!("`{id}`")), "docs/CLI.md does not document {id}");
    }
}

fn kinds(access: &Access) {
    access.kubectl(&["delete", "crd/streamsets.leasehold.dev"]);
    fails("kind-stream-set", &["no CustomResourceDefinition streamsets.leasehold.dev"])
        .comes_and_goes(access);
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/refresh";
    let older = json!([{ "op": "remove", "path": field }]);
    patch_json(access, "crd/streamsets.leasehold.dev", &older);
    fails("kind-stream-set", &["of another version", "spec.refresh is missing"])
        .comes_and_goes(access);
    let field = field.replace("refresh", "later");
    let newer = json!([{ "op": "add", "path": field, "value": { "type": "string" } }]);
    patch_json(access, "crd/streamsets.leasehold.dev", &newer);
    fails("kind-stream-set", &["spec.later is not in this version"]).comes_and_goes(access);
    for (name, line) in [
        ("workerclasses", "kind-worker-class"),
        ("pipelines", "kind-pipeline"),
        ("pipelinebindings", "kind-pipeline-binding"),
    ] {
        access.kubectl(&["delete", &format!("crd/{name}.leasehold.dev")]);
        let says = format!("no CustomResourceDefinition {name}.leasehold.dev");
        fails(line, &[&says]).comes_and_goes(access);
    }
}

fn rights_and_replicas(access: &Access) {
    let role = "clusterrole/leasehold-coordinator";
    for (resource, missing) in
        [("pods", "patch pods"), ("endpointslices", "create endpointslices.discovery.k8s.io")]
    {
        let rules = access.kubectl(&["get", role, "--output=json"]);
        let rules: serde_json::Value = serde_json::from_str(&rules).expect("a role");
        let rules = rules["rules"].as_array().expect("rules");
        let place = rules.iter().position(|rule| rule["resources"] == json!([resource]));
        let path = format!("/rules/{}", place.expect("the rule"));
        patch_json(access, role, &json!([{ "op": "remove", "path": path }]));
        fails("coordinator-rights", &["ClusterRole leasehold-coordinator", missing])
            .comes_and_goes(access);
    }
    let image = "coordinator=registry.invalid/leasehold/coordinator:0.9.0";
    access.kubectl(&[
        "--namespace",
        OWN,
        "set",
        "image",
        "deployment/leasehold-coordinator",
        image,
    ]);
    fails("coordinator-version", &["registry.invalid/leasehold/coordinator:0.9.0", "0.1.0"])
        .comes_and_goes(access);
    let selector = json!([{ "op": "add", "path": "/spec/selector/tier", "value": "none" }]);
    patch_json(access, "service/leasehold-coordinator", &selector);
    let says = &["its port `grpc` has no endpoints", "tier"];
    fails("service", says).comes_and_goes(access);
}

/// Without the right to see nodes; no autoscaler runs.
fn autoscalers(access: &Access) {
    access.kubectl(&["delete", "clusterrolebinding/leasehold-coordinator-nodes"]);
    access.kubectl(&["taint", "nodes", "--all", "ToBeDeletedByClusterAutoscaler:NoSchedule"]);
    let says = &["cluster-autoscaler (taint ToBeDeletedByClusterAutoscaler of node"];
    let unseen = Fault { line: "autoscalers", result: "warn", says };
    unseen.is_found(access);
    access.kubectl(&["taint", "nodes", "--all", "ToBeDeletedByClusterAutoscaler-"]);
    unseen.is_gone(access);
    let node_pools = definition("karpenter.sh", "NodePool", "nodepools", "v1");
    access.apply(&node_pools.to_string());
    let says = &["karpenter (kinds of karpenter.sh)"];
    Fault { line: "autoscalers", result: "warn", says }.comes_and_goes(access);
    access.kubectl(&["delete", "crd/nodepools.karpenter.sh"]);
}

fn webhook(access: &Access) {
    access.kubectl(&["delete", WEBHOOK]);
    fails("webhook", &["no MutatingWebhookConfiguration leasehold-injector"])
        .comes_and_goes(access);
    // As it was applied, the webhook has no CA bundle.
    fails("webhook-trust", &["caBundle holds no certificate"]).comes_and_goes(access);
    let other = authority(1, 4_000);
    let other = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, other);
    let path = "/webhooks/0/clientConfig/caBundle";
    patch_json(access, WEBHOOK, &json!([{ "op": "replace", "path": path, "value": other }]));
    fails("webhook-trust", &["caBundle does not hold the certificates of ConfigMap"])
        .comes_and_goes(access);
    let evictions = json!([{ "op": "remove", "path": "/webhooks/2" }]);
    patch_json(access, "validatingwebhookconfiguration/leasehold-validator", &evictions);
    let says = &["the webhook evictions.leasehold.dev is missing"];
    fails("evictions", says).is_mended_as_told(access);
    // As it was applied, it has no CA bundle either.
    fails("evictions", &["caBundle holds no certificate"]).comes_and_goes(access);
    let policy =
        json!([{ "op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore" }]);
    patch_json(access, WEBHOOK, &policy);
    fails("webhook", &["failurePolicy is \\\"Ignore\\\""]).comes_and_goes(access);
    let selector = json!([{ "op": "add", "path": "/spec/selector/tier", "value": "none" }]);
    patch_json(access, "service/leasehold-coordinator", &selector);
    fails("webhook-service", &["its port `webhook` has no endpoints"]).comes_and_goes(access);
    // No pod is behind the Service but played ones.
    fails("webhook-answers", &["the webhook does not answer"]).is_found(access);
}

fn published(access: &Access, fixture: &CheckFixture<'_>) {
    fixture.namespace.kubectl(&["delete", "configmap/leasehold-ca"]);
    fails("published-everywhere", &["no ConfigMap leasehold-ca in workers-"])
        .comes_and_goes(access);
    let other = json!({ "data": { "ca.crt": authority(1, 4_000) } }).to_string();
    fixture.namespace.kubectl(&["patch", "configmap/leasehold-ca", "--patch", &other]);
    fails("published-everywhere", &["differs from the one in leasehold-system"])
        .comes_and_goes(access);
}

async fn election_and_authority(access: &Access, fixture: &mut CheckFixture<'_>) {
    let lease = "lease/leasehold-coordinator";
    let long_ago = "2020-01-01T00:00:00.000000Z";
    let stale = json!([{ "op": "replace", "path": "/spec/renewTime", "value": long_ago }]);
    patch_json(access, lease, &stale);
    let over = fails("leader", &["no replica leads"]);
    over.is_mended_as_told(access);
    let expired = json!({ "data": {
        "tls.crt": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, authority(10, 5)),
    } });
    let patch = ["patch", "secret/leasehold-ca", "--patch", &expired.to_string()];
    access.kubectl(&[&["--namespace", OWN], &patch[..]].concat());
    let ended = fails("authority", &["tls.crt expired on"]);
    ended.is_mended_as_told(access);
    let missing = fails("authority", &["no Secret leasehold-ca"]);
    missing.is_mended_as_told(access);
    // What the restart of its pods does, which are played.
    fixture.start_again().await;
    over.is_gone(access);
    missing.is_gone(access);
    // The new authority is published, and trusted by the API server.
    fails("webhook-trust", &[]).is_gone(access);
    fails("webhook-answers", &[]).is_gone(access);
}

/// A certificate that began this many days ago and lasts this many.
fn authority(days_ago: i64, days: i64) -> String {
    let now = std::time::SystemTime::now();
    let day = std::time::Duration::from_secs(24 * 3_600);
    let from = now - day * u32::try_from(days_ago).expect("few days");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = from.into();
    params.not_after = (from + day * u32::try_from(days).expect("few days")).into();
    let key = KeyPair::generate().expect("a key");
    params.self_signed(&key).expect("a certificate").pem()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_passes_after_the_coordinator_repairs_a_fault() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let fixture = CheckFixture::set(access).await;
    let bundle = "/webhooks/0/clientConfig/caBundle";
    patch_json(access, WEBHOOK, &json!([{ "op": "remove", "path": bundle }]));
    fails("webhook-trust", &[]).is_gone(access);
    access.kubectl(&["--namespace", OWN, "delete", "secret/leasehold-ca"]);
    fails("authority", &[]).is_gone(access);
    fails("webhook-answers", &[]).is_gone(access);
    until_all_is_well(access);
    fixture.end().await;
}

/// On a node that runs the coordinator's pod, since that is asked.
#[test]
fn check_reports_a_leader_that_cannot_confirm_its_desired_state() {
    let Some(installation) = RealInstallation::start(1) else { return };
    let access = installation.cluster().access();
    let says = &["the desired state has not been confirmed for", "what was edited since"];
    let stale = Fault { line: "desired-state", result: "warn", says };
    stale.is_gone(access);
    access.kubectl(&["delete", "clusterrolebinding/leasehold-coordinator"]);
    stale.is_found(access);
    let overlay = toolbox::root().join("deploy/overlays/dev");
    access.kubectl(&["apply", "-k", overlay.to_str().expect("UTF-8")]);
    stale.is_gone(access);
}
