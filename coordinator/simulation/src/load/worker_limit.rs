//! The most workers over the course of a load: events change how many a cluster has.

use leasehold_types::limits::WORKERS_MAX;

use super::{ClusterLoad, FleetEvent, TimedEvent};

/// More workers than one coordinator takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess {
    /// The field that asks for them.
    pub(super) field: String,
    /// How many all clusters have together.
    pub(super) workers: usize,
}

/// The first event after which there are too many workers. Each event has its number in the file,
/// and they are in the order of time.
pub(super) fn first_excess(
    clusters: &[ClusterLoad],
    events: &[(usize, TimedEvent)],
) -> Option<Excess> {
    let mut budgets: Vec<u32> = clusters.iter().map(|cluster| cluster.spec.jobs_max).collect();
    let mut scaled: Vec<Option<u32>> = vec![None; clusters.len()];
    for (number, timed) in events {
        let field = match timed.event {
            FleetEvent::Scale { cluster, workers } => {
                scaled[cluster] = Some(workers);
                "scale.workers"
            }
            FleetEvent::Budget { cluster, jobs_max } => {
                budgets[cluster] = jobs_max;
                "budget.maxJobs"
            }
            FleetEvent::Rollout { .. }
            | FleetEvent::Lose { .. }
            | FleetEvent::Failover { .. }
            | FleetEvent::Outage { .. } => continue,
        };
        let workers =
            clusters.iter().zip(&budgets).zip(&scaled).map(|((cluster, budget), scaled)| {
                scaled.unwrap_or_else(|| cluster.workers_for(*budget)) as usize
            });
        let workers: usize = workers.sum();
        if workers > WORKERS_MAX {
            return Some(Excess { field: format!("events[{number}].{field}"), workers });
        }
    }
    None
}
