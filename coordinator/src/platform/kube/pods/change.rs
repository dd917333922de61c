//! A change of a pod's metadata, pure. What it writes rests on what the pod was seen with, and the
//! write is bound to that: one that is late changes nothing that was written since.

use std::collections::BTreeMap;

use leasehold_coordinator_core::event::Exposure;
use leasehold_types::ClusterName;
use serde_json::{Value, json};

use super::super::exposure;
use super::super::names::{
    BUSY_LABEL, DO_NOT_DISRUPT_ANNOTATION, EXPOSED_LABEL, EXPOSURE_ANNOTATION,
    SAFE_TO_EVICT_ANNOTATION, TRUE,
};

/// What autoscalers of nodes heed beside the label: cluster-autoscaler and Karpenter.
const KEEP_ANNOTATIONS: [(&str, &str); 2] =
    [(SAFE_TO_EVICT_ANNOTATION, "false"), (DO_NOT_DISRUPT_ANNOTATION, TRUE)];

/// A pod as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) uid: String,
    pub(super) version: u64,
    pub(super) exposures: BTreeMap<ClusterName, Exposure>,
}

/// What is to become of a pod.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// So much is written down for this cluster, beside what is already.
    Expose(ClusterName, Exposure),
    /// This is written down no more for this cluster; what has replaced it stays.
    Conceal(ClusterName, Exposure),
    /// It is marked as busy.
    Busy,
    /// It is marked as idle, unless anything has happened to it since it was seen.
    Idle,
}

impl Change {
    /// The metadata to write, and what is written down by that; none where there is nothing to do.
    pub(super) fn over(&self, base: &Base) -> Option<(Value, BTreeMap<ClusterName, Exposure>)> {
        let mut exposures = base.exposures.clone();
        let mut metadata = match self {
            Self::Expose(cluster, exposure) => {
                let joined = exposures.get(cluster).map(|have| have.join(exposure));
                exposures.insert(cluster.clone(), joined.unwrap_or_else(|| exposure.clone()));
                if exposure.jobs_max > 0 { busy(true) } else { json!({}) }
            }
            Self::Conceal(cluster, meant) => {
                if exposures.remove(cluster).as_ref() != Some(meant) {
                    return None;
                }
                if exposures.is_empty() { busy(false) } else { json!({}) }
            }
            Self::Busy => busy(true),
            Self::Idle => busy(false),
        };
        if let Self::Expose(..) | Self::Conceal(..) = self {
            let exposed = (!exposures.is_empty()).then_some(TRUE);
            metadata["labels"][EXPOSED_LABEL] = json!(exposed);
            metadata["annotations"][EXPOSURE_ANNOTATION] = json!(exposure::text(&exposures));
        }
        // The API server refuses what would change these: it is another pod then, or the same
        // after another write.
        metadata["uid"] = json!(base.uid);
        metadata["resourceVersion"] = json!(base.version.to_string());
        Some((metadata, exposures))
    }

    /// Whether it still holds of a pod that was written to since it was seen.
    pub(super) fn holds_on(&self) -> bool {
        match self {
            Self::Expose(..) | Self::Conceal(..) | Self::Busy => true,
            Self::Idle => false,
        }
    }
}

fn busy(busy: bool) -> Value {
    let label = busy.then_some(TRUE);
    let annotations: serde_json::Map<_, _> = KEEP_ANNOTATIONS
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(busy.then_some(*value))))
        .collect();
    json!({ "labels": { BUSY_LABEL: label }, "annotations": annotations })
}
