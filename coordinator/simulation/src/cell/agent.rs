//! A worker of a cell and its agent, as the cell keeps them.

use leasehold_agent_core::{Config, Holder, Memory, UnwrittenJournal};
use leasehold_coordinator_core::event::ConnId;
use leasehold_types::{AgentId, LinkNumber, Moment, WorkerKey};

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
}

impl Agent {
    /// The first agent of a worker, beside it as a sidecar.
    pub(super) fn new(key: WorkerKey, number: WorkerNumber, generation: u64, now: Moment) -> Self {
        let config = Config {
            generation,
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
        }
    }
}
