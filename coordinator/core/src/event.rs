//! The events that the core takes: facts from agents, from the platform and from people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::message::{Beat, Hello, Report};
use leasehold_types::{CellId, Epoch, Moment, TermId, WorkerKey};

use crate::desired::Desired;
use crate::exposure::{AccountId, Entry, Exposure};

/// Names one agent's connection within one process; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A fact that the core acts on.
#[derive(Clone, Debug)]
pub enum Event {
    /// The first message of a connection, and where a person finds its peer.
    Hello(ConnId, Hello, Option<Arc<str>>),
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
    /// Namespaces that could not be read at the election can be read.
    NamespacesRead(NamespacesRead),
    /// Leadership was renewed.
    Renewed(Renewed),
    /// The store has confirmed this term: at that moment no successor had been elected.
    TermStands {
        /// The term.
        epoch: Epoch,
        /// When it was asked.
        asked_at: Moment,
    },
    /// Leadership is over; the new leader, where it is known. Also says, at any time, that another
    /// replica leads.
    Deposed {
        /// Where agents are sent.
        leader: Option<KnownLeader>,
    },
    /// The platform has stored what these workers may hold, under this leader's epoch, and
    /// leadership was confirmed after that. It applies only to these accounts of the workers.
    Registered(Vec<(WorkerKey, AccountId, Exposure)>),
    /// The platform has removed the entries of these workers, and leadership was confirmed after
    /// that: no later leader finds them.
    Unregistered(Vec<WorkerKey>),
    /// The platform declares that nothing of these workers runs any longer.
    Gone(Vec<WorkerKey>),
    /// The platform no longer has these workers, and cannot say that they have ended: the
    /// connections of their agents end. All that they hold counts as before, until it ends by time
    /// or the platform declares them gone.
    Removed(Vec<WorkerKey>),
    /// A worker is to drain.
    Drain(WorkerKey),
    /// The order that a worker is to drain is taken back.
    Undrain(WorkerKey),
    /// These workers, and no others, get nothing new while others have room: they may have to go
    /// soon. Nothing that they have is taken away for it. Standbys take it, too.
    Avoid(Arc<BTreeSet<WorkerKey>>),
    /// The wake-up that was asked for.
    Wake,
}

/// The start of a term.
#[derive(Clone, Debug)]
pub struct Elected {
    /// The term, above every one before it.
    pub epoch: Epoch,
    /// Its identity.
    pub term: TermId,
    /// The cell whose term it is, if its store says so.
    pub cell: Option<CellId>,
    /// Leadership ends here unless it is renewed: counted from when the election was sent.
    pub until: Moment,
    /// When the predecessor has surely stopped granting by itself.
    pub predecessor_end: Moment,
    /// Every worker that may hold anything, read after the epoch was taken.
    pub exposed: BTreeMap<WorkerKey, Entry>,
    /// Namespaces that could not be read, whose workers are not in `exposed`: nothing is granted or
    /// freed there before [`Event::NamespacesRead`].
    pub unreadable: BTreeSet<String>,
}

/// Another replica that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLeader {
    /// Where agents reach it: HOST:PORT.
    pub address: String,
    /// Its epoch; `None` where the store of leadership does not show it.
    pub epoch: Option<Epoch>,
}

/// Namespaces that a leader could not read when it was elected, and has read since.
#[derive(Clone, Debug)]
pub struct NamespacesRead {
    /// The term.
    pub epoch: Epoch,
    /// The namespaces.
    pub namespaces: BTreeSet<String>,
    /// Every worker of them that may hold anything.
    pub exposed: BTreeMap<WorkerKey, Entry>,
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
