//! A replica's view of the election.

use std::collections::BTreeMap;

use leasehold_coordinator_core::campaign::{Lead, StoreRequest};
use leasehold_types::{Epoch, Moment};

/// One life's view of the election.
#[derive(Debug, Default)]
pub(crate) struct Election {
    /// What it does as a leader, while it is one.
    pub lead: Option<Lead>,
    /// The version last seen, and when it was first seen.
    pub seen: Option<(u64, Moment)>,
    /// It takes over as soon as it has looked, since it knows that the leader is lost.
    pub eager: bool,
    /// The replica that led, as far as it knows.
    pub leader: Option<usize>,
    /// When the take on its way was sent, and what it rests on.
    pub taking: Option<(Moment, Moment)>,
    /// An agent remembers this epoch.
    pub above: Epoch,
    /// A leader's requests that are not answered.
    pub asked: BTreeMap<u64, StoreRequest>,
    pub number: u64,
}

impl Election {
    /// The term that it has, and its end by this replica's clock.
    pub(crate) fn term(&self) -> Option<(Epoch, Moment)> {
        self.lead.as_ref().map(|lead| (lead.epoch(), lead.until()))
    }

    /// Its next term is to be above this epoch, which an agent remembers.
    pub(crate) fn stay_above(&mut self, above: Option<Epoch>) {
        self.above = self.above.max(above.unwrap_or_default());
    }

    /// Whether the store owes it no answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.asked.is_empty()
    }
}
