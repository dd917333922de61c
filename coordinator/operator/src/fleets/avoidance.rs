//! Tells the core which workers are on cordoned nodes: they get nothing new while others have room.
//! Every replica does so, so that the next leader plans as this one does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::event::Event;
use leasehold_driver::port::Stopped;
use leasehold_manifest::manifest::OnCordon;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::{WorkerKey, WorkerName};
use tokio::time::sleep;

use super::Context;
use super::fleet::Fleet;

/// Changes of pods, nodes and objects that follow each other within this time are one.
const GATHERED: Duration = Duration::from_millis(250);

/// Runs until the driver ends.
pub(super) async fn run(context: Context) -> Result<(), Stopped> {
    let (mut nodes, mut pods) = (context.nodes.changed(), context.pods.changed());
    let mut objects = context.objects.clone();
    let mut told = BTreeSet::new();
    loop {
        let cordoned = context.nodes.closed().cordoned;
        let found = if cordoned.is_empty() {
            BTreeSet::new()
        } else {
            avoided(&context.objects.borrow(), &context.pods.all(), &cordoned)
        };
        if found != told {
            told.clone_from(&found);
            let event = Event::Avoid(Arc::new(found));
            context.facts.send(event).await.map_err(|_| Stopped)?;
        }
        let changed = tokio::select! {
            changed = nodes.changed() => changed,
            changed = pods.changed() => changed,
            changed = objects.changed() => changed,
        };
        changed.map_err(|_| Stopped)?;
        sleep(GATHERED).await;
    }
}

/// The workers on cordoned nodes, of fleets that prefer others.
fn avoided(
    objects: &Objects,
    pods: &[Arc<PodFacts>],
    cordoned: &BTreeSet<String>,
) -> BTreeSet<WorkerKey> {
    let is_on_cordoned =
        |pod: &&Arc<PodFacts>| pod.node.as_ref().is_some_and(|node| cordoned.contains(node));
    let on_cordoned = pods.iter().filter(|pod| pod.is_active()).filter(is_on_cordoned);
    let worker = |pod: &Arc<PodFacts>| {
        let cluster = pod.cluster.clone()?;
        let fleet = Fleet::find(objects, &cluster)?;
        let worker = WorkerName::present_name(&pod.pod.name).ok()?;
        (fleet.on_cordon() == OnCordon::Prefer).then_some(WorkerKey { cluster, worker })
    };
    on_cordoned.filter_map(worker).collect()
}

#[cfg(test)]
mod tests {
    use leasehold_platform_kube::desired::CachedObject;
    use serde_json::json;

    use super::*;
    use crate::fleets::fixtures;

    #[test]
    fn workers_on_cordoned_nodes_are_avoided_unless_their_fleet_says_otherwise() {
        let cordoned = BTreeSet::from(["cordoned".to_owned()]);
        let pods = ["a on=cordoned", "b", "c on=cordoned going"];
        let pods: Vec<_> = pods.iter().map(|words| fixtures::pod(words).pod).collect();
        for (on_cordon, wanted) in [
            (None, vec!["a"]),
            (Some("Prefer"), vec!["a"]),
            (Some("Drain"), vec![]),
            (Some("Ignore"), vec![]),
        ] {
            let mut spec = json!({ "maxJobs": 1, "maxJobsPerWorker": 1 });
            if let Some(on_cordon) = on_cordon {
                spec["onCordon"] = on_cordon.into();
            }
            let object = Arc::new(fixtures::cluster_object(spec));
            let seen = CachedObject { object, generation: 1, problems: Vec::new() };
            let mut objects = Objects::default();
            objects.clusters.insert(fixtures::name(), seen);
            let found = avoided(&objects, &pods, &cordoned);
            let names: Vec<_> = found.iter().map(|key| key.worker.as_str()).collect();
            assert_eq!(names, wanted, "{on_cordon:?}");
        }
    }
}
