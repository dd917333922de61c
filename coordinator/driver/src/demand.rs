//! What each class is asked for. By the desired state alone every replica knows most of it; the
//! leader adds the workers that cannot be spared as shares lie now.

use std::collections::BTreeMap;

use leasehold_coordinator_core::desired::{Class, Desired};
use leasehold_coordinator_core::planner::pipelines::needed;
use leasehold_types::{ClusterName, Load};

/// What one class is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The load that it must process, that of Pending pipelines included.
    pub request: Load,
    /// What one worker is to have of that: its capacity times the target utilisation.
    pub target: Load,
    /// The fewest workers that the planner packs all its pipelines into. More than the request
    /// asks for where shares fill workers badly: without them a pipeline would wait for ever. The
    /// leader asks for more where its shares do not lie as in that packing.
    pub needed: u32,
}

/// What every class is asked for, by name.
pub type Demands = BTreeMap<ClusterName, Demand>;

/// What the classes of a desired state are asked for, with the workers that the leader knows each
/// to hold: a class is asked for so many as long as it may have them.
pub fn demands(desired: &Desired, held: &BTreeMap<ClusterName, u32>) -> Demands {
    let classes = desired.clusters.iter();
    let classes = classes.filter_map(|(name, cluster)| Some((name, cluster.class.as_ref()?)));
    let mut loads: BTreeMap<&ClusterName, (&Class, Vec<Load>)> =
        classes.map(|(name, class)| (name, (class, Vec::new()))).collect();
    for pipeline in desired.pipelines.values() {
        for node in pipeline.nodes.values() {
            // A class that is not there is asked for nothing.
            if let Some((_, loads)) = loads.get_mut(&node.class) {
                loads.push(pipeline.load);
            }
        }
    }
    let held = |name: &ClusterName| held.get(name).copied().unwrap_or(0);
    let demands = loads.into_iter();
    demands.map(|(name, (class, loads))| (name.clone(), demand(class, loads, held(name)))).collect()
}

fn demand(class: &Class, loads: Vec<Load>, held: u32) -> Demand {
    let request = loads.iter().copied().sum();
    let least = Load::from_milli(1).expect("the least load is one");
    let target = class.capacity.percent(class.utilization).max(least);
    let needed = needed(class.capacity, loads).max(held.min(class.workers_max));
    Demand { request, target, needed }
}
