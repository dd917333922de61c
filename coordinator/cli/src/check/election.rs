//! The election: somebody leads, has said so lately, and the epochs go on.

use k8s_openapi::jiff::Timestamp;
use leasehold_kube_api::names::{ADDRESS_ANNOTATION, EPOCH_ANNOTATION, LEASE};
use serde_json::Value;

use super::cluster::Cluster;
use super::installation::Installation;
use super::manifests::text;
use super::report::{Finding, Problem, Report};

/// How far this machine's clock may be from the leader's.
const CLOCKS_APART_SECS: i64 = 30;

/// Looks at the Lease.
pub(super) async fn look(cluster: &Cluster, installation: &Installation, report: &mut Report) {
    let namespace = &installation.namespace;
    let folder = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let (leader, epoch) = ("a replica leads", "the epochs go on");
    match cluster.get(&folder, LEASE).await {
        Ok(Some(lease)) => {
            report.tell(led(installation, &lease, Timestamp::now().as_second()));
            report.tell(numbered(installation, &lease));
        }
        Ok(None) => {
            let mut finding = Finding::new("leader", leader);
            let wrong = format!("there is no Lease {LEASE} in {namespace}: nobody has ever led");
            finding.fail(look_at_replicas(installation, wrong));
            report.tell(finding);
        }
        Err(trouble) => {
            report.tell(Finding::skipped("leader", leader, trouble.text()));
            report.tell(Finding::skipped("epoch", epoch, trouble.text()));
        }
    }
}

/// Whether somebody leads at `now`, in seconds since 1970.
fn led(installation: &Installation, lease: &Value, now: i64) -> Finding {
    let mut finding = Finding::new("leader", "a replica leads, and has said so lately");
    let place = format!("Lease {LEASE} in {}", installation.namespace);
    let spec = &lease["spec"];
    let holder = text(&spec["holderIdentity"]);
    if holder.is_empty() {
        let wrong = format!("{place}: nobody holds it, the last leader gave it up");
        finding.fail(look_at_replicas(installation, wrong));
        return finding;
    }
    let renewed = text(&spec["renewTime"]).parse::<Timestamp>();
    let Ok(renewed) = renewed else {
        let wrong = format!("{place}: it has no time of renewal, somebody has changed it by hand");
        finding.fail(look_at_replicas(installation, wrong));
        return finding;
    };
    let age = now - renewed.as_second();
    let lasts = spec["leaseDurationSeconds"].as_i64().unwrap_or_default();
    if age > lasts + CLOCKS_APART_SECS {
        let wrong = format!(
            "{place}: {holder} renewed it {age} s ago, which held for {lasts} s; nobody leads"
        );
        finding.fail(look_at_replicas(installation, wrong));
    } else {
        let address = text(&lease["metadata"]["annotations"][ADDRESS_ANNOTATION]);
        let ago = age.max(0);
        finding.note(format!("{holder} at {address}, renewed {ago} s ago, holds for {lasts} s"));
    }
    finding
}

fn look_at_replicas(installation: &Installation, wrong: String) -> Problem {
    let namespace = &installation.namespace;
    let mend = "see whether a replica is ready and what it says, or restart them";
    Problem::new(wrong, mend)
        .run(installation.restart())
        .run(format!("kubectl -n {namespace} logs deployment/leasehold-coordinator --tail=20"))
}

/// Whether the Lease remembers the epoch.
fn numbered(installation: &Installation, lease: &Value) -> Finding {
    let mut finding = Finding::new("epoch", "the Lease remembers the epoch");
    let said = text(&lease["metadata"]["annotations"][EPOCH_ANNOTATION]);
    match said.parse::<u64>() {
        Ok(epoch) if epoch > 0 => finding.note(format!("epoch {epoch}")),
        _ => {
            let wrong = format!(
                "Lease {LEASE} in {}: its annotation {EPOCH_ANNOTATION} is {said:?}, no number",
                installation.namespace
            );
            let mend = "restart the replicas: the next leader writes it anew";
            finding.warn(Problem::new(wrong, mend).run(installation.restart()));
        }
    }
    finding
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether a Lease of 15 s, renewed at second 1000, is well at `now`.
    fn is_led(holder: &str, now: i64) -> bool {
        let lease = json!({ "spec": {
            "holderIdentity": holder,
            "renewTime": "1970-01-01T00:16:40.000000Z",
            "leaseDurationSeconds": 15,
        } });
        led(&Installation::example(), &lease, now).is_well()
    }

    #[test]
    fn a_leader_is_one_that_has_renewed_in_time() {
        assert!(is_led("a", 1_015));
        assert!(is_led("a", 990), "clocks differ");
        assert!(!is_led("a", 1_046));
        assert!(!is_led("", 1_001));
    }
}
