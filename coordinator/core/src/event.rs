//! What reaches the core: facts from agents, from the platform and from people.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{Beat, Hello, Report};
use leasehold_types::{Epoch, Incarnation, Moment, SetName, WorkerKey};

use crate::desired::Desired;

/// Names one agent's connection within one process; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A fact that the core acts on.
#[derive(Clone, Debug)]
pub enum Event {
    /// The first message of a connection.
    Hello(ConnId, Hello),
    /// The second.
    Report(ConnId, Report),
    /// Any later one.
    Beat(ConnId, Beat),
    /// The connection has ended.
    Closed(ConnId),
    /// The message last given to this connection is on its way: the next may follow.
    Sent(ConnId),
    /// The platform's desired state, whole.
    Desired(Arc<Desired>),
    /// Leadership was won.
    Elected(Elected),
    /// Leadership was renewed.
    Renewed(Renewed),
    /// Leadership is over; the new leader's address, where it is known. Also says, at any time,
    /// that another replica leads.
    Deposed {
        /// Where agents are sent.
        leader: Option<String>,
    },
    /// The platform has written down what these workers may hold, under this leader's epoch.
    Registered(Vec<(WorkerKey, Exposure)>),
    /// The platform's word: nothing of these workers runs any more.
    Gone(Vec<WorkerKey>),
    /// Somebody wants a worker to drain.
    Drain(WorkerKey),
    /// The wake-up that was asked for.
    Wake,
}

/// The start of a term.
#[derive(Clone, Debug)]
pub struct Elected {
    /// The term, above every one before it.
    pub epoch: Epoch,
    /// Leadership ends here unless it is renewed: counted from when the election was sent.
    pub until: Moment,
    /// When the predecessor has surely stopped granting by itself.
    pub predecessor_end: Moment,
    /// Every worker that may hold anything, read after the epoch was taken.
    pub exposed: BTreeMap<WorkerKey, Exposure>,
}

/// A renewal of leadership that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Renewed {
    /// The term that it renewed.
    pub epoch: Epoch,
    /// When it was sent: at that moment no successor had been elected.
    pub sent_at: Moment,
    /// Leadership ends here unless it is renewed again.
    pub until: Moment,
}

/// The most that a worker may hold, written down before it is granted anything beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// The newest agent that was granted anything: an older one that still lives knows nothing of
    /// it, however much it reports.
    pub incarnation: Incarnation,
    /// The longest time that one of its leases may last.
    pub ttl: Duration,
    /// The largest pool.
    pub jobs_max: u32,
    /// The sets of which it may own streams; true where such a lease is never freed by time.
    pub sets: BTreeMap<SetName, bool>,
}

impl Exposure {
    /// Whether `self` allows all that `other` does.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.incarnation >= other.incarnation
            && self.ttl >= other.ttl
            && self.jobs_max >= other.jobs_max
            && other
                .sets
                .iter()
                .all(|(set, timeless)| self.sets.get(set).is_some_and(|have| *have || !timeless))
    }

    /// The least exposure that covers both.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        let mut sets = self.sets.clone();
        for (set, timeless) in &other.sets {
            *sets.entry(set.clone()).or_default() |= timeless;
        }
        Self {
            incarnation: self.incarnation.max(other.incarnation),
            ttl: self.ttl.max(other.ttl),
            jobs_max: self.jobs_max.max(other.jobs_max),
            sets,
        }
    }
}
