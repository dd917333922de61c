//! WorkerClusters, and which of them and of the WorkerClasses have a place: the two kinds share
//! their names and one limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Cluster, Desired};
use leasehold_types::limits::NamespaceShare;
use leasehold_types::{ClusterName, limits};

use super::super::check::ClassDraft;
use super::super::places::Places;
use super::super::precedence::Created;
use super::super::problem::Problem;
use super::{ResolvedEntry, last_class, last_cluster};

type ClusterEntry = ResolvedEntry<ClusterName, Arc<Cluster>>;
type ClassEntry = ResolvedEntry<ClusterName, ClassDraft>;

/// What is known once clusters and classes have their places.
pub(super) struct FleetPlaces {
    /// The classes that have a place.
    pub(super) classes: Vec<ClassEntry>,
    /// The clusters that are defined, but have no place or not their name.
    pub(super) refused: BTreeSet<ClusterName>,
    /// The places that are left.
    pub(super) left: Places,
}

/// Takes the clusters that have a place into force.
pub(super) fn take_clusters(
    clusters: Vec<ClusterEntry>,
    classes: Vec<ClassEntry>,
    share: NamespaceShare,
    next: &mut Desired,
    before: &Desired,
    problems: &mut Vec<Problem>,
) -> FleetPlaces {
    let mut without_place: BTreeSet<_> =
        clusters.iter().map(|cluster| cluster.name.clone()).collect();
    let (clusters, classes) = without_namesakes(clusters, classes, problems);
    let mut places = Places::new("WorkerClusters and WorkerClasses", limits::CLUSTERS_MAX, share);
    let refused = refused(&clusters, &classes, &mut places, before);
    let clusters = without(clusters, &refused.clusters, problems);
    let classes = without(classes, &refused.classes, problems);
    for mut cluster in clusters {
        without_place.remove(&cluster.name);
        let chosen = match (cluster.wanted.take(), last_cluster(before, &cluster.name)) {
            (Some(wanted), Some(last)) if wanted == *last => last.clone(),
            (Some(wanted), _) => wanted,
            (None, Some(last)) => last.clone(),
            (None, None) => continue,
        };
        next.clusters.insert(cluster.name, chosen);
    }
    FleetPlaces { classes, refused: without_place, left: places }
}

/// Of a cluster and a class of one name the older one has it, and in files the cluster.
fn without_namesakes(
    clusters: Vec<ClusterEntry>,
    classes: Vec<ClassEntry>,
    problems: &mut Vec<Problem>,
) -> (Vec<ClusterEntry>, Vec<ClassEntry>) {
    let since: BTreeMap<&ClusterName, Option<&Created>> =
        clusters.iter().map(|cluster| (&cluster.name, cluster.created())).collect();
    let (mut of_classes, mut of_clusters) = (Refusals::new(), Refusals::new());
    for class in &classes {
        let Some(cluster_since) = since.get(&class.name) else { continue };
        let name = class.name.clone();
        let rest = format!(
            "since workers name either by --cluster {:?}: rename one of them",
            name.parts().1
        );
        if class.created() < *cluster_since {
            let why =
                format!("is the name of a WorkerClass too, which is older and keeps it, {rest}");
            of_clusters.insert(name, why);
        } else {
            let older = if class.created().is_some() { "is older and " } else { "" };
            let why = format!("is the name of a WorkerCluster too, which {older}keeps it, {rest}");
            of_classes.insert(name, why);
        }
    }
    (without(clusters, &of_clusters, problems), without(classes, &of_classes, problems))
}

/// The problem of each entry that is refused.
type Refusals = BTreeMap<ClusterName, String>;

/// What has no place.
#[derive(Default)]
struct RefusedFleets {
    clusters: Refusals,
    classes: Refusals,
}

/// Gives out the places in the order in which clusters and classes came.
fn refused(
    clusters: &[ClusterEntry],
    classes: &[ClassEntry],
    places: &mut Places,
    before: &Desired,
) -> RefusedFleets {
    // With a time of creation it does not matter what this process has in force.
    let claims = clusters.iter().map(|cluster| {
        let is_new = cluster.created().is_none() && last_cluster(before, &cluster.name).is_none();
        (cluster.created(), is_new, false, &cluster.name)
    });
    let of_classes = classes.iter().map(|class| {
        let is_new = class.created().is_none() && last_class(before, &class.name).is_none();
        (class.created(), is_new, true, &class.name)
    });
    let mut claims: Vec<_> = claims.chain(of_classes).collect();
    claims.sort_unstable();
    let mut refused = RefusedFleets::default();
    for (_, _, is_class, name) in claims {
        if let Err(no_place) = places.take(name.parts().0, 1) {
            let of_kind = if is_class { &mut refused.classes } else { &mut refused.clusters };
            of_kind.insert(name.clone(), no_place.of_one());
        }
    }
    refused
}

/// The entries that are not refused. The others are reported.
fn without<T>(
    entries: Vec<ResolvedEntry<ClusterName, T>>,
    refused: &Refusals,
    problems: &mut Vec<Problem>,
) -> Vec<ResolvedEntry<ClusterName, T>> {
    let mut is_taken = |entry: &ResolvedEntry<ClusterName, T>| {
        let why = refused.get(&entry.name);
        problems.extend(why.map(|why| entry.name_problem(why.clone())));
        why.is_none()
    };
    entries.into_iter().filter(|entry| is_taken(entry)).collect()
}
