//! The most that a pod may hold, as an annotation of it, cluster by cluster: written before it is
//! granted anything beyond, and read by every new leader. It is never taken for less than was
//! written: what cannot be read counts as the most that any worker may hold.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;
use leasehold_coordinator_core::event::Exposure;
use leasehold_types::limits::{JOBS_PER_WORKER_MAX, TTL_MAX};
use leasehold_types::{ClusterName, Incarnation, SetName};
use serde::{Deserialize, Serialize};

use super::names::{CLUSTER_LABEL, EXPOSED_LABEL, EXPOSURE_ANNOTATION};

/// One cluster's part of the annotation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    incarnation: Incarnation,
    ttl_ms: u64,
    jobs_max: u32,
    #[serde(default)]
    sets: BTreeMap<SetName, bool>,
}

/// The cluster that a pod's label names; none where there is no label, or no name of a cluster.
pub(super) fn cluster(pod: &impl ResourceExt) -> Option<ClusterName> {
    let label = pod.labels().get(CLUSTER_LABEL)?;
    ClusterName::in_namespace(&pod.namespace()?, label).ok()
}

/// What a pod's annotation says of clusters of the pod's own namespace: it is its author's word,
/// who may speak for no other. Where it cannot be read, or is missing though it was written, the
/// pod counts with [`most`].
pub(super) fn read(pod: &impl ResourceExt) -> BTreeMap<ClusterName, Exposure> {
    let unreadable = || cluster(pod).map(|cluster| (cluster, most())).into_iter().collect();
    let Some(text) = pod.annotations().get(EXPOSURE_ANNOTATION) else {
        return match pod.labels().contains_key(EXPOSED_LABEL) {
            true => unreadable(),
            false => BTreeMap::new(),
        };
    };
    match serde_json::from_str::<BTreeMap<ClusterName, Written>>(text) {
        Ok(written) => {
            let namespace = pod.namespace();
            let own = |name: &ClusterName| name.parts().0 == namespace.as_deref();
            let written = written.into_iter().filter(|(name, _)| own(name));
            written.map(|(name, it)| (name, it.into())).collect()
        }
        Err(error) => {
            tracing::debug!(%error, text, "annotation {EXPOSURE_ANNOTATION} cannot be read");
            unreadable()
        }
    }
}

/// The most that any worker may hold, but for the names of its sets. No agent counts as older than
/// the one that was granted it: the one that lives is to be heard.
pub(super) fn most() -> Exposure {
    Exposure { ttl: TTL_MAX, jobs_max: JOBS_PER_WORKER_MAX, ..Exposure::default() }
}

/// The annotation's text for `exposures`; none where there are none.
pub(super) fn text(exposures: &BTreeMap<ClusterName, Exposure>) -> Option<String> {
    let written: BTreeMap<_, _> =
        exposures.iter().map(|(name, exposure)| (name, Written::from(exposure))).collect();
    let text = (!written.is_empty()).then(|| serde_json::to_string(&written));
    text.map(|text| text.expect("names and numbers are JSON"))
}

impl From<&Exposure> for Written {
    fn from(exposure: &Exposure) -> Self {
        let Exposure { incarnation, ttl, jobs_max, sets } = exposure;
        Self {
            incarnation: *incarnation,
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            jobs_max: *jobs_max,
            sets: sets.clone(),
        }
    }
}

impl From<Written> for Exposure {
    /// Numbers beyond what a worker may ever hold were not written here.
    fn from(written: Written) -> Self {
        let Written { incarnation, ttl_ms, jobs_max, sets } = written;
        let ttl = Duration::from_millis(ttl_ms).min(TTL_MAX);
        Self { incarnation, ttl, jobs_max: jobs_max.min(JOBS_PER_WORKER_MAX), sets }
    }
}
