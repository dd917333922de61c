//! Certificates of cert-manager on a real node: agents and the API server trust the coordinator by
//! them, and what cert-manager renews is in force without a restart.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use tests::kube::{Access, CertManager, RealInstallation, TestNamespace, list, until};

use super::super::deploy::kustomization;
use super::super::installed::coordinator_pods;
use super::super::life::{cluster, deployment, nothing_broke};

/// Where the coordinator runs.
const HOME: &str = "leasehold-system";

/// A field of the coordinator's Certificate, its Secret or a webhook, by kubectl's path.
fn field(access: &Access, object: &str, path: &str) -> String {
    let output = format!("--output=jsonpath={path}");
    access.try_kubectl(&["get", "--namespace", HOME, object, &output]).unwrap_or_default()
}

/// When the Certificate ends, in seconds of Unix time.
fn not_after(access: &Access) -> Option<i64> {
    let text = field(access, "certificate/leasehold-coordinator", "{.status.notAfter}");
    let time: Time = serde_json::from_value(Value::String(text)).ok()?;
    Some(time.0.as_second())
}

/// When the certificate ends that the coordinator serves with.
fn served_until(access: &Access) -> Option<i64> {
    const GAUGE: &str = "leasehold_certificate_expiry_timestamp_seconds ";
    let pods = coordinator_pods(access);
    let [pod] = pods.as_slice() else { return None };
    let pod = pod["metadata"]["name"].as_str()?;
    // The kubelet looks at the Secrets of a pod when the pod changes, or once a minute.
    let look = format!("leasehold.dev/look={}", fastrand::u32(..));
    access
        .try_kubectl(&["annotate", "--namespace", HOME, "--overwrite", "pod", pod, &look])
        .ok()?;
    let path = format!("/api/v1/namespaces/{HOME}/pods/{pod}:7401/proxy/metrics");
    let metrics = access.try_kubectl(&["get", "--raw", &path]).ok()?;
    metrics.lines().find_map(|line| line.strip_prefix(GAUGE)?.parse().ok())
}

/// Whether the API server trusts every webhook by the authority.
fn trusts(access: &Access) -> bool {
    let authority = field(access, "secret/leasehold-coordinator-tls", "{.data.ca\\.crt}");
    let webhooks = [
        "mutatingwebhookconfiguration/leasehold-injector",
        "validatingwebhookconfiguration/leasehold-validator",
    ];
    let path = "{.webhooks[*].clientConfig.caBundle}";
    let is_trusted = |webhook: &str| {
        let bundles = field(access, webhook, path);
        !bundles.is_empty() && bundles.split(' ').all(|bundle| bundle == authority)
    };
    !authority.is_empty() && webhooks.into_iter().all(is_trusted)
}

/// What `cmctl renew` does.
fn renew(access: &Access) {
    let condition = json!({
        "type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
        "message": "asked for by a test", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let certificate = field(access, "certificate/leasehold-coordinator", "{.status.conditions}");
    let mut conditions: Vec<Value> = serde_json::from_str(&certificate).expect("conditions");
    conditions.push(condition);
    let patch = json!({ "status": { "conditions": conditions } }).to_string();
    let patch = [
        "patch",
        "--namespace",
        HOME,
        "certificate/leasehold-coordinator",
        "--subresource=status",
        "--type=merge",
        "--patch",
        &patch,
    ];
    access.kubectl(&patch);
}

fn until_connected(namespace: &TestNamespace<'_>, workers: &str) {
    namespace.until("wc/builds", ".status.workers.connected", workers);
}

#[test]
fn certificates_of_cert_manager_serve_agents_and_webhooks_and_are_renewed() {
    let mut cert_manager = None;
    let overlay = kustomization("../../deploy/overlays/dev", &["cert-manager"], "");
    let installed = RealInstallation::start_with(1, overlay.path(), |access| {
        cert_manager = CertManager::start(access);
    });
    let (Some(installation), Some(cert_manager)) = (installed, cert_manager) else { return };
    let access = installation.cluster().access();
    let trusted = || (trusts(access), cert_manager.process.log());
    until("webhooks that are trusted", trusted, |(trusted, _)| *trusted);

    // As docs/KUBERNETES.md has it: whom agents trust, the user publishes.
    let namespace = installation.namespace("certified");
    let authority = field(access, "secret/leasehold-authority", "{.data.tls\\.crt}");
    let authority = BASE64_STANDARD.decode(authority).expect("base64");
    let authority = String::from_utf8(authority).expect("PEM");
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "leasehold-ca" },
        "data": { "ca.crt": authority },
    }));
    namespace.apply(&list(cluster(6)));
    namespace.apply(&deployment(&namespace, 2, &[]));
    until_connected(&namespace, "2");
    until(
        "the certificate",
        || (served_until(access), not_after(access)),
        |(served, made)| served.is_some() && served == made,
    );

    let before = (not_after(access), served_until(access));
    let serial = || field(access, "secret/leasehold-coordinator-tls", "{.data.tls\\.crt}");
    let first = serial();
    renew(access);
    until("another certificate", serial, |now| *now != first);
    until(
        "it in force",
        || (served_until(access), not_after(access)),
        |(served, made)| served.is_some() && served == made && (*made, *served) > before,
    );

    // A third pod is injected, and its agent connects, both by the new one.
    namespace.kubectl(&["scale", "deployment/builds", "--replicas=3"]);
    until_connected(&namespace, "3");
    namespace.kubectl(&["delete", "wc/builds", "deployment/builds"]);
    namespace.until_no_pod("");
    nothing_broke(&namespace.evidence(), 6);
}
