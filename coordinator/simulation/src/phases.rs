//! The phases of a simulation: from its start to the first event, and from each event to the next
//! one. What happened in a phase is mostly what its event has led to.
//!
//! **Invariant**: a moment is in one phase, the last one that has begun by then.

use leasehold_types::Moment;
use serde::Serialize;

use crate::load::{FleetEvent, Load};

/// What happened to a cluster in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseFigures {
    /// When it began, in seconds after the start of the simulation.
    pub from_seconds: f64,
    /// The event that it began with, as the load names it, or `start`. The event may be of another
    /// cluster.
    pub event: &'static str,
    /// The most jobs that ran at once.
    pub running_max: u32,
    /// How often a stream, or a share of a pipeline, went from one worker to another.
    pub moves: u64,
    /// From the beginning of the phase to the last move, in seconds; none where none moved.
    pub last_move_seconds: Option<f64>,
    /// From the beginning of the phase until the last worker became ready or ended, in seconds;
    /// none where no worker did.
    pub last_worker_seconds: Option<f64>,
}

/// When the phases of a simulation begin, in the order of time: one at least.
#[derive(Clone, Debug)]
pub(crate) struct PhaseStarts(Vec<Moment>);

/// What is counted in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PhaseCounts {
    pub(crate) running_max: u32,
    /// The last moment at which a worker became ready or ended.
    pub(crate) last_worker: Option<Moment>,
}

/// The moves of streams in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PhaseMoves {
    pub(crate) count: u64,
    pub(crate) last: Option<Moment>,
}

impl PhaseStarts {
    /// The phases of a load that is simulated from `start` on.
    pub(crate) fn new(load: &Load, start: Moment) -> Self {
        let events = load.events.iter().map(|timed| start + timed.at);
        Self::from_moments(std::iter::once(start).chain(events).collect())
    }

    /// Phases that begin at these moments, which are in the order of time.
    pub(crate) fn from_moments(moments: Vec<Moment>) -> Self {
        assert!(!moments.is_empty(), "every simulation has a first phase");
        Self(moments)
    }

    /// The number of phases.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The place of the phase that a moment is in.
    pub(crate) fn place(&self, at: Moment) -> usize {
        self.0.partition_point(|begins| *begins <= at).saturating_sub(1)
    }

    /// The figures of all phases. Without streams `moves` may be empty.
    pub(crate) fn figures(
        &self,
        load: &Load,
        counts: &[PhaseCounts],
        moves: &[PhaseMoves],
    ) -> Vec<PhaseFigures> {
        let events = load.events.iter().map(|timed| timed.event.name());
        let begun = self.0.iter().zip(std::iter::once("start").chain(events));
        let figures = begun.zip(counts).enumerate().map(|(place, ((begins, event), counts))| {
            let moves = moves.get(place).copied().unwrap_or_default();
            let after = |at: Moment| at.since(*begins).as_secs_f64();
            PhaseFigures {
                from_seconds: begins.since(self.0[0]).as_secs_f64(),
                event,
                running_max: counts.running_max,
                moves: moves.count,
                last_move_seconds: moves.last.map(after),
                last_worker_seconds: counts.last_worker.map(after),
            }
        });
        figures.collect()
    }
}

impl FleetEvent {
    /// Its field in the file of a load.
    fn name(self) -> &'static str {
        match self {
            Self::Rollout { .. } => "rollout",
            Self::Scale { .. } => "scale",
            Self::Lose { .. } => "lose",
            Self::Failover { .. } => "failover",
            Self::Outage { .. } => "outage",
            Self::Budget { .. } => "budget",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_in_the_last_phase_that_has_begun() {
        let starts = PhaseStarts::from_moments([10, 20, 20, 30].map(Moment).into());
        let places = [10, 19, 20, 29, 30, 99].map(|at| starts.place(Moment(at)));
        assert_eq!(places, [0, 0, 2, 2, 3, 3]);
    }
}
