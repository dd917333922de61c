//! Two cells: agents reach a coordinator of another one, and agents of another one reach a leader.

use fastrand::Rng;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_types::message::{CoordinatorMessage, Hello, Terms, Welcome};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::{CellId, Epoch, Incarnation, LinkNumber, TermId, WorkerName};

use crate::system::clock::MS;
use crate::world::World;
use crate::world::queue::SimEvent;

/// In one seed in this many there is another cell.
const MEETS_EVERY: u64 = 3;
/// Makes another sequence of random numbers of a seed, as for the failures of workers.
const OWN_SEQUENCE: u64 = 0x6365_6c6c_7321;
/// The cell of the agents and the replicas of a world.
const OWN: CellId = CellId(1);
const OTHER: CellId = CellId(2);
/// The connection of an agent of the other cell.
const STRAY: ConnId = ConnId(u64::MAX - 1);
/// One dial in this many reaches the other cell.
const ASTRAY_ONE_IN: u64 = 10;

/// Draws who meets the other cell and when; none in a seed without one.
pub(super) fn meetings(seed: u64) -> Option<Rng> {
    let mut rng = Rng::with_seed(seed ^ OWN_SEQUENCE);
    (rng.u64(0..MEETS_EVERY) == 0).then_some(rng)
}

impl World {
    /// The cell of the replicas; none in a seed without another one, as in earlier releases.
    pub(super) fn cell(&self) -> Option<CellId> {
        self.meetings.as_ref().map(|_| OWN)
    }

    /// An agent dials: whether it reaches a coordinator of the other cell, which welcomes everyone.
    /// An agent that belongs to no cell yet would be the other one's, and of no more interest.
    pub(super) fn dials_astray(&mut self, pod: usize, number: LinkNumber) -> bool {
        let holder = &self.pods[pod].agent.as_ref().expect("the dialler lives").holder;
        let has_cell = holder.cell().is_some();
        let Some(rng) = self.meetings.as_mut().filter(|_| self.quiet_since.is_none()) else {
            return false;
        };
        if !has_cell || rng.u64(0..ASTRAY_ONE_IN) > 0 {
            return false;
        }
        let epoch = Epoch(rng.u64(1..20));
        self.coverage.hit("fault: a coordinator of another cell answers");
        let ttl = self.profile.ttl;
        let terms = Terms { ttl, beat: ttl / 3, reserve: ttl * 2, drain_deadline: ttl * 10 };
        let term = TermId(OTHER.0 as u64);
        let (cell, answers_goodbye) = (Some(OTHER), true);
        let protocol = ProtocolRange::OWN.newest();
        let welcome = Welcome { epoch, term, cell, answers_goodbye, protocol, terms };
        self.agent_call(pod, |holder, now| {
            holder.handle_open(number, now);
            holder.handle_message(number, CoordinatorMessage::Welcome(welcome), now);
        });
        let disk = self.pods[pod].disk.borrow();
        let obeyed = disk.memory.term == term;
        drop(disk);
        if obeyed {
            self.checks().fail("S20", || format!("p{pod} obeys a leader of another cell"));
        }
        true
    }

    /// An agent of the other cell says hello to the leader, often under a name that is in use here.
    pub(super) fn next_stray(&mut self) {
        let living = self.view().living();
        let leader = self.view().true_leader();
        let every = self.profile.fault_every;
        let Some(rng) = self.meetings.as_mut().filter(|_| self.quiet_since.is_none()) else {
            return;
        };
        let next = rng.u64(MS..=8 * every);
        let (names_itself, tells_epoch) = (rng.bool(), rng.bool());
        let (ahead, pod) = (rng.u64(1..1_000), rng.choice(living));
        self.after(next, SimEvent::MeetStray);
        let (Some((leader, epoch)), Some(pod)) = (leader, pod) else { return };
        self.coverage.hit("fault: an agent of another cell says hello");
        let mut key = self.pods[pod].key.clone();
        if names_itself {
            key.worker = WorkerName::new("stray").expect("a name");
        }
        let hello = Hello {
            incarnation: Incarnation(u64::MAX / 2),
            epoch_seen: tells_epoch.then_some(Epoch(epoch.0 + ahead)),
            term_seen: TermId(OTHER.0 as u64),
            cell: Some(OTHER),
            ..Hello::example(key)
        };
        self.core_event(leader, Event::Hello(STRAY, hello, None));
    }

    /// S20, at the coordinator.
    pub(super) fn check_stray(&mut self, conn: ConnId, message: &CoordinatorMessage) {
        if conn == STRAY && matches!(message, CoordinatorMessage::Welcome(_)) {
            self.checks().fail("S20", || "an agent of another cell is welcomed".into());
        }
    }
}
