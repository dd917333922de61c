//! A worker of a cell and its agent, as the cell keeps them.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_agent_core::{Config, Holder, Memory, UnwrittenJournal};
use leasehold_coordinator_core::event::ConnId;
use leasehold_types::{AgentId, LinkNumber, Load, Moment, ShareKey, StreamKey, Token, WorkerKey};

use super::WorkerNumber;
use crate::schedule::Place;

/// Whether a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerPhase {
    Running,
    /// It has ended, and the platform does not know it yet.
    Lost,
    /// The platform knows that it has ended.
    Gone,
}

/// A worker and its agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) key: WorkerKey,
    pub(super) holder: Holder<UnwrittenJournal>,
    pub(super) phase: WorkerPhase,
    /// The newest link that it has dialled.
    pub(super) dialled: Option<LinkNumber>,
    /// The link that is open, and its connection.
    pub(super) open: Option<(LinkNumber, ConnId)>,
    /// When it is woken next by its own wish.
    pub(super) wakeup: Option<Place>,
    /// How many more jobs it may begin.
    pub(super) free_slots: u32,
    /// Its lease has changed since its free slots were counted.
    pub(super) is_changed: bool,
    /// It has been granted a stream that its worker has not seen.
    pub(super) has_new_stream: bool,
    /// It belongs to a class: its worker sees and releases shares of pipelines.
    pub(super) serves_pipelines: bool,
    /// The shares that its worker is to release.
    asked: BTreeSet<(StreamKey, Token)>,
    /// The loads of its shares, while its effects are carried out. A lease is copied with all its
    /// shares: once for each grant would take quadratic time.
    loads: Option<BTreeMap<ShareKey, Load>>,
}

impl Agent {
    /// The first agent of a worker, beside it as a sidecar.
    pub(super) fn new(
        key: WorkerKey,
        number: WorkerNumber,
        generation: u64,
        serves_pipelines: bool,
        now: Moment,
    ) -> Self {
        let config = Config {
            generation,
            exposes_bindings: serves_pipelines,
            identity: Some(AgentId(number as u128 + 1)),
            stays_after_drain: true,
            ..Config::example(key.clone())
        };
        Self {
            key,
            holder: Holder::new(config, Memory::default(), UnwrittenJournal, now),
            phase: WorkerPhase::Running,
            dialled: None,
            open: None,
            wakeup: None,
            free_slots: 0,
            is_changed: false,
            has_new_stream: false,
            serves_pipelines,
            asked: BTreeSet::new(),
            loads: None,
        }
    }

    /// The shares that its worker is to release, without those of the last call. At the deadline of
    /// a drain the agent asks for them without a notice.
    pub(super) fn take_asked(&mut self, now: Moment) -> Vec<(StreamKey, Token)> {
        let shares = self.holder.peek(now).bindings.into_iter();
        let asked = shares.filter(|share| share.revoked.is_some());
        let asked: BTreeSet<_> = asked.map(|share| (share.key.stream(), share.token)).collect();
        let new = asked.difference(&self.asked).cloned().collect();
        self.asked = asked;
        new
    }

    /// The load of a share, nothing if it has been given back since; none of a stream.
    pub(super) fn load_of(&mut self, stream: &StreamKey, now: Moment) -> Option<Load> {
        let key = ShareKey::of(stream)?;
        let holder = &self.holder;
        let loads = self.loads.get_or_insert_with(|| {
            let shares = holder.peek(now).bindings.into_iter();
            shares.map(|share| (share.key, share.load)).collect()
        });
        Some(loads.get(&key).copied().unwrap_or(Load::ZERO))
    }

    /// Its lease may be another one from now on: the loads of its shares are looked up again.
    pub(super) fn forget_loads(&mut self) {
        self.loads = None;
    }

    /// Whether it drains, and its worker serves pipelines until others have room, or until the
    /// drain's deadline.
    pub(super) fn drains_with_shares(&self) -> bool {
        if !self.serves_pipelines || self.phase != WorkerPhase::Running {
            return false;
        }
        let outstanding = self.holder.outstanding();
        outstanding.draining && outstanding.shares > 0
    }
}
