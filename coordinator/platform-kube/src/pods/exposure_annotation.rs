//! The exposure of a pod: an annotation with the most that the pod may hold, by cluster. A leader
//! writes it before it grants more, and every new leader reads it. An unreadable annotation counts
//! as the most that any worker may hold, never as less than was written. Who may patch the pod may
//! write anything there, so the annotation is read only up to a limit.

use std::collections::BTreeMap;

use kube::ResourceExt;
use leasehold_coordinator_core::exposure::{Entry, Exposure};
use leasehold_kube_api::names::{CLUSTER_LABEL, EXPOSED_LABEL, EXPOSURE_ANNOTATION};
use leasehold_platform::exposure_record::ExposureRecord;
use leasehold_types::{ClusterName, Epoch};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most entries of a pod. A pod has one, and one more for each cluster that it was a worker of
/// before and may still hold something of.
pub(super) const ENTRIES_MAX: usize = 8;
/// The longest annotation that is read: twice what as many entries with the longest names take.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// One cluster's part of the annotation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EntryRecord {
    /// The epoch of the leader that wrote it.
    epoch: Epoch,
    #[serde(flatten)]
    exposure: ExposureRecord,
}

/// The cluster in a pod's label, if the label is there and a valid name.
pub(super) fn cluster(pod: &impl ResourceExt) -> Option<ClusterName> {
    let label = pod.labels().get(CLUSTER_LABEL)?;
    ClusterName::in_namespace(&pod.namespace()?, label).ok()
}

/// The entries of a pod's annotation for clusters in the pod's own namespace; others are ignored,
/// since the pod's author has rights only there. If the annotation cannot be decoded, is larger
/// than any that a leader writes, or is missing though the label says that it was written, the pod
/// counts as if it may hold anything of the cluster in its label.
pub(super) fn read(pod: &impl ResourceExt) -> BTreeMap<ClusterName, Entry> {
    let unreadable =
        || cluster(pod).map(|cluster| (cluster, Entry::unreadable())).into_iter().collect();
    let Some(text) = pod.annotations().get(EXPOSURE_ANNOTATION) else {
        return if pod.labels().contains_key(EXPOSED_LABEL) {
            unreadable()
        } else {
            BTreeMap::new()
        };
    };
    let written = match decode(text) {
        Ok(written) => written,
        Err(error) => {
            report(pod, &error);
            return unreadable();
        }
    };
    let namespace = pod.namespace();
    let own = written.into_iter().filter(|(name, _)| name.parts().0 == namespace.as_deref());
    let entries = own.map(|(name, text)| match serde_json::from_value::<EntryRecord>(text) {
        Ok(EntryRecord { epoch, exposure }) => {
            (name, Entry { epoch, exposure: Exposure::from(exposure) })
        }
        Err(error) => {
            report(pod, &error.to_string());
            (name, Entry::unreadable())
        }
    });
    entries.collect()
}

fn decode(text: &str) -> Result<BTreeMap<ClusterName, Value>, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("it has {} bytes: at most {TEXT_BYTES_MAX} are read", text.len()));
    }
    let written: BTreeMap<_, _> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if written.len() > ENTRIES_MAX {
        return Err(format!("it has {} entries: at most {ENTRIES_MAX} are read", written.len()));
    }
    Ok(written)
}

fn report(pod: &impl ResourceExt, error: &str) {
    let (namespace, pod) = (pod.namespace(), pod.name_any());
    tracing::debug!(
        %error, namespace, pod,
        "cannot decode the annotation {EXPOSURE_ANNOTATION}: the pod counts as if it may hold \
         anything"
    );
}

/// The annotation's text for `entries`; `None` without an entry.
pub(super) fn text(entries: &BTreeMap<ClusterName, Entry>) -> Option<String> {
    let written = entries.iter().map(|(name, entry)| {
        let exposure = ExposureRecord::from(&entry.exposure);
        (name, EntryRecord { epoch: entry.epoch, exposure })
    });
    let written: BTreeMap<_, _> = written.collect();
    let text = (!written.is_empty()).then(|| serde_json::to_string(&written));
    text.map(|text| text.expect("names and numbers are JSON"))
}
