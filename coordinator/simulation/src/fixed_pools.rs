//! Pods that each have a pool of a fixed size. A pod that is deleted begins no job, and is killed
//! with the jobs that it still runs when its grace period is over.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::Result;
use leasehold_types::Moment;

use crate::deployment::PodNumber;
use crate::load::DeploymentLoad;
use crate::phases::PhaseMoves;
use crate::record::StreamFigures;
use crate::schedule::Schedule;
use crate::slots::{SlotChange, Slots, StopCause};

/// The pools of a fleet.
#[derive(Debug)]
pub(crate) struct FixedPools {
    /// By cluster.
    loads: Vec<DeploymentLoad>,
    /// Those of pods that run.
    pools: BTreeMap<PodNumber, Pool>,
    /// The ends of grace periods.
    kills: Schedule<PodNumber>,
    changes: VecDeque<SlotChange>,
}

#[derive(Debug)]
struct Pool {
    cluster: usize,
    running: u32,
    is_stopped: bool,
}

impl FixedPools {
    /// The pools of clusters with these Deployments, in the order of the load.
    pub(crate) fn new(loads: Vec<DeploymentLoad>, now: Moment) -> Self {
        let (pools, changes) = (BTreeMap::new(), VecDeque::new());
        Self { loads, pools, kills: Schedule::new(now), changes }
    }

    /// A pod that was stopped ends, unless it has.
    fn end(&mut self, pod: PodNumber) {
        if self.pools.remove(&pod).is_some() {
            self.changes.push_back(SlotChange::Ended(pod));
        }
    }
}

impl Slots for FixedPools {
    fn next_at(&self) -> Option<Moment> {
        self.kills.next_at()
    }

    fn step(&mut self) -> Result<()> {
        if let Some(pod) = self.kills.take_next() {
            self.end(pod);
        }
        Ok(())
    }

    fn take_change(&mut self) -> Option<SlotChange> {
        self.changes.pop_front()
    }

    fn free(&self, pod: PodNumber) -> u32 {
        let pool = self.pools.get(&pod).filter(|pool| !pool.is_stopped);
        pool.map_or(0, |pool| self.loads[pool.cluster].pool.saturating_sub(pool.running))
    }

    fn start(&mut self, pod: PodNumber, cluster: usize, _: u64, _: Moment) -> Result<()> {
        self.pools.insert(pod, Pool { cluster, running: 0, is_stopped: false });
        self.changes.push_back(SlotChange::Slots(pod));
        Ok(())
    }

    fn begin_job(&mut self, pod: PodNumber, _: u64, _: Moment) -> Result<bool> {
        let is_free = self.free(pod) > 0;
        if let Some(pool) = self.pools.get_mut(&pod).filter(|_| is_free) {
            pool.running += 1;
        }
        Ok(is_free)
    }

    fn end_job(&mut self, pod: PodNumber, _: u64, _: Moment) -> Result<()> {
        let Some(pool) = self.pools.get_mut(&pod) else { return Ok(()) };
        pool.running -= 1;
        if pool.is_stopped && pool.running == 0 {
            self.end(pod);
        } else {
            self.changes.push_back(SlotChange::Slots(pod));
        }
        Ok(())
    }

    fn stop(&mut self, pod: PodNumber, _: StopCause, now: Moment) -> Result<()> {
        let Some(pool) = self.pools.get_mut(&pod) else { return Ok(()) };
        pool.is_stopped = true;
        if pool.running == 0 {
            self.end(pod);
        } else {
            let grace_period = self.loads[pool.cluster].grace_period;
            self.kills.add(now + grace_period, pod);
        }
        Ok(())
    }

    fn lose(&mut self, pod: PodNumber, _: Moment) {
        self.pools.remove(&pod);
    }

    fn forget(&mut self, _: PodNumber, _: Moment) -> Result<()> {
        Ok(())
    }

    fn set_budget(&mut self, _: usize, _: u32, _: Moment) -> Result<()> {
        Ok(())
    }

    fn fail_over(&mut self, _: Duration, _: Moment) {}

    fn begin_outage(&mut self, _: Moment) {}

    fn end_outage(&mut self, _: Moment) -> Result<()> {
        Ok(())
    }

    fn streams(&self, _: usize, _: Moment) -> Option<StreamFigures> {
        None
    }

    fn moves(&self, _: usize) -> &[PhaseMoves] {
        &[]
    }
}
