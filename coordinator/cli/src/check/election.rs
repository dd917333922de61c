//! The election: a replica leads, has renewed its Lease in time, and the Lease has the epoch.

use k8s_openapi::jiff::Timestamp;
use leasehold_kube_api::names::{ADDRESS_ANNOTATION, EPOCH_ANNOTATION, LEASE, pod_of_replica};
use serde_json::Value;

use super::api::ApiClient;
use super::expected::text;
use super::installation::Installation;
use super::report::{Finding, Problem, Report};

/// The largest difference between this machine's clock and the leader's.
const CLOCKS_APART_SECS: i64 = 30;

/// Checks the Lease, and returns the name of the leader's pod, if a replica leads.
pub(super) async fn look(
    api: &ApiClient,
    installation: &Installation,
    report: &mut Report,
) -> Option<String> {
    let namespace = &installation.namespace;
    let folder = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let (leader, epoch) = ("a replica leads", "the Lease has the epoch");
    match api.get(&folder, LEASE).await {
        Ok(Some(lease)) => {
            let found = leader_finding(installation, &lease, Timestamp::now().as_second());
            let leads = found.is_ok();
            report.add(found);
            report.add(epoch_finding(installation, &lease));
            let pod = pod_of_replica(text(&lease["spec"]["holderIdentity"])).filter(|_| leads);
            return pod.map(str::to_owned);
        }
        Ok(None) => {
            let mut finding = Finding::new("leader", leader);
            let wrong =
                format!("there is no Lease {LEASE} in {namespace}: no replica has ever led");
            finding.fail(restart_problem(installation, wrong));
            report.add(finding);
        }
        Err(error) => {
            report.add(Finding::skipped("leader", leader, error.text()));
            report.add(Finding::skipped("epoch", epoch, error.text()));
        }
    }
    None
}

/// Whether a replica leads at `now`, in seconds since 1970.
fn leader_finding(installation: &Installation, lease: &Value, now: i64) -> Finding {
    let mut finding = Finding::new("leader", "a replica leads and has renewed the Lease in time");
    let place = format!("Lease {LEASE} in {}", installation.namespace);
    let spec = &lease["spec"];
    let holder = text(&spec["holderIdentity"]);
    if holder.is_empty() {
        let wrong = format!("{place}: it has no holder, the last leader released it");
        finding.fail(restart_problem(installation, wrong));
        return finding;
    }
    let renewed = text(&spec["renewTime"]).parse::<Timestamp>();
    let Ok(renewed) = renewed else {
        let wrong = format!("{place}: its renewTime is missing or invalid: it was changed by hand");
        finding.fail(restart_problem(installation, wrong));
        return finding;
    };
    let age = now - renewed.as_second();
    let lasts = spec["leaseDurationSeconds"].as_i64().unwrap_or_default();
    if age > lasts + CLOCKS_APART_SECS {
        let wrong = format!(
            "{place}: {holder} renewed it {age} s ago, but it lasts {lasts} s: no replica leads"
        );
        finding.fail(restart_problem(installation, wrong));
    } else {
        let address = text(&lease["metadata"]["annotations"][ADDRESS_ANNOTATION]);
        let ago = age.max(0);
        finding.note(format!("{holder} at {address}, renewed {ago} s ago, lasts {lasts} s"));
    }
    finding
}

fn restart_problem(installation: &Installation, wrong: String) -> Problem {
    let namespace = &installation.namespace;
    let fix = "check that a replica is ready, read its logs, or restart all replicas";
    Problem::new(wrong, fix)
        .run(installation.restart())
        .run(format!("kubectl -n {namespace} logs deployment/leasehold-coordinator --tail=20"))
}

/// The Lease has the epoch.
fn epoch_finding(installation: &Installation, lease: &Value) -> Finding {
    let mut finding = Finding::new("epoch", "the Lease has the epoch");
    let said = text(&lease["metadata"]["annotations"][EPOCH_ANNOTATION]);
    match said.parse::<u64>() {
        Ok(epoch) if epoch > 0 => finding.note(format!("epoch {epoch}")),
        _ => {
            let wrong = format!(
                "Lease {LEASE} in {}: its annotation {EPOCH_ANNOTATION} is {said:?}, not a number",
                installation.namespace
            );
            let fix = "restart the replicas: the next leader writes it";
            finding.warn(Problem::new(wrong, fix).run(installation.restart()));
        }
    }
    finding
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether a Lease of 15 s, renewed at second 1000, is well at `now`.
    fn is_leader(holder: &str, now: i64) -> bool {
        let lease = json!({ "spec": {
            "holderIdentity": holder,
            "renewTime": "1970-01-01T00:16:40.000000Z",
            "leaseDurationSeconds": 15,
        } });
        leader_finding(&Installation::example(), &lease, now).is_ok()
    }

    #[test]
    fn a_leader_must_have_renewed_in_time() {
        assert!(is_leader("a", 1_015));
        assert!(is_leader("a", 990), "clocks differ");
        assert!(!is_leader("a", 1_046));
        assert!(!is_leader("", 1_001));
    }
}
