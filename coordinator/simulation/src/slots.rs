//! Who gives the pods of a fleet their slots: leases, or a fixed number for each.

use std::time::Duration;

use anyhow::Result;
use leasehold_coordinator_core::view::ClassView;
use leasehold_types::Moment;

use crate::deployment::PodNumber;
use crate::load::RateChange;
use crate::phases::PhaseMoves;
use crate::record::StreamFigures;
use crate::served_shares::{PipelineFigures, ShareFigures};

/// What has changed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotChange {
    /// The number of jobs that a pod may begin may have changed.
    Slots(PodNumber),
    /// A pod that was stopped has ended, with the jobs that it still runs.
    Ended(PodNumber),
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A rollout replaces it.
    Rollout,
    /// There are to be fewer pods.
    ScaleIn,
}

/// A source of slots. All calls are at moments that do not go back. One without pipelines has only
/// what has no default.
pub(crate) trait Slots {
    /// When something happens next by itself.
    fn next_at(&self) -> Option<Moment>;

    /// Lets that happen.
    fn step(&mut self) -> Result<()>;

    /// The next thing that has changed, oldest first.
    fn take_change(&mut self) -> Option<SlotChange>;

    /// How many more jobs a pod may begin.
    fn free(&self, pod: PodNumber) -> u32;

    /// A pod is ready. Its cluster is named by its place in the load.
    fn start(&mut self, pod: PodNumber, cluster: usize, generation: u64, now: Moment)
    -> Result<()>;

    /// A pod begins a job. Returns whether it may.
    fn begin_job(&mut self, pod: PodNumber, job: u64, now: Moment) -> Result<bool>;

    /// A job of a pod has ended by itself.
    fn end_job(&mut self, pod: PodNumber, job: u64, now: Moment) -> Result<()>;

    /// A pod is deleted: it begins no job, and ends once its jobs have ended, or are killed.
    fn stop(&mut self, pod: PodNumber, cause: StopCause, now: Moment) -> Result<()>;

    /// The machine of a pod is lost.
    fn lose(&mut self, pod: PodNumber, now: Moment);

    /// The platform knows that nothing of a pod runs.
    fn forget(&mut self, pod: PodNumber, now: Moment) -> Result<()>;

    /// A cluster has another budget.
    fn set_budget(&mut self, cluster: usize, jobs_max: u32, now: Moment) -> Result<()>;

    /// The leading coordinator is killed, and another one takes over this much later.
    fn fail_over(&mut self, after: Duration, now: Moment);

    /// The API server does not answer from now on.
    fn begin_outage(&mut self, now: Moment);

    /// The API server answers again.
    fn end_outage(&mut self, now: Moment) -> Result<()>;

    /// What became of the streams of a cluster, until the end of the simulation.
    fn streams(&self, cluster: usize, end: Moment) -> Option<StreamFigures>;

    /// The moves of the streams of a cluster by phase; empty where no stream is known.
    fn moves(&self, cluster: usize) -> &[PhaseMoves];

    /// Documents come to pipelines at other rates.
    fn change_rates(&mut self, _change: &RateChange, _now: Moment) {}

    /// The manifests have the other rates of pipelines, and weights of streams.
    fn edit_manifests(&mut self, _change: &RateChange, _now: Moment) -> Result<()> {
        Ok(())
    }

    /// What the coordinator says of a class; none of another cluster, or while none has read the
    /// manifests.
    fn class(&self, _cluster: usize) -> Option<ClassView> {
        None
    }

    /// The pods of a class that can be removed now, one after the other.
    fn removable(&self, _cluster: usize) -> Vec<PodNumber> {
        Vec::new()
    }

    /// What became of the shares of a class, until the end of the simulation.
    fn shares(&self, _cluster: usize, _end: Moment) -> Option<ShareFigures> {
        None
    }

    /// What became of the pipelines, until the end of the simulation.
    fn pipelines(&self, _end: Moment) -> Vec<PipelineFigures> {
        Vec::new()
    }
}
