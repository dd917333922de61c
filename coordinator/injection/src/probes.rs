//! How a kubelet probes the agent. An HTTP probe goes to the pod's address, where the proxy of a
//! service mesh takes it: one that admits only the mesh's own certificates refuses it, and one that
//! has not started yet answers nothing. An exec probe asks over the loopback interface instead. It
//! costs a process each time, so other pods have the HTTP probe.

use std::str::FromStr;

use serde_json::{Value, json};

use crate::draft::keys;
use crate::edit::at;
use crate::mesh::Mesh;
use crate::refusal::Refusal;

/// How long a restart after a failed probe waits for the container's end; the pod has a field of
/// the same name.
pub(crate) const GRACE: &str = "terminationGracePeriodSeconds";
/// Its value, in seconds: what a pod has by default, where nothing waits for jobs.
const GRACE_SECONDS: u64 = 30;

/// How long the restart of a container of this pod may take that hangs, in seconds. The pod's own
/// time is as long as its jobs may take. None if the pod has 0, which a probe may not.
pub(crate) fn restart_grace(pod: &Value) -> Option<u64> {
    let of_pod = at(pod, &keys(&["spec", GRACE])).and_then(Value::as_u64);
    Some(of_pod.map_or(GRACE_SECONDS, |own| own.min(GRACE_SECONDS))).filter(|seconds| *seconds > 0)
}

/// How a kubelet probes the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    /// By HTTP, at the pod's address.
    Http,
    /// By a command in the agent's container.
    Exec,
}

impl ProbeKind {
    /// The kind that works in this pod, as far as the pod shows it.
    pub(crate) fn of(pod: &Value) -> Result<Self, Refusal> {
        Ok(if Mesh::of(pod)?.is_some() { Self::Exec } else { Self::Http })
    }

    /// A probe of the agent in this program, which serves health at this port. `times` are the
    /// probe's other fields.
    pub(crate) fn probe(self, agent: &str, port: u16, times: &Value) -> Value {
        let mut probe = match self {
            Self::Http => json!({ "httpGet": { "path": "/livez", "port": port } }),
            // A process takes longer to start on a busy node than a request: without a time-out
            // the probe has one second.
            Self::Exec => {
                json!({ "exec": { "command": [agent, "probe"] }, "timeoutSeconds": 5 })
            }
        };
        for (field, value) in times.as_object().into_iter().flatten() {
            probe[field] = value.clone();
        }
        probe
    }
}

impl FromStr for ProbeKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "http" => Ok(Self::Http),
            "exec" => Ok(Self::Exec),
            _ => Err(format!("invalid kind of probe {text:?}: use http or exec")),
        }
    }
}
