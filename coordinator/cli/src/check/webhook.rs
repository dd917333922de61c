//! The injection webhook: it is configured, the API server trusts it, and it answers. A dry run of
//! a pod that asks for a sidecar tests the whole.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use leasehold_injection::names::INJECT;
use leasehold_kube_api::names::{CA_CONFIG_MAP, CLUSTER_LABEL};
use leasehold_types::counted;
use serde_json::{Value, json};

use super::api::{ApiClient, ApiError};
use super::certificates::{Bundle, bundle};
use super::expected::{list, objects, text};
use super::fleet::{Fleet, sidecar};
use super::installation::{Installation, check_endpoints};
use super::report::{Finding, Problem, Report, patch};

pub(super) const FOLDER: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
/// The annotation by which cert-manager keeps the caBundle.
const CERT_MANAGER: &str = "cert-manager.io/inject-ca-from";
/// Fields that must be as in the manifests. Address, caBundle and namespaceSelector differ between
/// installations.
const FIXED: [&str; 5] =
    ["failurePolicy", "objectSelector", "reinvocationPolicy", "rules", "sideEffects"];

/// The MutatingWebhookConfiguration of this version.
pub(super) fn wanted() -> &'static Value {
    objects()
        .iter()
        .find(|object| object["kind"] == "MutatingWebhookConfiguration")
        .expect("the manifests configure the webhook, as a test says")
}

/// Checks the webhook.
pub(super) async fn look(
    api: &ApiClient,
    installation: &Installation,
    fleet: &Fleet,
    trusted: Option<&Bundle>,
    report: &mut Report,
) {
    let name = text(&wanted()["metadata"]["name"]);
    let mut finding = Finding::new("webhook", "the webhook is configured as in this version");
    match api.get(FOLDER, name).await {
        Ok(Some(there)) => {
            configured(&mut finding, installation, &there);
            report.add(finding);
            report.add(ca_bundle(installation, &there, trusted));
            report.add(webhook_service(api, installation, &there).await);
            report.add(dry_run(api, installation, fleet).await);
        }
        Ok(None) => {
            let wrong = format!(
                "there is no MutatingWebhookConfiguration {name}: pods that ask for a sidecar get \
                 none"
            );
            let fix = "apply the overlay again";
            finding.fail(Problem::new(wrong, fix).run(installation.apply()));
            report.add(finding);
        }
        Err(error) => {
            finding.skip(error.text());
            report.add(finding);
            report.add(dry_run(api, installation, fleet).await);
        }
    }
}

/// Leasehold's webhook in a configuration, with its index.
fn ours(there: &Value) -> Option<(usize, &Value)> {
    let name = &wanted()["webhooks"][0]["name"];
    list(&there["webhooks"]).enumerate().find(|(_, webhook)| webhook["name"] == *name)
}

fn configured(finding: &mut Finding, installation: &Installation, there: &Value) {
    let name = text(&there["metadata"]["name"]);
    let place = format!("MutatingWebhookConfiguration {name}");
    let wanted = &wanted()["webhooks"][0];
    let Some((index, webhook)) = ours(there) else {
        let wrong = format!("{place}: the webhook {} is missing", text(&wanted["name"]));
        let fix = "apply the overlay again";
        return finding.fail(Problem::new(wrong, fix).run(installation.apply()));
    };
    for field in FIXED.iter().filter(|field| webhook[**field] != wanted[**field]) {
        let (is, should) = (&webhook[*field], &wanted[*field]);
        let wrong = format!("{place}: {field} is {is} instead of {should}");
        let path = format!("/webhooks/{index}/{field}");
        let body = json!([{ "op": "add", "path": path, "value": should }]);
        let object = format!("mutatingwebhookconfiguration/{name}");
        finding.fail(Problem::new(wrong, "restore it").run(patch(&object, "json", &body)));
    }
}

/// The caBundle holds the certificates that the coordinator serves with.
fn ca_bundle(installation: &Installation, there: &Value, trusted: Option<&Bundle>) -> Finding {
    let check = "the API server trusts the coordinator's certificate";
    let mut finding = Finding::new("webhook-trust", check);
    let Some((index, webhook)) = ours(there) else {
        finding.skip("the webhook is missing");
        return finding;
    };
    let kind = "MutatingWebhookConfiguration";
    check_trust(&mut finding, installation, &Configured { kind, there, index, webhook }, trusted);
    finding
}

/// A webhook in a configuration.
pub(super) struct Configured<'a> {
    pub(super) kind: &'static str,
    pub(super) there: &'a Value,
    pub(super) index: usize,
    pub(super) webhook: &'a Value,
}

/// Whether a webhook's caBundle holds the certificates that the coordinator serves with.
pub(super) fn check_trust(
    finding: &mut Finding,
    installation: &Installation,
    configured: &Configured<'_>,
    trusted: Option<&Bundle>,
) {
    let Configured { kind, there, index, webhook } = configured;
    let name = text(&there["metadata"]["name"]);
    let place = format!("{kind} {name}: webhooks[{index}].clientConfig");
    let pem = BASE64_STANDARD.decode(text(&webhook["clientConfig"]["caBundle"]));
    let there_bundle = bundle(&pem.unwrap_or_default());
    let issuer = text(&there["metadata"]["annotations"][CERT_MANAGER]);
    if !issuer.is_empty() {
        match there_bundle {
            Ok(_) => finding.note(format!("cert-manager writes the caBundle, from {issuer}")),
            Err(why) => {
                let wrong = format!("{place}.caBundle {why}: cert-manager has not written it");
                let fix = "see what cert-manager's injector logs";
                let logs = "kubectl -n cert-manager logs deployment/cert-manager-cainjector";
                finding.fail(Problem::new(wrong, fix).run(logs));
            }
        }
        return;
    }
    let wrong = match (there_bundle, trusted) {
        (Err(why), _) => format!("{place}.caBundle {why}"),
        (Ok(_), None) => {
            finding
                .skip("the CA bundle to compare with is missing: see the checks of certificates");
            return;
        }
        (Ok(is), Some(wanted)) if !wanted.is_subset(&is) => format!(
            "{place}.caBundle does not hold the certificates of ConfigMap {CA_CONFIG_MAP} in {}",
            installation.namespace
        ),
        (Ok(is), Some(_)) => {
            finding.note(format!(
                "{}, the CA bundle of agents included",
                counted(is.len(), "certificate")
            ));
            return;
        }
    };
    let fix = "the leader writes it, if it has the right to; by hand:";
    let object = format!("{}/{name}", kind.to_lowercase());
    finding.fail(Problem::new(wrong, fix).run(write_bundle(installation, &object, *index)));
}

/// The command that writes the CA bundle into a webhook.
fn write_bundle(installation: &Installation, object: &str, index: usize) -> String {
    let path = format!("/webhooks/{index}/clientConfig/caBundle");
    let read = format!(
        "kubectl -n {} get configmap {CA_CONFIG_MAP} -o 'jsonpath={{.data.ca\\.crt}}' | base64 | \
         tr -d '\\n'",
        installation.namespace
    );
    let body = json!([{ "op": "add", "path": path, "value": "BUNDLE" }]).to_string();
    // The shell inserts the bundle, so the JSON is in double quotes.
    let body = body.replace('"', "\\\"").replace("BUNDLE", &format!("$({read})"));
    format!("kubectl patch {object} --type=json -p \"{body}\"")
}

/// The Service that the API server calls has endpoints.
async fn webhook_service(api: &ApiClient, installation: &Installation, there: &Value) -> Finding {
    let check = "the webhook's Service has endpoints";
    let mut finding = Finding::new("webhook-service", check);
    let Some((_, webhook)) = ours(there) else {
        finding.skip("the webhook is missing");
        return finding;
    };
    let to = &webhook["clientConfig"];
    if let Some(url) = to["url"].as_str() {
        finding.note(format!("it calls {url}, not a Service"));
        return finding;
    }
    let (namespace, name) = (text(&to["service"]["namespace"]), text(&to["service"]["name"]));
    if (namespace, name) != (&*installation.namespace, &*installation.service) {
        let wrong = format!(
            "MutatingWebhookConfiguration {}: it calls Service {name} in {namespace} instead of {} \
             in {}",
            text(&there["metadata"]["name"]),
            installation.service,
            installation.namespace
        );
        finding.fail(Problem::new(wrong, "apply the overlay again").run(installation.apply()));
        return finding;
    }
    check_endpoints(&mut finding, api, installation, "webhook").await;
    finding
}

/// Creates a pod that asks for a sidecar, as a dry run, and looks for the sidecar.
async fn dry_run(api: &ApiClient, installation: &Installation, fleet: &Fleet) -> Finding {
    let check = "a pod that asks for a sidecar gets one (dry run)";
    let mut finding = Finding::new("webhook-answers", check);
    let (namespace, named) = match fleet.clusters.iter().flatten().next() {
        Some(first) => {
            let metadata = &first["metadata"];
            (text(&metadata["namespace"]), Some(text(&metadata["name"])))
        }
        None => (fleet.namespaces.first().map_or("default", String::as_str), None),
    };
    let folder = format!("/api/v1/namespaces/{namespace}/pods");
    match api.dry_run_create(&folder, &pod(namespace, named)).await {
        Ok(made) => match sidecar(&made) {
            Some(sidecar) => {
                finding.note(format!("in {namespace}, with {}", text(&sidecar["image"])));
            }
            None => {
                let wrong = format!(
                    "a pod with {INJECT}=true in {namespace} would be created without a sidecar: \
                     the API server did not call the webhook; see its namespaceSelector"
                );
                let fix = "apply the overlay again, and compare with the webhook's selectors";
                let name = text(&wanted()["metadata"]["name"]);
                finding.fail(
                    Problem::new(wrong, fix)
                        .run(installation.apply())
                        .run(format!("kubectl get mutatingwebhookconfiguration {name} -o yaml")),
                );
            }
        },
        Err(error) => dry_run_refused(&mut finding, installation, namespace, named, &error),
    }
    finding
}

fn dry_run_refused(
    finding: &mut Finding,
    installation: &Installation,
    namespace: &str,
    named: Option<&str>,
    error: &ApiError,
) {
    let said = error.text();
    let is_denied = said.contains("admission webhook") && said.contains("leasehold.dev");
    let logs = format!(
        "kubectl -n {} logs deployment/leasehold-coordinator --tail=20",
        installation.namespace
    );
    if is_denied && named.is_none() {
        // Without any cluster the webhook rightly refuses the pod.
        finding.note(format!("the webhook answers in {namespace}: {said}"));
    } else if is_denied {
        let wrong = format!("a pod with {INJECT}=true in {namespace} is refused: {said}");
        finding.fail(Problem::new(wrong, "follow the message").run(logs));
    } else if said.contains("failed calling webhook") {
        let wrong = format!(
            "the webhook does not answer, so no pod with {INJECT}=true can be created: {said}"
        );
        let fix = if said.contains("x509") {
            "fix the certificates first, see the checks above"
        } else {
            "see whether the coordinator runs, and whether the API server reaches it"
        };
        finding.fail(Problem::new(wrong, fix).run(logs));
    } else {
        finding.skip(format!("the dry run of a pod in {namespace} failed: {said}"));
    }
}

/// A pod for the dry run; it passes the strictest level of pod security.
pub(super) fn pod(namespace: &str, named: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "leasehold-check-",
            "namespace": namespace,
            "labels": { INJECT: "true" },
        },
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 86_400,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65_532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "worker",
                "image": "leasehold/check",
                "resources": {
                    "requests": { "cpu": "10m", "memory": "16Mi" },
                    "limits": { "cpu": "10m", "memory": "16Mi" },
                },
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                },
            }],
        },
    });
    if let Some(name) = named {
        pod["metadata"]["labels"][CLUSTER_LABEL] = name.into();
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_configure_the_webhook() {
        let (index, webhook) = ours(wanted()).unwrap();
        assert_eq!(index, 0);
        assert!(FIXED.iter().all(|field| !webhook[*field].is_null()));
    }
}
