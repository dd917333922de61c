//! The webhook that keeps pods with jobs from being evicted. Where nobody answers it, evictions
//! succeed, so nothing else shows that it is missing or that the API server does not trust it.

use leasehold_kube_api::names::EVICTIONS_WEBHOOK;
use serde_json::{Value, json};

use super::api::ApiClient;
use super::certificates::Bundle;
use super::expected::{list, objects, text};
use super::installation::Installation;
use super::report::{Finding, Problem, Report, patch};
use super::webhook::{Configured, check_trust};

pub(super) const FOLDER: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const KIND: &str = "ValidatingWebhookConfiguration";
/// Fields that must be as in the manifests. Path, caBundle, namespaceSelector and failurePolicy
/// differ between installations.
const FIXED: [&str; 3] = ["objectSelector", "rules", "sideEffects"];

/// The ValidatingWebhookConfiguration of this version.
pub(super) fn wanted() -> &'static Value {
    let found = objects().iter().find(|object| object["kind"] == KIND);
    found.expect("the manifests configure the webhook, as a test says")
}

/// The webhook in a configuration, with its index.
fn ours(there: &Value) -> Option<(usize, &Value)> {
    list(&there["webhooks"]).enumerate().find(|(_, webhook)| webhook["name"] == EVICTIONS_WEBHOOK)
}

/// Checks the webhook.
pub(super) async fn look(
    api: &ApiClient,
    installation: &Installation,
    trusted: Option<&Bundle>,
    report: &mut Report,
) {
    let mut finding = Finding::new("evictions", "pods that run jobs are not evicted");
    let name = text(&wanted()["metadata"]["name"]);
    match api.get(FOLDER, name).await {
        Ok(Some(there)) => configured(&mut finding, installation, &there, trusted),
        Ok(None) => missing(&mut finding, installation, format!("there is no {KIND} {name}")),
        Err(error) => finding.skip(error.text()),
    }
    report.add(finding);
}

fn missing(finding: &mut Finding, installation: &Installation, what: String) {
    let wrong = format!("{what}: evictions end pods whose jobs still run");
    finding.fail(Problem::new(wrong, "apply the overlay again").run(installation.apply()));
}

fn configured(
    finding: &mut Finding,
    installation: &Installation,
    there: &Value,
    trusted: Option<&Bundle>,
) {
    let name = text(&there["metadata"]["name"]);
    let Some((index, webhook)) = ours(there) else {
        let what = format!("{KIND} {name}: the webhook {EVICTIONS_WEBHOOK} is missing");
        return missing(finding, installation, what);
    };
    let (_, wanted) = ours(wanted()).expect("the manifests have it, as a test says");
    for field in FIXED.iter().filter(|field| {
        // The API server adds an empty selector.
        let is = Some(&webhook[**field]).filter(|value| **value != json!({}));
        is.unwrap_or(&Value::Null) != &wanted[**field]
    }) {
        let (is, should) = (&webhook[*field], &wanted[*field]);
        let wrong = format!("{KIND} {name}: {field} of {EVICTIONS_WEBHOOK} is {is}");
        let path = format!("/webhooks/{index}/{field}");
        let body = match should {
            Value::Null => json!([{ "op": "remove", "path": path }]),
            should => json!([{ "op": "add", "path": path, "value": should }]),
        };
        let object = format!("validatingwebhookconfiguration/{name}");
        finding.fail(Problem::new(wrong, "restore it").run(patch(&object, "json", &body)));
    }
    check_trust(finding, installation, &Configured { kind: KIND, there, index, webhook }, trusted);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_configure_the_webhook() {
        let (_, webhook) = ours(wanted()).unwrap();
        assert_eq!(webhook["failurePolicy"], "Ignore");
        assert!(!webhook["rules"].is_null() && webhook["objectSelector"].is_null());
    }
}
