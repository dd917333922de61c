//! How large the fleets of a report are, and how often each thing is measured.

use std::time::Duration;

use super::options::Options;
use super::rollout::Rollout;
use crate::bench;

/// The fleets at which goals are declared.
pub(super) const AGENTS: usize = 2_000;
pub(super) const AGENTS_LARGE: usize = 10_000;
pub(super) const AGENTS_SMALL: usize = 1_000;
/// One more fleet, for the plot over sizes.
const AGENTS_BETWEEN: usize = 5_000;
pub(super) const STREAMS: usize = 1_000_000;
/// The streams that are assigned without a fleet.
const STREAMS_ASSIGNED: usize = 100_000;
/// The workers that a rollout without processes replaces.
pub(super) const WORKERS_REPLACED: usize = 100;
/// Connections for each agent of the fleet that is compared: its session, the one by which it
/// follows who leads, and one of each of two peers.
const CONNECTIONS_PER_AGENT: usize = 4;

/// The sizes of one report.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// Whether these are the sizes of `--short`, to which no goal applies.
    pub(super) are_short: bool,
    /// The fleet that is compared with peers; agents join another one of this size.
    pub(super) agents: usize,
    /// The largest fleet.
    pub(super) large: usize,
    /// The fleet whose leader is idle and is stopped, and which has many streams.
    pub(super) small: usize,
    /// A fleet between the others.
    pub(super) between: usize,
    /// The streams of the fleet that has many.
    pub(super) streams: usize,
    /// The streams that are assigned without a fleet, and those of the fleet that agents join.
    pub(super) streams_assigned: usize,
    /// The rollout without processes.
    pub(super) rollout: Rollout,
    /// How often each edit and each assignment is made, and how many agents join.
    pub(super) rounds: usize,
    /// How often one fleet's leader is killed in a row.
    pub(super) failovers: usize,
    /// How long the leader is idle, and the agent that is measured alone.
    pub(super) idle: Duration,
    /// How long a fleet is left alone before a measurement.
    pub(super) settle: Duration,
}

impl Sizes {
    pub(super) fn of(options: &Options) -> Self {
        let full = Self {
            are_short: false,
            agents: AGENTS,
            large: AGENTS_LARGE,
            small: AGENTS_SMALL,
            between: AGENTS_BETWEEN,
            streams: STREAMS,
            streams_assigned: STREAMS_ASSIGNED,
            rollout: Rollout {
                workers: WORKERS_REPLACED,
                jobs_per_worker: 10,
                job_mean: Duration::from_secs(20 * 60),
            },
            rounds: 10,
            failovers: 100,
            idle: Duration::from_secs(20),
            settle: Duration::from_secs(1),
        };
        let short = Self {
            are_short: true,
            agents: 20,
            large: 40,
            small: 10,
            between: 20,
            streams: 1_000,
            streams_assigned: 1_000,
            rollout: Rollout { workers: 4, jobs_per_worker: 3, job_mean: Duration::from_secs(60) },
            rounds: 2,
            failovers: 2,
            idle: Duration::from_secs(1),
            settle: Duration::from_millis(100),
        };
        let sizes = if options.short { short } else { full };
        let agents_max = options.agents_max.unwrap_or(usize::MAX);
        let cut = |agents: usize| bench::at_most_files(agents.min(agents_max));
        let connections = CONNECTIONS_PER_AGENT * sizes.agents.min(agents_max);
        Self {
            agents: bench::at_most_files(connections) / CONNECTIONS_PER_AGENT,
            large: cut(sizes.large),
            small: cut(sizes.small),
            between: cut(sizes.between),
            rounds: options.rounds.unwrap_or(sizes.rounds),
            failovers: options.failovers.unwrap_or(sizes.failovers),
            ..sizes
        }
    }
}
