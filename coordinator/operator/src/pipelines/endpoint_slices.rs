//! The EndpointSlices of a binding: the pods that serve it, by address family. A share is listed
//! from the moment its worker's agent knows it; a revoked one stays listed as draining, and gets
//! documents only while there is no other.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leasehold_coordinator_core::view::ShareView;
use leasehold_platform_kube::pods::PodFacts;
use serde_json::{Value, json};

/// Endpoints of one slice.
const ENDPOINTS_MAX: usize = 100;
/// Shares by index that a slice is for: each may be listed with its old worker, too.
const SHARES_PER_SLICE: u32 = 50;

/// What one slice holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SliceContent {
    /// The end of its name, after the binding's.
    pub(super) suffix: String,
    /// `IPv4` or `IPv6`.
    pub(super) family: &'static str,
    /// The endpoints.
    pub(super) endpoints: Vec<Value>,
}

/// A pod that serves a binding.
#[derive(Clone, Debug)]
pub(super) struct ServingPod {
    /// The pod.
    pub(super) pod: Arc<PodFacts>,
    /// The zone of its node, where it is known.
    pub(super) zone: Option<String>,
    /// The first of the node's shares that it has.
    pub(super) index: u32,
    /// Whether all that it has of the node is on its way to others.
    pub(super) draining: bool,
}

/// The pods that serve a binding: each once, those that accept documents and those that drain.
pub(super) fn serving_pods(
    shares: &[ShareView],
    pod: impl Fn(&str) -> Option<Arc<PodFacts>>,
    zone: impl Fn(&str) -> Option<String>,
) -> Vec<ServingPod> {
    let mut found: BTreeMap<&str, ServingPod> = BTreeMap::new();
    for share in shares.iter().filter(|share| share.applied) {
        let name = share.worker.as_str();
        let Some(pod) = pod(name).filter(|pod| !pod.over && !pod.phase.is_terminal()) else {
            continue;
        };
        let draining = share.draining || pod.is_terminating();
        let zone = pod.node.as_deref().and_then(&zone);
        let new = ServingPod { pod, zone, index: share.index, draining };
        let serving_pod = found.entry(name).or_insert(new);
        serving_pod.index = serving_pod.index.min(share.index);
        serving_pod.draining &= draining;
    }
    found.into_values().collect()
}

/// The slices that list these pods; empty without pods. A pod stays in the slice that it is
/// in while others come and go, but for one that is full.
pub(super) fn slice_contents(serving_pods: &[ServingPod]) -> Vec<SliceContent> {
    let mut slices: BTreeMap<(&'static str, u32), Vec<Value>> = BTreeMap::new();
    let mut sorted: Vec<&ServingPod> = serving_pods.iter().collect();
    sorted.sort_by_key(|serving_pod| (serving_pod.index, &serving_pod.pod.pod.name));
    for serving_pod in sorted {
        for address in &serving_pod.pod.addresses {
            let family = match address {
                IpAddr::V4(_) => "IPv4",
                IpAddr::V6(_) => "IPv6",
            };
            let mut number = serving_pod.index / SHARES_PER_SLICE;
            while slices
                .get(&(family, number))
                .is_some_and(|endpoints| endpoints.len() >= ENDPOINTS_MAX)
            {
                number += 1;
            }
            slices.entry((family, number)).or_default().push(endpoint(serving_pod, *address));
        }
    }
    let slice = |((family, number), endpoints): ((&'static str, u32), _)| SliceContent {
        suffix: format!("{}-{number}", family.to_ascii_lowercase()),
        family,
        endpoints,
    };
    slices.into_iter().map(slice).collect()
}

fn endpoint(serving_pod: &ServingPod, address: IpAddr) -> Value {
    let pod = &serving_pod.pod;
    let mut endpoint = json!({
        "addresses": [address],
        "conditions": {
            "ready": pod.ready && !serving_pod.draining,
            "serving": pod.ready,
            "terminating": serving_pod.draining,
        },
        "targetRef": {
            "kind": "Pod",
            "namespace": pod.pod.namespace,
            "name": pod.pod.name,
            "uid": pod.uid,
        },
    });
    if let Some(node) = &pod.node {
        endpoint["nodeName"] = json!(node);
    }
    if let Some(zone) = &serving_pod.zone {
        endpoint["zone"] = json!(zone);
    }
    endpoint
}
