//! Service meshes: in which one a pod is, as far as the pod shows it.

use serde_json::Value;

use crate::draft::{keys, list_at, map_at, named};
use crate::refusal::Refusal;

/// A mesh whose proxy takes what a pod sends and what comes to the pod's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mesh {
    /// Istio, with a proxy in each pod.
    Istio,
    /// Linkerd.
    Linkerd,
}

/// The annotation in which Istio records what it has put into a pod.
const ISTIO_STATUS: &str = "sidecar.istio.io/status";

impl Mesh {
    const ALL: [Self; 2] = [Self::Istio, Self::Linkerd];

    /// The mesh of a pod that has its proxy, or asks for one.
    ///
    /// # Errors
    /// A field of the pod that has the wrong type.
    pub fn of(pod: &Value) -> Result<Option<Self>, Refusal> {
        for field in ["initContainers", "containers"] {
            let containers = list_at(pod, &keys(&["spec", field]))?;
            let has_proxy = |mesh: &Self| named(containers, mesh.proxy()).is_some();
            if let Some(mesh) = Self::ALL.into_iter().find(has_proxy) {
                return Ok(Some(mesh));
            }
        }
        for field in ["labels", "annotations"] {
            let Some(map) = map_at(pod, &keys(&["metadata", field]))? else { continue };
            let asks = |mesh: &Self| {
                let (key, values) = mesh.request();
                map.get(key).and_then(Value::as_str).is_some_and(|value| values.contains(&value))
            };
            if let Some(mesh) = Self::ALL.into_iter().find(asks) {
                return Ok(Some(mesh));
            }
            if map.contains_key(ISTIO_STATUS) {
                return Ok(Some(Self::Istio));
            }
        }
        Ok(None)
    }

    /// The container of its proxy.
    fn proxy(self) -> &'static str {
        match self {
            Self::Istio => "istio-proxy",
            Self::Linkerd => "linkerd-proxy",
        }
    }

    /// The label or annotation that asks for a proxy, and the values that do.
    fn request(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Istio => ("sidecar.istio.io/inject", &["true"]),
            Self::Linkerd => ("linkerd.io/inject", &["enabled", "ingress"]),
        }
    }
}
