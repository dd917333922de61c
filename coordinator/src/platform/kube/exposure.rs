//! The most that a pod may hold, as an annotation of it, cluster by cluster: written before it is
//! granted anything beyond, and read by every new leader. What cannot be read counts as nothing
//! written.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_coordinator_core::event::Exposure;
use leasehold_types::{ClusterName, Incarnation, SetName};
use serde::{Deserialize, Serialize};

use super::names::EXPOSURE_ANNOTATION;

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

/// What the annotations of a pod in this namespace say of clusters of that namespace: they are
/// its author's word, who may speak for no other.
pub(super) fn read(
    namespace: &str,
    annotations: &BTreeMap<String, String>,
) -> BTreeMap<ClusterName, Exposure> {
    let Some(text) = annotations.get(EXPOSURE_ANNOTATION) else { return BTreeMap::new() };
    match serde_json::from_str::<BTreeMap<ClusterName, Written>>(text) {
        Ok(written) => {
            let own = |name: &ClusterName| name.parts().0 == Some(namespace);
            let written = written.into_iter().filter(|(name, _)| own(name));
            written.map(|(name, it)| (name, it.into())).collect()
        }
        Err(error) => {
            tracing::warn!(%error, text, "annotation {EXPOSURE_ANNOTATION} cannot be read");
            BTreeMap::new()
        }
    }
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
    fn from(written: Written) -> Self {
        let Written { incarnation, ttl_ms, jobs_max, sets } = written;
        Self { incarnation, ttl: Duration::from_millis(ttl_ms), jobs_max, sets }
    }
}
