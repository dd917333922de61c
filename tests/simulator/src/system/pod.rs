//! A pod: an agent with the real holder, its journal, and its worker, on a host with a clock.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use leasehold_agent_core::Holder;
use leasehold_types::share::WorkerAddress;
use leasehold_types::{AgentId, Epoch, GrantNumber, Incarnation, LinkNumber, Moment, WorkerKey};

use crate::system::clock::{Clock, Real};
use crate::system::journal::{Disk, SimJournal};
use crate::system::network::LinkId;
use crate::system::worker::Worker;

/// A living agent's process.
#[derive(Debug)]
pub(crate) struct Agent {
    /// The core.
    pub holder: Holder<SimJournal>,
    /// The link that it has.
    pub link: Option<LinkId>,
    /// The newest number that it dials under.
    pub number: LinkNumber,
    /// Where it dials next.
    pub next_address: usize,
    /// When it is woken.
    pub wake: Option<Moment>,
    /// The newest grant that it took on this link.
    pub applied: (Epoch, GrantNumber),
}

/// One pod.
#[derive(Debug)]
pub(crate) struct Pod {
    /// Its worker's cluster and name.
    pub key: WorkerKey,
    /// Counts its agent's lives.
    pub run: u64,
    /// Its host's clock.
    pub clock: Clock,
    /// Its agent's process is stopped until then.
    pub paused_until: Real,
    /// Its worker fails its check until then.
    pub fails_until: Real,
    /// Its rollout generation.
    pub generation: u64,
    /// The agent, while its process lives.
    pub agent: Option<Agent>,
    /// The journal's disk.
    pub disk: Rc<RefCell<Disk>>,
    /// The worker.
    pub worker: Worker,
    /// None of its processes runs any longer.
    pub dead: bool,
    /// Its agent has left.
    pub left: bool,
    /// Another agent has taken over its worker, and it has started no agent since.
    pub superseded: bool,
    /// Its agent came back after it had left.
    pub returned: bool,
    /// It comes back at once when it leaves.
    pub returns_at_once: bool,
    /// It was asked to leave.
    pub leaving: bool,
    /// When a later pod of its name appeared.
    pub replaced_at: Option<Real>,
    /// Its agent dials this replica next.
    pub redirected_to: Option<usize>,
    /// It has taken the name of one that lived.
    pub twin: bool,
    /// Its clock is far behind when its agent first starts.
    pub late_clock: bool,
    /// The identities that its agents have had.
    pub identities: BTreeSet<AgentId>,
    /// Its agent takes its name from the one that has it.
    pub takes_name: bool,
    /// An agent of it was started so.
    pub took_name: bool,
    /// The highest incarnation it has had.
    pub incarnation: Incarnation,
    /// How long its drain may take, if it was configured.
    pub drain_deadline: Option<Duration>,
    /// Its agent stays past that until nothing is left.
    pub stays: bool,
    /// Its agent ends its worker then.
    pub ends_worker: bool,
    /// The platform no longer has it, though it runs.
    pub removed: bool,
    /// Once it is dead, the platform learns of that only then.
    pub listed_from: Real,
    /// Where its worker is reached.
    pub address: Option<WorkerAddress>,
    /// Its worker learns of its shares of pipelines and is asked for them.
    pub exposes_bindings: bool,
}

impl Pod {
    /// A pod with nothing running yet.
    pub(crate) fn new(key: WorkerKey, clock: Clock, generation: u64, worker: Worker) -> Self {
        Self {
            key,
            run: 0,
            clock,
            paused_until: 0,
            fails_until: 0,
            generation,
            agent: None,
            disk: Rc::default(),
            worker,
            dead: false,
            left: false,
            superseded: false,
            returned: false,
            returns_at_once: false,
            leaving: false,
            replaced_at: None,
            redirected_to: None,
            twin: false,
            late_clock: false,
            identities: BTreeSet::new(),
            takes_name: false,
            took_name: false,
            incarnation: Incarnation(0),
            drain_deadline: None,
            stays: false,
            ends_worker: false,
            removed: false,
            listed_from: 0,
            address: None,
            exposes_bindings: true,
        }
    }

    /// The pool size under which its agent, or a successor with its journal, may start jobs.
    pub(crate) fn size_in_effect(&self, now: Moment) -> u32 {
        let disk = self.disk.borrow();
        let memory = &disk.memory;
        match memory.pool {
            _ if self.dead || self.superseded || memory.draining || memory.failing => 0,
            Some((_, size, _)) if now < memory.renewed_until => size,
            Some((_, _, floor)) => floor,
            None => 0,
        }
    }

    /// Whether a pod of the same name has appeared since.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced_at.is_some()
    }

    /// The most jobs that it may be running, now or without another message.
    pub(crate) fn jobs_possible(&self, now: Moment) -> u32 {
        self.size_in_effect(now).max(self.worker.jobs_possible(now))
    }
}
