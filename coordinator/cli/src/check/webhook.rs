//! The injection: its webhook is configured, trusted and answered. Whether it works is not judged
//! from its parts alone: a pod that asks for a sidecar is created, as a dry run.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use leasehold_injection::names::INJECT;
use leasehold_kube_api::names::{CA_CONFIG_MAP, CLUSTER_LABEL};
use serde_json::{Value, json};

use super::certificates::{Bundle, bundle};
use super::cluster::{Cluster, Trouble};
use super::fleet::{Fleet, sidecar};
use super::installation::{Installation, reached_at};
use super::manifests::{list, objects, text};
use super::report::{Finding, Problem, Report, patch};

const FOLDER: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
/// By this annotation cert-manager knows whose bundles are its own to write.
const CERT_MANAGER: &str = "cert-manager.io/inject-ca-from";
/// Settings that have to be as the manifests have them. Where it is asked, who is trusted and which
/// namespaces are left out differ from one installation to another.
const FIXED: [&str; 5] =
    ["failurePolicy", "objectSelector", "reinvocationPolicy", "rules", "sideEffects"];

/// The configuration that this version installs.
fn wanted() -> &'static Value {
    objects()
        .iter()
        .find(|object| object["kind"] == "MutatingWebhookConfiguration")
        .expect("the manifests configure the webhook, as a test says")
}

/// Looks at the webhook.
pub(super) async fn look(
    cluster: &Cluster,
    installation: &Installation,
    fleet: &Fleet,
    trusted: Option<&Bundle>,
    report: &mut Report,
) {
    let name = text(&wanted()["metadata"]["name"]);
    let mut finding = Finding::new("webhook", "the webhook is configured as this version has it");
    match cluster.get(FOLDER, name).await {
        Ok(Some(there)) => {
            configured(&mut finding, installation, &there);
            report.tell(finding);
            report.tell(trusts(installation, &there, trusted));
            report.tell(behind(cluster, installation, &there).await);
            report.tell(answers(cluster, installation, fleet).await);
        }
        Ok(None) => {
            let wrong = format!(
                "there is no MutatingWebhookConfiguration {name}: pods that ask for a sidecar get \
                 none"
            );
            let mend = "apply the overlay again";
            finding.fail(Problem::new(wrong, mend).run(installation.apply()));
            report.tell(finding);
        }
        Err(trouble) => {
            finding.skip(trouble.text());
            report.tell(finding);
            report.tell(answers(cluster, installation, fleet).await);
        }
    }
}

/// The webhook of a configuration that is ours, with its index.
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
        let mend = "apply the overlay again";
        return finding.fail(Problem::new(wrong, mend).run(installation.apply()));
    };
    for field in FIXED.iter().filter(|field| webhook[**field] != wanted[**field]) {
        let (is, should) = (&webhook[*field], &wanted[*field]);
        let wrong = format!("{place}: {field} is {is}, and should be {should}");
        let path = format!("/webhooks/{index}/{field}");
        let body = json!([{ "op": "add", "path": path, "value": should }]);
        let object = format!("mutatingwebhookconfiguration/{name}");
        finding.fail(Problem::new(wrong, "set it again").run(patch(&object, "json", &body)));
    }
}

/// Whether the API server trusts those who serve it.
fn trusts(installation: &Installation, there: &Value, trusted: Option<&Bundle>) -> Finding {
    let check = "the API server trusts the coordinator's certificate";
    let mut finding = Finding::new("webhook-trust", check);
    let Some((index, webhook)) = ours(there) else {
        finding.skip("the webhook is missing");
        return finding;
    };
    let name = text(&there["metadata"]["name"]);
    let place = format!("MutatingWebhookConfiguration {name}: webhooks[{index}].clientConfig");
    let pem = BASE64_STANDARD.decode(text(&webhook["clientConfig"]["caBundle"]));
    let there_bundle = bundle(&pem.unwrap_or_default());
    let issuer = text(&there["metadata"]["annotations"][CERT_MANAGER]);
    if !issuer.is_empty() {
        match there_bundle {
            Ok(_) => finding.note(format!("cert-manager keeps the caBundle, from {issuer}")),
            Err(why) => {
                let wrong = format!("{place}.caBundle {why}: cert-manager has not written it");
                let mend = "see what cert-manager's injector says";
                let logs = "kubectl -n cert-manager logs deployment/cert-manager-cainjector";
                finding.fail(Problem::new(wrong, mend).run(logs));
            }
        }
        return finding;
    }
    let wrong = match (there_bundle, trusted) {
        (Err(why), _) => format!("{place}.caBundle {why}"),
        (Ok(_), None) => {
            finding.skip("what it should trust is not known: see the certificates above");
            return finding;
        }
        (Ok(is), Some(wanted)) if !wanted.is_subset(&is) => format!(
            "{place}.caBundle does not hold the certificates of ConfigMap {CA_CONFIG_MAP} in {}",
            installation.namespace
        ),
        (Ok(is), Some(_)) => {
            finding.note(format!("{} certificates, with all that agents trust", is.len()));
            return finding;
        }
    };
    let mend = "whoever leads writes it by itself, where it may; by hand";
    finding.fail(Problem::new(wrong, mend).run(write_bundle(installation, name, index)));
    finding
}

/// The command that writes what agents trust into a webhook.
fn write_bundle(installation: &Installation, name: &str, index: usize) -> String {
    let path = format!("/webhooks/{index}/clientConfig/caBundle");
    let read = format!(
        "kubectl -n {} get configmap {CA_CONFIG_MAP} -o 'jsonpath={{.data.ca\\.crt}}' | base64 | \
         tr -d '\\n'",
        installation.namespace
    );
    let body = json!([{ "op": "add", "path": path, "value": "BUNDLE" }]).to_string();
    // The shell puts the bundle in: the JSON stands in quotes that let it.
    let body = body.replace('"', "\\\"").replace("BUNDLE", &format!("$({read})"));
    format!("kubectl patch mutatingwebhookconfiguration/{name} --type=json -p \"{body}\"")
}

/// Who is behind the address that the API server asks.
async fn behind(cluster: &Cluster, installation: &Installation, there: &Value) -> Finding {
    let check = "the API server finds the coordinator: the webhook's Service has endpoints";
    let mut finding = Finding::new("webhook-service", check);
    let Some((_, webhook)) = ours(there) else {
        finding.skip("the webhook is missing");
        return finding;
    };
    let to = &webhook["clientConfig"];
    if let Some(url) = to["url"].as_str() {
        finding.note(format!("it asks {url}, and no Service"));
        return finding;
    }
    let (namespace, name) = (text(&to["service"]["namespace"]), text(&to["service"]["name"]));
    if (namespace, name) != (&*installation.namespace, &*installation.service) {
        let wrong = format!(
            "MutatingWebhookConfiguration {}: it asks Service {name} in {namespace}, and not {} \
             in {}",
            text(&there["metadata"]["name"]),
            installation.service,
            installation.namespace
        );
        finding.fail(Problem::new(wrong, "apply the overlay again").run(installation.apply()));
        return finding;
    }
    reached_at(&mut finding, cluster, installation, "webhook").await;
    finding
}

/// Creates a pod that asks for a sidecar, as a dry run, and looks at what would become of it.
async fn answers(cluster: &Cluster, installation: &Installation, fleet: &Fleet) -> Finding {
    let check = "a pod that asks for a sidecar gets one (a dry run)";
    let mut finding = Finding::new("webhook-answers", check);
    let (namespace, named) = match fleet.clusters.iter().flatten().next() {
        Some(first) => {
            let metadata = &first["metadata"];
            (text(&metadata["namespace"]), Some(text(&metadata["name"])))
        }
        None => (fleet.namespaces.first().map_or("default", String::as_str), None),
    };
    let folder = format!("/api/v1/namespaces/{namespace}/pods");
    match cluster.would_create(&folder, &pod(namespace, named)).await {
        Ok(made) => match sidecar(&made) {
            Some(sidecar) => {
                finding.note(format!("in {namespace}, with {}", text(&sidecar["image"])));
            }
            None => {
                let wrong = format!(
                    "in {namespace} a pod with {INJECT}=true would be made without a sidecar: the \
                     webhook was not asked, by its namespaceSelector perhaps"
                );
                let mend = "apply the overlay again, and compare with what the webhook selects";
                let name = text(&wanted()["metadata"]["name"]);
                finding.fail(
                    Problem::new(wrong, mend)
                        .run(installation.apply())
                        .run(format!("kubectl get mutatingwebhookconfiguration {name} -o yaml")),
                );
            }
        },
        Err(trouble) => unanswered(&mut finding, installation, namespace, named, &trouble),
    }
    finding
}

fn unanswered(
    finding: &mut Finding,
    installation: &Installation,
    namespace: &str,
    named: Option<&str>,
    trouble: &Trouble,
) {
    let said = trouble.text();
    let is_denied = said.contains("admission webhook") && said.contains("leasehold.dev");
    let logs = format!(
        "kubectl -n {} logs deployment/leasehold-coordinator --tail=20",
        installation.namespace
    );
    if is_denied && named.is_none() {
        // There is no cluster that it could have been made for, and it says so.
        finding.note(format!("in {namespace} it answers: {said}"));
    } else if is_denied {
        let wrong = format!("in {namespace} a pod with {INJECT}=true is refused: {said}");
        finding.fail(Problem::new(wrong, "do what it says").run(logs));
    } else if said.contains("failed calling webhook") {
        let wrong = format!(
            "the webhook does not answer, so no pod with {INJECT}=true can be made: {said}"
        );
        let mend = match said.contains("x509") {
            true => "have the right certificate trusted, as the lines above say",
            false => "see whether the coordinator runs, and whether the API server reaches it",
        };
        finding.fail(Problem::new(wrong, mend).run(logs));
    } else {
        finding.skip(format!("a pod could not be tried in {namespace}: {said}"));
    }
}

/// A pod that passes the strictest level of pod security, and that nobody ever runs.
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
