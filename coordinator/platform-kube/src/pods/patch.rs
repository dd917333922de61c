//! A change of a pod's metadata, pure. The patch is computed from one version of the pod and names
//! that version, so that a late write cannot overwrite a newer one.

use std::collections::BTreeMap;

use leasehold_coordinator_core::campaign::{self, EntryVersion, EntryWrite};
use leasehold_coordinator_core::exposure::Entry;
use leasehold_kube_api::names::{EXPOSED_LABEL, EXPOSURE_ANNOTATION, TRUE};
use leasehold_types::{ClusterName, Epoch};
use serde_json::{Value, json};

use super::busy_mark::BusyMark;
use super::exposure_annotation;

/// The observed version of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedPod {
    pub(super) uid: String,
    pub(super) version: u64,
    pub(super) exposures: BTreeMap<ClusterName, Entry>,
    pub(super) mark: BusyMark,
}

/// A change of a pod.
#[derive(Clone, Debug)]
pub(super) enum PodPatch {
    /// The entry of this cluster changes as a leader of this term asks.
    Entry(ClusterName, Epoch, campaign::EntryAttempt),
    /// The pod is marked as busy.
    Busy,
    /// The pod is marked as idle, unless it has changed since it was observed.
    Idle,
}

/// The write that a change needs.
#[derive(Clone, Debug)]
pub(super) enum PatchDecision {
    /// Write this metadata; the entries and the mark that it records.
    Patch(Value, BTreeMap<ClusterName, Entry>, BusyMark),
    /// The pod has the desired metadata already.
    Nothing,
    /// A later leader has written the entry: it is not changed.
    Superseded,
    /// The entry in this version of the pod cannot be read: a later leader may have written it.
    Unreadable(EntryVersion),
    /// The pod has as many entries as are read.
    Full,
}

impl PodPatch {
    /// The write for an observed pod.
    pub(super) fn decide(&self, base: &ObservedPod) -> PatchDecision {
        let mut exposures = base.exposures.clone();
        let unmarked = || (json!({}), base.mark);
        let (mut metadata, mark) = match self {
            Self::Entry(cluster, epoch, attempt) => {
                let version = EntryVersion(base.version);
                match campaign::resolve(exposures.get(cluster), version, attempt, *epoch) {
                    EntryWrite::Nothing => return PatchDecision::Nothing,
                    EntryWrite::Superseded => return PatchDecision::Superseded,
                    EntryWrite::Unreadable => return PatchDecision::Unreadable(version),
                    EntryWrite::Put(Some(entry)) => {
                        let jobs = entry.exposure.jobs_max > 0;
                        exposures.insert(cluster.clone(), entry);
                        if exposures.len() > exposure_annotation::ENTRIES_MAX {
                            return PatchDecision::Full;
                        }
                        if jobs { base.mark.change(true) } else { unmarked() }
                    }
                    EntryWrite::Put(None) => {
                        exposures.remove(cluster);
                        if exposures.is_empty() { base.mark.change(false) } else { unmarked() }
                    }
                }
            }
            Self::Busy => base.mark.change(true),
            Self::Idle => base.mark.change(false),
        };
        if let Self::Entry(..) = self {
            let exposed = (!exposures.is_empty()).then_some(TRUE);
            metadata["labels"][EXPOSED_LABEL] = json!(exposed);
            metadata["annotations"][EXPOSURE_ANNOTATION] =
                json!(exposure_annotation::text(&exposures));
        }
        // With another UID or version the API server rejects the patch: it is another pod, or the
        // pod has changed.
        metadata["uid"] = json!(base.uid);
        metadata["resourceVersion"] = json!(base.version.to_string());
        PatchDecision::Patch(metadata, exposures, mark)
    }

    /// Whether to retry the change on a newer version of the pod.
    pub(super) fn is_retried(&self) -> bool {
        match self {
            Self::Entry(..) | Self::Busy => true,
            Self::Idle => false,
        }
    }
}
