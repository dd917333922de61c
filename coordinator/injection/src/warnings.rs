//! Warnings about settings that work but may surprise the user.

use std::time::Duration;

use leasehold_types::duration;
use serde_json::Value;

use crate::annotations::PodSettings;
use crate::container::ports;
use crate::draft::keys;
use crate::edit::at;
use crate::sidecar::Sidecar;

/// The default grace period of a pod.
const GRACE_DEFAULT: u64 = 30;
/// The default `drain.deadline` of a WorkerCluster or WorkerClass.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(2 * 3600);

/// Adds the warnings.
pub(crate) fn all(pod: &Value, config: &PodSettings, with: &Sidecar, warnings: &mut Vec<String>) {
    grace(pod, config, with, warnings);
    if at(pod, &keys(&["spec", "hostNetwork"])) == Some(&Value::Bool(true)) {
        let [listen, health] = ports(config);
        warnings.push(format!(
            "spec.hostNetwork: the agent's ports {listen} and {health} are the node's: only one \
             such pod fits on a node, and every process on the node can call its worker API. The \
             agent reaches the coordinator from the node's address: where the network enforces \
             policies, that takes deploy/components/host-network"
        ));
    }
    names(pod, with, warnings);
}

/// Warns about pods that use their node's DNS, which does not resolve Services.
fn names(pod: &Value, with: &Sidecar, warnings: &mut Vec<String>) {
    let policy = at(pod, &keys(&["spec", "dnsPolicy"])).and_then(Value::as_str);
    let asks_node = match policy.unwrap_or("ClusterFirst") {
        "Default" => true,
        "ClusterFirst" => at(pod, &keys(&["spec", "hostNetwork"])) == Some(&Value::Bool(true)),
        _ => false,
    };
    let (host, _) = with.coordinator.rsplit_once(':').unwrap_or((&with.coordinator, ""));
    if asks_node && (host.ends_with(".svc") || host.contains(".svc.")) {
        warnings.push(format!(
            "spec.dnsPolicy: the pod uses the DNS of its node, so its agent cannot resolve {host}: \
             set ClusterFirstWithHostNet"
        ));
    }
}

fn grace(pod: &Value, config: &PodSettings, with: &Sidecar, warnings: &mut Vec<String>) {
    let given = at(pod, &keys(&["spec", "terminationGracePeriodSeconds"])).and_then(Value::as_u64);
    let flag = config.flags.get("drain-deadline").and_then(|text| duration::parse(text).ok());
    let grace = given.unwrap_or(GRACE_DEFAULT);
    let of = if given.is_some() { "" } else { " (the default)" };
    match flag.or(with.drain_deadline) {
        Some(deadline) if Duration::from_secs(grace) <= deadline => {
            let deadline = deadline.as_millis().div_ceil(1000);
            warnings.push(format!(
                "spec.terminationGracePeriodSeconds is {grace}{of}, and a drain may take \
                 {deadline} s: a job that still runs after {grace} s is killed. Set it above \
                 {deadline}"
            ));
        }
        None if Duration::from_secs(grace) <= DEADLINE_DEFAULT => {
            warnings.push(format!(
                "spec.terminationGracePeriodSeconds is {grace}{of}: a job that still runs so long \
             after its pod was told to end is killed. Set it above the cluster's drain.deadline, \
             which is {} unless the cluster sets another",
                duration::format(DEADLINE_DEFAULT)
            ));
        }
        _ => {}
    }
}
