//! How many workers each class needs. Every replica computes most of it from the desired state; the
//! leader adds the workers that the present shares cannot spare.

use std::collections::BTreeMap;

use leasehold_coordinator_core::desired::{Class, Desired};
use leasehold_coordinator_core::planner::pipelines::needed;
use leasehold_types::{ClusterName, Load};

/// The demand for one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The load that the class must process, Pending pipelines included.
    pub request: Load,
    /// The load that one worker should have: its capacity times the target utilisation.
    pub target: Load,
    /// The fewest workers onto which the planner can pack all pipelines of the class. It can be
    /// more than the request divided by the target: without these workers a pipeline would wait
    /// forever. It includes the workers that the present shares cannot spare, as the leader knows.
    pub needed: u32,
}

/// The demand for every class, by name.
pub type Demands = BTreeMap<ClusterName, Demand>;

/// The demands of a desired state. `required` has the workers that each class cannot spare now, as
/// the leader knows them: a class needs at least that many, up to its maximum.
pub fn demands(desired: &Desired, required: &BTreeMap<ClusterName, u32>) -> Demands {
    let classes = desired.clusters.iter();
    let classes = classes.filter_map(|(name, cluster)| Some((name, cluster.class.as_ref()?)));
    let mut loads: BTreeMap<&ClusterName, (&Class, Vec<Load>)> =
        classes.map(|(name, class)| (name, (class, Vec::new()))).collect();
    for pipeline in desired.pipelines.values() {
        for node in pipeline.nodes.values() {
            // There is no demand for a class that does not exist.
            if let Some((_, loads)) = loads.get_mut(&node.class) {
                loads.push(pipeline.load);
            }
        }
    }
    let required = |name: &ClusterName| required.get(name).copied().unwrap_or(0);
    let demands = loads.into_iter();
    demands
        .map(|(name, (class, loads))| (name.clone(), demand(class, loads, required(name))))
        .collect()
}

fn demand(class: &Class, loads: Vec<Load>, required: u32) -> Demand {
    let request = loads.iter().copied().sum();
    let least = Load::from_milli(1).expect("the smallest load is 1");
    let target = class.capacity.percent(class.utilization).max(least);
    let needed = needed(class.capacity, loads).max(required.min(class.workers_max));
    Demand { request, target, needed }
}
