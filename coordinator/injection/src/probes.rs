//! How a kubelet probes the agent. An HTTP probe goes to the pod's address, where the proxy of a
//! service mesh takes it: one that admits only the mesh's own certificates refuses it, and one that
//! has not started yet answers nothing. An exec probe asks over the loopback interface instead. It
//! costs a process each time, so other pods have the HTTP probe.

use std::str::FromStr;

use serde_json::{Value, json};

use crate::draft::{keys, list_at, map_at, named};
use crate::refusal::Refusal;

/// How a kubelet probes the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    /// By HTTP, at the pod's address.
    Http,
    /// By a command in the agent's container.
    Exec,
}

/// The containers of the meshes' proxies.
const PROXIES: [&str; 2] = ["istio-proxy", "linkerd-proxy"];
/// Labels and annotations that ask for a proxy, and the values that do.
const REQUESTS: [(&str, &[&str]); 2] =
    [("sidecar.istio.io/inject", &["true"]), ("linkerd.io/inject", &["enabled", "ingress"])];
/// The annotation in which Istio records what it has put into a pod.
const ISTIO_STATUS: &str = "sidecar.istio.io/status";

impl ProbeKind {
    /// The kind that works in this pod, as far as the pod shows it.
    pub(crate) fn of(pod: &Value) -> Result<Self, Refusal> {
        Ok(if is_in_mesh(pod)? { Self::Exec } else { Self::Http })
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

/// Whether the pod has the proxy of a mesh, or asks for it.
fn is_in_mesh(pod: &Value) -> Result<bool, Refusal> {
    for field in ["initContainers", "containers"] {
        let containers = list_at(pod, &keys(&["spec", field]))?;
        if PROXIES.iter().any(|name| named(containers, name).is_some()) {
            return Ok(true);
        }
    }
    for field in ["labels", "annotations"] {
        let Some(map) = map_at(pod, &keys(&["metadata", field]))? else { continue };
        let asks = |(key, values): &(&str, &[&str])| {
            map.get(*key).and_then(Value::as_str).is_some_and(|value| values.contains(&value))
        };
        if REQUESTS.iter().any(asks) || map.contains_key(ISTIO_STATUS) {
            return Ok(true);
        }
    }
    Ok(false)
}
