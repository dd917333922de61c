//! Which pods each fleet has, and which fleets have pods on each node, so that the change of a pod
//! or a node leads to its fleets.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_platform_kube::pods::{PodFacts, PodName};
use leasehold_types::ClusterName;

/// The pods as last seen.
#[derive(Debug, Default)]
pub(super) struct PodIndex {
    pods: BTreeMap<PodName, IndexedPod>,
    by_fleet: BTreeMap<ClusterName, BTreeSet<PodName>>,
    by_node: BTreeMap<String, BTreeSet<PodName>>,
}

/// The facts of a pod that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IndexedPod {
    uid: String,
    fleet: Option<ClusterName>,
    node: Option<String>,
}

/// What the change of a pod means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodUpdate {
    /// The fleets that it is a pod of, and was one of before.
    pub(super) fleets: BTreeSet<ClusterName>,
    /// The UID of the pod that no longer exists.
    pub(super) gone: Option<String>,
}

impl PodIndex {
    /// Stores a pod that has changed; `None` if it no longer exists.
    pub(super) fn update(&mut self, name: &PodName, pod: Option<&PodFacts>) -> PodUpdate {
        let after = pod.map(|pod| IndexedPod {
            uid: pod.uid.clone(),
            fleet: pod.cluster.clone(),
            node: pod.node.clone(),
        });
        let before = match &after {
            Some(after) => self.pods.insert(name.clone(), after.clone()),
            None => self.pods.remove(name),
        };
        let both = [before.as_ref(), after.as_ref()].into_iter().flatten();
        let fleets = both.filter_map(|pod| pod.fleet.clone()).collect();
        let uid = after.as_ref().map(|after| &after.uid);
        let gone = before.as_ref().map(|before| &before.uid).filter(|gone| Some(*gone) != uid);
        let gone = gone.cloned();
        if before != after {
            if let Some(IndexedPod { fleet, node, .. }) = before {
                remove(&mut self.by_fleet, fleet, name);
                remove(&mut self.by_node, node, name);
            }
            if let Some(IndexedPod { fleet, node, .. }) = after {
                add(&mut self.by_fleet, fleet, name);
                add(&mut self.by_node, node, name);
            }
        }
        PodUpdate { fleets, gone }
    }

    /// The names of all pods.
    pub(super) fn names(&self) -> impl Iterator<Item = &PodName> {
        self.pods.keys()
    }

    /// The pods of a fleet, by name.
    pub(super) fn pods_of(&self, fleet: &ClusterName) -> impl Iterator<Item = &PodName> {
        self.by_fleet.get(fleet).into_iter().flatten()
    }

    /// The fleets that have pods.
    pub(super) fn fleets(&self) -> impl Iterator<Item = &ClusterName> {
        self.by_fleet.keys()
    }

    /// The fleets that have pods on a node.
    pub(super) fn fleets_on(&self, node: &str) -> BTreeSet<ClusterName> {
        let pods = self.by_node.get(node).into_iter().flatten();
        pods.filter_map(|name| self.pods.get(name)?.fleet.clone()).collect()
    }
}

fn add<K: Ord>(index: &mut BTreeMap<K, BTreeSet<PodName>>, key: Option<K>, pod: &PodName) {
    if let Some(key) = key {
        index.entry(key).or_default().insert(pod.clone());
    }
}

fn remove<K: Ord>(index: &mut BTreeMap<K, BTreeSet<PodName>>, key: Option<K>, pod: &PodName) {
    let Some(key) = key else { return };
    let Some(pods) = index.get_mut(&key) else { return };
    pods.remove(pod);
    if pods.is_empty() {
        index.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleets::fixtures;

    fn fleet(name: &str) -> ClusterName {
        ClusterName::in_namespace("ns", name).expect("a name")
    }

    /// A pod of this fleet.
    fn pod(words: &str, of: &str) -> PodFacts {
        PodFacts { cluster: Some(fleet(of)), ..PodFacts::clone(&fixtures::pod(words).pod) }
    }

    fn names(index: &PodIndex, of: &str) -> Vec<String> {
        index.pods_of(&fleet(of)).map(|pod| pod.name.clone()).collect()
    }

    #[test]
    fn a_change_leads_to_the_fleet_of_the_pod_before_and_after_it() {
        let mut index = PodIndex::default();
        let first = pod("a on=one", "ci");
        let name = first.pod.clone();
        let of = |fleets: &[&str]| fleets.iter().map(|name| fleet(name)).collect::<BTreeSet<_>>();
        let update = index.update(&name, Some(&first));
        assert_eq!(update, PodUpdate { fleets: of(&["ci"]), gone: None });
        let relabelled = pod("a on=two", "other");
        let update = index.update(&name, Some(&relabelled));
        assert_eq!(update, PodUpdate { fleets: of(&["ci", "other"]), gone: None });
        assert_eq!((names(&index, "ci"), names(&index, "other")), (vec![], vec!["a".to_owned()]));
        assert_eq!((index.fleets_on("one"), index.fleets_on("two")), (of(&[]), of(&["other"])));
        let next = PodFacts { uid: "next".into(), ..relabelled };
        assert_eq!(index.update(&name, Some(&next)).gone.as_deref(), Some("uid-of-a"));
        let update = index.update(&name, None);
        assert_eq!(update, PodUpdate { fleets: of(&["other"]), gone: Some("next".into()) });
        assert_eq!((index.fleets().count(), index.fleets_on("two")), (0, of(&[])));
        assert_eq!(index.update(&name, None), PodUpdate::default());
    }
}
