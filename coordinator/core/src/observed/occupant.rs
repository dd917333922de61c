//! The agent that has a worker's name, and the last one that was refused it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_types::{AgentId, Moment};

/// For how long views tell of a refused agent. One that still wants the name dials again at least
/// every second.
const REFUSED_SHOWN_FOR: Duration = Duration::from_secs(10);

/// The agent that has a worker's name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Occupant {
    /// Its identity, where names are kept.
    identity: Option<AgentId>,
    /// The identity that the newest agent has named, names kept or not.
    agent: Option<AgentId>,
    /// Since when an agent of this identity has the name; none before the first hello.
    named_at: Option<Moment>,
    /// Where a person finds that agent.
    peer: Option<Arc<str>>,
    /// The last agent that was refused because this one has the name.
    refused: Option<RefusedAgent>,
}

/// An agent that was refused because another one has its worker's name.
#[derive(Clone, Debug)]
pub(crate) struct RefusedAgent {
    identity: Option<AgentId>,
    /// Where a person finds it.
    peer: Option<Arc<str>>,
    /// When it last said hello.
    at: Moment,
}

impl Occupant {
    /// Its identity, where names are kept.
    pub(crate) fn identity(&self) -> Option<AgentId> {
        self.identity
    }

    /// The identity that the newest agent has named, names kept or not.
    pub(crate) fn agent(&self) -> Option<AgentId> {
        self.agent
    }

    /// Since when an agent of this identity has the name; none before the first hello.
    pub(crate) fn named_at(&self) -> Option<Moment> {
        self.named_at
    }

    /// Where a person finds it.
    pub(crate) fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// The last agent that was refused because this one has the name.
    pub(crate) fn refused(&self) -> Option<&RefusedAgent> {
        self.refused.as_ref()
    }

    /// An agent has the name from now on.
    pub(crate) fn set_name(
        &mut self,
        identity: Option<AgentId>,
        peer: Option<Arc<str>>,
        now: Moment,
    ) {
        if self.identity != identity || self.named_at.is_none() {
            self.named_at = Some(now);
        }
        self.refused.take_if(|refused| refused.identity == identity);
        self.identity = identity;
        self.peer = peer;
    }

    /// The newest agent has named this identity.
    pub(crate) fn set_agent(&mut self, agent: Option<AgentId>) {
        self.agent = agent;
    }

    /// Another agent was refused the name. Returns whether that is new: it dials again and again.
    pub(crate) fn set_refused(
        &mut self,
        identity: Option<AgentId>,
        peer: Option<Arc<str>>,
        now: Moment,
    ) -> bool {
        let before = self.refused.replace(RefusedAgent { identity, peer, at: now });
        !before.is_some_and(|before| before.identity == identity && before.is_shown(now))
    }
}

impl RefusedAgent {
    /// Where a person finds it.
    pub(crate) fn peer(&self) -> Option<Arc<str>> {
        self.peer.clone()
    }

    /// How long ago it last said hello.
    pub(crate) fn ago(&self, now: Moment) -> Duration {
        now.since(self.at)
    }

    /// Whether views still tell of it.
    pub(crate) fn is_shown(&self, now: Moment) -> bool {
        self.ago(now) < REFUSED_SHOWN_FOR
    }
}
