//! Certificates: the authority's key is there and will last, and what agents trust is published
//! where workers are. Certificates are compared as what they are, not as text.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use leasehold_kube_api::names::{CA_CONFIG_MAP, CA_KEY, CA_SECRET};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use x509_parser::parse_x509_certificate;

use super::cluster::Cluster;
use super::fleet::{Fleet, everywhere};
use super::installation::Installation;
use super::manifests::text;
use super::report::{Finding, Problem, Report};

const DAY_SECS: i64 = 24 * 3600;
/// Of a certificate that somebody else renews, so much has to be left.
const FOREIGN_LEFT_MIN_SECS: i64 = 7 * DAY_SECS;

/// Certificates of one text, in DER, without doubles.
pub(super) type Bundle = BTreeSet<Vec<u8>>;

/// The certificates of a PEM text.
///
/// # Errors
/// Says what is wrong with it.
pub(super) fn bundle(pem: &[u8]) -> Result<Bundle, String> {
    let all: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| format!("is no PEM ({error})"))?;
    if all.is_empty() {
        return Err("holds no certificate".into());
    }
    for (number, one) in all.iter().enumerate() {
        let read = parse_x509_certificate(one);
        read.map_err(|_| format!("holds as certificate {} none of X.509", number + 1))?;
    }
    Ok(all.into_iter().map(|one| one.to_vec()).collect())
}

/// Looks at the authority and at what is published of it; returns what agents are told to trust.
pub(super) async fn look(
    cluster: &Cluster,
    installation: &Installation,
    fleet: &Fleet,
    report: &mut Report,
) -> Option<Bundle> {
    report.tell(authority(cluster, installation).await);
    let (finding, own) = own_bundle(cluster, installation).await;
    report.tell(finding);
    report.tell(everywhere_published(cluster, installation, fleet, own.as_ref()).await);
    own
}

/// The Secret: there, readable as a certificate, and with time left.
async fn authority(cluster: &Cluster, it: &Installation) -> Finding {
    let mut finding = Finding::new("authority", "the authority's certificate is there and lasts");
    let (namespace, foreign) = (&it.namespace, it.foreign_secret.as_deref());
    let name = foreign.unwrap_or(CA_SECRET);
    let folder = format!("/api/v1/namespaces/{namespace}/secrets");
    let place = format!("Secret {name} in {namespace}");
    let secret = match cluster.get(&folder, name).await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            finding.fail(make_anew(it, format!("there is no {place}")));
            return finding;
        }
        Err(trouble) => {
            finding.skip(trouble.text());
            return finding;
        }
    };
    let data = BASE64_STANDARD.decode(text(&secret["data"]["tls.crt"])).unwrap_or_default();
    match life(&data) {
        Err(why) => finding.fail(make_anew(it, format!("{place}: tls.crt {why}"))),
        Ok((from, to)) => {
            let now = Timestamp::now().as_second();
            let days = (to - now) / DAY_SECS;
            let day = Timestamp::from_second(to).map(|it| it.to_string()).unwrap_or_default();
            if now >= to {
                let wrong = format!("{place}: tls.crt has been over since {day}");
                finding.fail(make_anew(it, wrong));
            } else if now < from {
                let wrong = format!("{place}: tls.crt is not valid yet; is this clock right?");
                finding.warn(Problem::new(wrong, "compare the clocks of this machine and theirs"));
            } else if to - now < left_min(it, from, to) {
                let wrong = format!("{place}: tls.crt ends in {days} days, and nobody renews it");
                finding.warn(make_anew(it, wrong));
            } else {
                finding.note(format!("{days} days left, to {day}"));
            }
        }
    }
    finding
}

/// The coordinator makes a successor at two thirds of an authority's time, which signs from five
/// sixths on: who has less left than an eighth is not renewed.
fn left_min(it: &Installation, from: i64, to: i64) -> i64 {
    match it.foreign_secret {
        Some(_) => FOREIGN_LEFT_MIN_SECS,
        None => (to - from) / 8,
    }
}

/// That a Secret has to be made anew.
fn make_anew(it: &Installation, wrong: String) -> Problem {
    let namespace = &it.namespace;
    match &it.foreign_secret {
        Some(name) => Problem::new(wrong, "see why it is not renewed")
            .run(format!("kubectl -n {namespace} get certificates,secrets/{name}")),
        None => Problem::new(
            wrong,
            "have the coordinator make it anew: it does so by itself while it runs and may \
             write it; agents trust it once they have read the new ConfigMap",
        )
        .run(format!("kubectl -n {namespace} delete secret {CA_SECRET} --ignore-not-found"))
        .run(it.restart()),
    }
}

/// From when to when the first certificate of a PEM text is valid.
fn life(pem: &[u8]) -> Result<(i64, i64), String> {
    bundle(pem)?;
    let first = CertificateDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
    let (_, read) = parse_x509_certificate(&first).map_err(|error| error.to_string())?;
    let validity = read.validity();
    Ok((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// What is published in the coordinator's own namespace, which is what agents are to trust.
async fn own_bundle(cluster: &Cluster, it: &Installation) -> (Finding, Option<Bundle>) {
    let check = "what agents trust is published beside the coordinator";
    let mut finding = Finding::new("published", check);
    let namespace = &it.namespace;
    if it.foreign_secret.is_some() {
        finding.skip("the certificates are not the coordinator's own: publishing is up to you");
        return (finding, None);
    }
    let folder = format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = match cluster.get(&folder, CA_CONFIG_MAP).await {
        Ok(Some(map)) => map,
        Ok(None) => {
            let wrong = format!("there is no ConfigMap {CA_CONFIG_MAP} in {namespace}");
            let mend = "restart the coordinator: whoever leads writes it at once";
            finding.fail(Problem::new(wrong, mend).run(it.restart()));
            return (finding, None);
        }
        Err(trouble) => {
            finding.skip(trouble.text());
            return (finding, None);
        }
    };
    match bundle(text(&map["data"][CA_KEY]).as_bytes()) {
        Ok(bundle) => (finding, Some(bundle)),
        Err(why) => {
            let wrong = format!("ConfigMap {CA_CONFIG_MAP} in {namespace}: {CA_KEY} {why}");
            let delete = format!("kubectl -n {namespace} delete configmap {CA_CONFIG_MAP}");
            let mend = "have the coordinator write it anew";
            finding.fail(Problem::new(wrong, mend).run(delete).run(it.restart()));
            (finding, None)
        }
    }
}

/// The same in every namespace that has a WorkerCluster or a WorkerClass.
async fn everywhere_published(
    cluster: &Cluster,
    it: &Installation,
    fleet: &Fleet,
    own: Option<&Bundle>,
) -> Finding {
    let check = "what agents trust is published where workers are";
    let mut finding = Finding::new("published-everywhere", check);
    if let Err(trouble) = &fleet.clusters {
        finding.skip(trouble.text());
        return finding;
    }
    let wanted = fleet.namespaces_of_clusters();
    let named = ListParams::default().fields(&format!("metadata.name={CA_CONFIG_MAP}"));
    let maps = everywhere(cluster, &fleet.namespaces, ("/api/v1", "configmaps"), &named).await;
    let maps: BTreeMap<String, Value> = match maps {
        Ok(maps) => {
            let namespace = |map: &Value| text(&map["metadata"]["namespace"]).to_owned();
            maps.into_iter().map(|map| (namespace(&map), map)).collect()
        }
        Err(trouble) => {
            finding.skip(trouble.text());
            return finding;
        }
    };
    for namespace in &wanted {
        let place = format!("ConfigMap {CA_CONFIG_MAP} in {namespace}");
        let wrong = match maps.get(namespace).map(|map| text(&map["data"][CA_KEY])) {
            None => format!("there is no {place}: pods with an agent wait there for it"),
            Some(pem) => match (bundle(pem.as_bytes()), own) {
                (Err(why), _) => format!("{place}: {CA_KEY} {why}"),
                (Ok(there), Some(own)) if there != *own => {
                    format!("{place} is not the one of {}: agents trust others", it.namespace)
                }
                (Ok(_), _) => continue,
            },
        };
        finding.fail(publish(it, namespace, wrong));
    }
    if finding.is_well() {
        finding.note(format!("in {} namespaces with workers", wanted.len()));
    }
    finding
}

fn publish(it: &Installation, namespace: &str, wrong: String) -> Problem {
    if it.foreign_secret.is_some() {
        let create =
            format!("kubectl -n {namespace} create configmap {CA_CONFIG_MAP} --from-file=ca.crt");
        return Problem::new(wrong, "put the authority's certificate there").run(create);
    }
    let own = &it.namespace;
    let mend = "whoever leads writes it within a minute, where it may; by hand";
    Problem::new(wrong, mend).run(format!(
        "kubectl -n {own} get configmap {CA_CONFIG_MAP} -o 'jsonpath={{.data.ca\\.crt}}' | \
         kubectl create configmap {CA_CONFIG_MAP} --from-file=ca.crt=/dev/stdin --dry-run=client \
         -o yaml | kubectl -n {namespace} apply --server-side --force-conflicts -f -"
    ))
}
