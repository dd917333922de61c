//! Fleets under a load, in simulated time. [`simulate`] runs people's own manifests with a
//! description of their load by the real cores of a coordinator and its agents, and beside them
//! what a plain Deployment and one with an autoscaler make of the same jobs. `docs/SIMULATE.md`
//! says what the file of a load has, and what is left out.
//!
//! * `cell`: the real cores of one cell, joined by messages and a store that take a fixed time.
//!   Row 12 of `make bench` has its rollout from it, too.
//! * `load`: the file, its rules, and what is drawn from it.
//! * `fleet`: pods, jobs and events. The pods' slots come from `slots`: either the `leases` of a
//!   cell, or `fixed_pools`.
//! * `served_shares`: which workers serve which nodes of pipelines, and `class_scaler`: how many
//!   workers a class has.
//! * `record`: sums over time and over `phases`, which become the figures of an `outcome`.
//! * `page`: an outcome as one HTML file, with its `plots`. What these have in common with the
//!   plots of the report of `make bench` is in [`chart`].
//!
//! **Invariant**: the outcome follows from the load and the seed: no clock, no IO, no order of a
//! hash map.

mod autoscaler;
mod cell;
pub mod chart;
mod class_record;
mod class_scaler;
mod deployment;
mod fixed_pools;
mod fleet;
mod jobs;
mod leases;
mod load;
mod outcome;
mod page;
mod phases;
mod plots;
mod record;
mod schedule;
mod served_shares;
mod slots;
mod stabilization;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::{Context, Result};
use leasehold_types::Moment;

pub use self::cell::{Cell, Happening, IdleTime};
pub use self::class_record::{CLASS_FIGURES, ClassFigures};
use self::fixed_pools::FixedPools;
use self::fleet::{ClusterRun, Fleet, FleetRun, Scaling};
use self::leases::Leases;
use self::load::{ClusterLoad, DeploymentLoad};
pub use self::load::{Distribution, Load, LoadFile};
pub use self::outcome::{ClusterOutcome, FIGURES, Outcome, PIPELINE_FIGURES, Side, SideOutcome};
pub use self::page::page;
pub use self::phases::PhaseFigures;
pub use self::record::{Course, JobFigures, StreamFigures};
pub use self::schedule::Schedule;
pub use self::served_shares::PipelineFigures;

/// The moment at which the time of a simulation begins.
const START: Moment = Moment(1_000_000_000);

/// Simulates a load on every side.
///
/// # Errors
/// If the cores do what they do only where a rule of the protocol is broken: a defect.
pub fn simulate(load: &Load, seed: u64) -> Result<Outcome> {
    let mut clusters: Vec<ClusterOutcome> = load.clusters.iter().map(without_sides).collect();
    let mut pipelines = Vec::new();
    for side in Side::ALL {
        let runs = run(load, side, IdleTime::Skipped, seed);
        let runs = runs.with_context(|| format!("cannot simulate {side} with seed {seed}"))?;
        for ((cluster, run), of_load) in clusters.iter_mut().zip(runs.clusters).zip(&load.clusters)
        {
            if side == Side::Leasehold || of_load.jobs.is_some() {
                let ClusterRun { jobs, streams, class, course, phases } = run;
                cluster.sides.push(SideOutcome { side, jobs, streams, class, course, phases });
            }
        }
        pipelines.extend(runs.pipelines);
    }
    Ok(Outcome { seed, simulated_seconds: load.length.as_secs_f64(), clusters, pipelines })
}

fn without_sides(load: &ClusterLoad) -> ClusterOutcome {
    ClusterOutcome { cluster: load.name.to_string(), sides: Vec::new() }
}

/// Simulates a load on one side.
fn run(load: &Load, side: Side, idle_time: IdleTime, seed: u64) -> Result<FleetRun> {
    match side {
        Side::Leasehold => {
            let leases = Leases::new(load, idle_time, seed, START)?;
            Fleet::new(load, leases, Scaling::Workers, seed, START)?.run()
        }
        Side::Deployment => with_fixed_pools(load, Scaling::FixedPools, seed),
        Side::Autoscaler => with_fixed_pools(load, Scaling::Autoscaler, seed),
    }
}

fn with_fixed_pools(load: &Load, scaling: Scaling, seed: u64) -> Result<FleetRun> {
    // Pods without jobs have slots that nobody asks for.
    let idle = DeploymentLoad { pool: 1, grace_period: Duration::ZERO };
    let jobs = load.clusters.iter().map(|cluster| cluster.jobs.as_ref());
    let loads = jobs.map(|jobs| jobs.map_or(idle, |jobs| jobs.deployment)).collect();
    Fleet::new(load, FixedPools::new(loads, START), scaling, seed, START)?.run()
}
