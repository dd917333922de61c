//! The core of one cell: it owns what is desired, what is observed and the ledger, and is driven
//! by events. It stays the only one that decides who holds what.

use leasehold_types::{ClusterName, Moment, SetName, StreamKey, TimeBounds, WorkerKey};

use crate::effect::{Effect, Wakeup};
use crate::event::Event;
use crate::view::{ClusterView, Explanation, Leadership, PlanView, StreamView, WhatIf, WorkerView};

/// What a core must know before its first event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// How far clocks may be apart.
    pub bounds: TimeBounds,
}

/// One cell's state.
#[derive(Debug)]
pub struct Core {
    config: Config,
}

impl Core {
    /// A core that stands by and wants nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Takes one event in. Effects follow at [`Self::settle`], so that many events that are
    /// there together are planned together.
    pub fn handle(&mut self, event: Event, now: Moment) {
        let _ = (event, now, self.config);
    }

    /// Plans what has changed, and decides what is granted, asked back and freed.
    pub fn settle(&mut self, now: Moment) {
        let _ = now;
    }

    /// The next effect, oldest first.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        None
    }

    /// When to send [`Event::Wake`], if at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Wakeup> {
        None
    }

    /// Whether this replica leads.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        Leadership::StandsBy(None)
    }

    /// All clusters, by name.
    #[must_use]
    pub fn clusters(&self) -> Vec<ClusterView> {
        Vec::new()
    }

    /// The workers of a cluster, by name; none where no manifest defines it.
    #[must_use]
    pub fn workers(&self, cluster: &ClusterName, now: Moment) -> Option<Vec<WorkerView>> {
        let _ = (cluster, now);
        None
    }

    /// One worker.
    #[must_use]
    pub fn worker(&self, key: &WorkerKey, now: Moment) -> Option<WorkerView> {
        let _ = (key, now);
        None
    }

    /// The streams of a set, in the manifest's order; none where no manifest defines it.
    #[must_use]
    pub fn streams(&self, set: &SetName) -> Option<Vec<StreamView>> {
        let _ = set;
        None
    }

    /// One stream.
    #[must_use]
    pub fn stream(&self, key: &StreamKey) -> Option<StreamView> {
        let _ = key;
        None
    }

    /// Why a worker has what it has.
    #[must_use]
    pub fn explain_worker(&self, key: &WorkerKey, now: Moment) -> Option<Explanation> {
        let _ = (key, now);
        None
    }

    /// Why a stream is where it is.
    #[must_use]
    pub fn explain_stream(&self, key: &StreamKey, now: Moment) -> Option<Explanation> {
        let _ = (key, now);
        None
    }

    /// What would be planned for a cluster under other circumstances; changes nothing.
    #[must_use]
    pub fn what_if(&self, cluster: &ClusterName, what_if: &WhatIf) -> Option<PlanView> {
        let _ = (cluster, what_if);
        None
    }
}
