//! The mark of a busy pod: a label, and annotations by which autoscalers keep the pod. A value that
//! the pod already has is its user's and is not changed. One more annotation lists those that were
//! added, so that only they are removed.

use kube::ResourceExt;
use leasehold_kube_api::names::{
    BUSY_ANNOTATIONS_ANNOTATION, BUSY_LABEL, DO_NOT_DISRUPT_ANNOTATION, SAFE_TO_EVICT_ANNOTATION,
    TRUE,
};
use serde_json::{Map, Value, json};

/// The annotations by which cluster-autoscaler and Karpenter keep a busy pod.
const KEEP_ANNOTATIONS: [(&str, &str); 2] =
    [(SAFE_TO_EVICT_ANNOTATION, "false"), (DO_NOT_DISRUPT_ANNOTATION, TRUE)];

/// The state of each annotation of [`KEEP_ANNOTATIONS`] on a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyMark([KeepAnnotation; KEEP_ANNOTATIONS.len()]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum KeepAnnotation {
    /// The pod lacks it.
    #[default]
    Absent,
    /// The coordinator has added it.
    Added,
    /// It is the user's.
    Users,
}

impl BusyMark {
    /// The mark as it is on a pod.
    pub(super) fn read(pod: &impl ResourceExt) -> Self {
        let (labels, annotations) = (pod.labels(), pod.annotations());
        // Earlier versions added all of them to a busy pod, and no list.
        let is_earlier = labels.contains_key(BUSY_LABEL);
        let added = annotations.get(BUSY_ANNOTATIONS_ANNOTATION);
        let is_added = |name: &str| match added {
            Some(added) => added.split(',').any(|listed| listed == name),
            None => is_earlier,
        };
        Self(KEEP_ANNOTATIONS.map(|(name, value)| match annotations.get(name) {
            None => KeepAnnotation::Absent,
            Some(is) if is == value && is_added(name) => KeepAnnotation::Added,
            Some(_) => KeepAnnotation::Users,
        }))
    }

    /// The metadata that marks the pod as busy or idle, and the mark after that.
    pub(super) fn change(self, busy: bool) -> (Value, Self) {
        let mut annotations = Map::new();
        let mut added = Vec::new();
        let mut after = self;
        for ((name, value), annotation) in KEEP_ANNOTATIONS.into_iter().zip(&mut after.0) {
            match (&annotation, busy) {
                (KeepAnnotation::Users, _) | (KeepAnnotation::Absent, false) => {}
                (KeepAnnotation::Absent | KeepAnnotation::Added, true) => {
                    annotations.insert(name.to_owned(), json!(value));
                    added.push(name);
                    *annotation = KeepAnnotation::Added;
                }
                (KeepAnnotation::Added, false) => {
                    annotations.insert(name.to_owned(), Value::Null);
                    *annotation = KeepAnnotation::Absent;
                }
            }
        }
        // An empty list, too: without one the pod would count as marked by an earlier version.
        let list = busy.then(|| added.join(","));
        annotations.insert(BUSY_ANNOTATIONS_ANNOTATION.to_owned(), json!(list));
        let label = busy.then_some(TRUE);
        (json!({ "labels": { BUSY_LABEL: label }, "annotations": annotations }), after)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(metadata: &Value) -> Pod {
        serde_json::from_value(json!({ "metadata": metadata })).expect("a pod")
    }

    /// The annotations after a pod with these was marked as busy and as idle again.
    fn busy_and_idle(own: Value) -> [Value; 2] {
        let mut metadata = json!({ "annotations": own, "labels": {} });
        [true, false].map(|busy| {
            let mark = BusyMark::read(&pod(&metadata));
            let (change, after) = mark.change(busy);
            json_patch::merge(&mut metadata, &change);
            assert_eq!(BusyMark::read(&pod(&metadata)), after);
            // A second time it changes nothing.
            let before = metadata.clone();
            json_patch::merge(&mut metadata, &after.change(busy).0);
            assert_eq!(metadata, before);
            metadata["annotations"].clone()
        })
    }

    #[test]
    fn removes_what_it_has_added_and_nothing_else() {
        let [busy, idle] = busy_and_idle(json!({}));
        assert_eq!(busy[SAFE_TO_EVICT_ANNOTATION], "false");
        assert_eq!(busy[DO_NOT_DISRUPT_ANNOTATION], "true");
        assert_eq!(idle, json!({}));
        let own = json!({ SAFE_TO_EVICT_ANNOTATION: "true" });
        let [busy, idle] = busy_and_idle(own.clone());
        assert_eq!(busy[SAFE_TO_EVICT_ANNOTATION], "true");
        assert_eq!(busy[DO_NOT_DISRUPT_ANNOTATION], "true");
        assert_eq!(idle, own);
        let own = json!({ SAFE_TO_EVICT_ANNOTATION: "false", DO_NOT_DISRUPT_ANNOTATION: "true" });
        let [_, idle] = busy_and_idle(own.clone());
        assert_eq!(idle, own);
    }

    #[test]
    fn removes_what_an_earlier_version_added() {
        let metadata = json!({
            "labels": { BUSY_LABEL: TRUE },
            "annotations": { SAFE_TO_EVICT_ANNOTATION: "false", DO_NOT_DISRUPT_ANNOTATION: "no" },
        });
        let (change, _) = BusyMark::read(&pod(&metadata)).change(false);
        assert_eq!(change["annotations"][SAFE_TO_EVICT_ANNOTATION], Value::Null);
        let changed = change["annotations"].as_object().expect("annotations");
        assert!(!changed.contains_key(DO_NOT_DISRUPT_ANNOTATION), "{change}");
    }
}
