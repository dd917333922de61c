//! Certificates: the certificate authority exists and has not expired, and its bundle is published
//! where workers are. Bundles are compared by their certificates, not as text.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use leasehold_kube_api::names::{CA_CONFIG_MAP, CA_KEY, CA_SECRET};
use leasehold_types::counted;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use x509_parser::parse_x509_certificate;

use super::api::ApiClient;
use super::expected::text;
use super::fleet::{Fleet, list_in};
use super::installation::Installation;
use super::report::{Finding, Problem, Report};

const DAY_SECS: i64 = 24 * 3600;
/// A certificate that the coordinator does not renew must last at least this long.
const EXTERNAL_LEFT_MIN_SECS: i64 = 7 * DAY_SECS;

/// The certificates of a PEM text, in DER, without duplicates.
pub(super) type Bundle = BTreeSet<Vec<u8>>;

/// The certificates of a PEM text.
///
/// # Errors
/// The problem of the text.
pub(super) fn bundle(pem: &[u8]) -> Result<Bundle, String> {
    let all: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| format!("is not PEM ({error})"))?;
    if all.is_empty() {
        return Err("holds no certificate".into());
    }
    for (number, one) in all.iter().enumerate() {
        let read = parse_x509_certificate(one);
        read.map_err(|_| {
            format!("holds something else than an X.509 certificate as number {}", number + 1)
        })?;
    }
    Ok(all.into_iter().map(|one| one.to_vec()).collect())
}

/// Checks the authority and its published bundle; returns the bundle that agents trust.
pub(super) async fn look(
    api: &ApiClient,
    installation: &Installation,
    fleet: &Fleet,
    report: &mut Report,
) -> Option<Bundle> {
    report.add(authority(api, installation).await);
    let (finding, own) = published(api, installation).await;
    report.add(finding);
    report.add(published_to_workers(api, installation, fleet, own.as_ref()).await);
    own
}

/// The Secret exists, holds a certificate, and that does not expire soon.
async fn authority(api: &ApiClient, installation: &Installation) -> Finding {
    let mut finding =
        Finding::new("authority", "the certificate authority exists and does not expire soon");
    let (namespace, foreign) = (&installation.namespace, installation.external_secret.as_deref());
    let name = foreign.unwrap_or(CA_SECRET);
    let folder = format!("/api/v1/namespaces/{namespace}/secrets");
    let place = format!("Secret {name} in {namespace}");
    let secret = match api.get(&folder, name).await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            finding.fail(renew_secret(installation, format!("there is no {place}")));
            return finding;
        }
        Err(error) => {
            finding.skip(error.text());
            return finding;
        }
    };
    let data = BASE64_STANDARD.decode(text(&secret["data"]["tls.crt"])).unwrap_or_default();
    match life(&data) {
        Err(why) => finding.fail(renew_secret(installation, format!("{place}: tls.crt {why}"))),
        Ok((from, to)) => {
            let now = Timestamp::now().as_second();
            let day = Timestamp::from_second(to).map(|end| end.to_string()).unwrap_or_default();
            if now >= to {
                let wrong = format!("{place}: tls.crt expired on {day}");
                finding.fail(renew_secret(installation, wrong));
            } else if now < from {
                let wrong = format!("{place}: tls.crt is not valid yet");
                finding.warn(Problem::new(
                    wrong,
                    "compare the clocks of this machine and of the cluster",
                ));
            } else if to - now < remaining_secs_min(installation, from, to) {
                let wrong = format!("{place}: tls.crt expires on {day} and was not renewed");
                finding.warn(renew_secret(installation, wrong));
            } else {
                finding.note(format!("expires on {day}"));
            }
        }
    }
    finding
}

/// The coordinator creates a successor after two thirds of an authority's lifetime and signs with
/// it after five sixths: with less than an eighth left, renewal has failed.
fn remaining_secs_min(installation: &Installation, from: i64, to: i64) -> i64 {
    match installation.external_secret {
        Some(_) => EXTERNAL_LEFT_MIN_SECS,
        None => (to - from) / 8,
    }
}

/// The problem that a Secret has to be created again.
fn renew_secret(installation: &Installation, wrong: String) -> Problem {
    let namespace = &installation.namespace;
    match &installation.external_secret {
        Some(name) => Problem::new(wrong, "see why it is not renewed")
            .run(format!("kubectl -n {namespace} get certificates,secrets/{name}")),
        None => Problem::new(
            wrong,
            "let the coordinator create it again: it does so at its start, if it may write \
             Secrets; agents trust it once they have read the new ConfigMap",
        )
        .run(format!("kubectl -n {namespace} delete secret {CA_SECRET} --ignore-not-found"))
        .run(installation.restart()),
    }
}

/// The validity of the first certificate of a PEM text, in seconds since 1970.
fn life(pem: &[u8]) -> Result<(i64, i64), String> {
    bundle(pem)?;
    let first = CertificateDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
    let (_, read) = parse_x509_certificate(&first).map_err(|error| error.to_string())?;
    let validity = read.validity();
    Ok((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// The bundle in the coordinator's own namespace, which agents are to trust.
async fn published(api: &ApiClient, installation: &Installation) -> (Finding, Option<Bundle>) {
    let check = "the CA bundle is published in the coordinator's namespace";
    let mut finding = Finding::new("published", check);
    let namespace = &installation.namespace;
    if installation.external_secret.is_some() {
        finding.skip(
            "the certificates are not made by the coordinator: publish the CA bundle yourself",
        );
        return (finding, None);
    }
    let folder = format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = match api.get(&folder, CA_CONFIG_MAP).await {
        Ok(Some(map)) => map,
        Ok(None) => {
            let wrong = format!("there is no ConfigMap {CA_CONFIG_MAP} in {namespace}");
            let fix = "restart the coordinator: the leader writes it at once";
            finding.fail(Problem::new(wrong, fix).run(installation.restart()));
            return (finding, None);
        }
        Err(error) => {
            finding.skip(error.text());
            return (finding, None);
        }
    };
    match bundle(text(&map["data"][CA_KEY]).as_bytes()) {
        Ok(bundle) => (finding, Some(bundle)),
        Err(why) => {
            let wrong = format!("ConfigMap {CA_CONFIG_MAP} in {namespace}: {CA_KEY} {why}");
            let delete = format!("kubectl -n {namespace} delete configmap {CA_CONFIG_MAP}");
            let fix = "let the coordinator write it again";
            finding.fail(Problem::new(wrong, fix).run(delete).run(installation.restart()));
            (finding, None)
        }
    }
}

/// The same bundle is in every namespace that has a WorkerCluster or a WorkerClass.
async fn published_to_workers(
    api: &ApiClient,
    installation: &Installation,
    fleet: &Fleet,
    own: Option<&Bundle>,
) -> Finding {
    let check = "the CA bundle is published in the workers' namespaces";
    let mut finding = Finding::new("published-everywhere", check);
    if let Err(error) = &fleet.clusters {
        finding.skip(error.text());
        return finding;
    }
    let wanted = fleet.namespaces_of_clusters();
    let named = ListParams::default().fields(&format!("metadata.name={CA_CONFIG_MAP}"));
    let maps = list_in(api, &fleet.namespaces, ("/api/v1", "configmaps"), &named).await;
    let maps: BTreeMap<String, Value> = match maps {
        Ok(maps) => {
            let namespace = |map: &Value| text(&map["metadata"]["namespace"]).to_owned();
            maps.into_iter().map(|map| (namespace(&map), map)).collect()
        }
        Err(error) => {
            finding.skip(error.text());
            return finding;
        }
    };
    for namespace in &wanted {
        let place = format!("ConfigMap {CA_CONFIG_MAP} in {namespace}");
        let wrong = match maps.get(namespace).map(|map| text(&map["data"][CA_KEY])) {
            None => format!("there is no {place}: agents there wait for it"),
            Some(pem) => match (bundle(pem.as_bytes()), own) {
                (Err(why), _) => format!("{place}: {CA_KEY} {why}"),
                (Ok(there), Some(own)) if there != *own => {
                    format!(
                        "{place} differs from the one in {}: agents there trust other certificates",
                        installation.namespace
                    )
                }
                (Ok(_), _) => continue,
            },
        };
        finding.fail(publish(installation, namespace, wrong));
    }
    if finding.is_ok() {
        finding.note(format!("in {} with workers", counted(wanted.len(), "namespace")));
    }
    finding
}

fn publish(installation: &Installation, namespace: &str, wrong: String) -> Problem {
    if installation.external_secret.is_some() {
        let create =
            format!("kubectl -n {namespace} create configmap {CA_CONFIG_MAP} --from-file=ca.crt");
        return Problem::new(wrong, "create it from the authority's certificate").run(create);
    }
    let own = &installation.namespace;
    let fix = "the leader writes it within a minute, if it has the right to; by hand:";
    Problem::new(wrong, fix).run(format!(
        "kubectl -n {own} get configmap {CA_CONFIG_MAP} -o 'jsonpath={{.data.ca\\.crt}}' | \
         kubectl create configmap {CA_CONFIG_MAP} --from-file=ca.crt=/dev/stdin --dry-run=client \
         -o yaml | kubectl -n {namespace} apply --server-side --force-conflicts -f -"
    ))
}
