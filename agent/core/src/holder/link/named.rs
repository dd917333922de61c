//! The leader that a replica has named, until a leader has welcomed the agent.

use std::time::Duration;

use leasehold_types::Moment;

use super::{Holder, Link, Stage};
use crate::effect::Target;
use crate::journal::Journal;

/// The longest time for which an agent dials a named leader again that ends its connections. After
/// a failover all agents dial at once, and a leader ends connections without a hello where others
/// wait. The next address may be that of the leader before, which hangs and ends none.
const NAMED_MAX: Duration = Duration::from_secs(2);
/// The part of a lease that this takes at most: a named leader may hang as well.
const NAMED_PER_TTL: u32 = 5;

/// A leader that a replica has named.
#[derive(Clone, Debug)]
pub(super) struct NamedLeader {
    address: String,
    /// When it was first named.
    at: Moment,
}

impl Link {
    /// The next dial goes to this target.
    pub(super) fn set_target(&mut self, target: &Target, now: Moment) {
        let Target::Leader(address) = target else {
            self.named = None;
            return;
        };
        if self.named.as_ref().is_none_or(|named| named.address != *address) {
            self.named = Some(NamedLeader { address: address.clone(), at: now });
        }
    }
}

impl<J: Journal> Holder<J> {
    /// Where to dial after the coordinator has ended the connection or has no place for the agent.
    pub(super) fn target_after_end(&self, now: Moment) -> Target {
        // A coordinator that accepts no connection does not run.
        let accepted_connection = self.link.stage == Stage::Greeting;
        let part = self.terms.map_or(NAMED_MAX, |terms| terms.ttl / NAMED_PER_TTL);
        match &self.link.named {
            Some(named) if accepted_connection && now < named.at + part.min(NAMED_MAX) => {
                Target::Leader(named.address.clone())
            }
            Some(_) | None => Target::Next,
        }
    }
}
