//! A replica of the coordinator: the real core, and what it wants of the world.
//!
//! Invariant: a grant is written only under its epoch and before the leadership's end, looked at
//! at the moment when it is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::turn::PULSE;
use leasehold_coordinator_core::view::Leadership;
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{CoordinatorMessage, RefusalReason};
use leasehold_types::{ClusterName, Epoch, Moment};

use super::clock::{Clock, MS, Real};
use super::driver::Driver;
use super::election::Election;
use super::names;
use super::network::{Data, LinkId};
use super::queue::Happening;
use super::wire;
use super::world::World;

/// A driver is never woken more often than this.
pub(super) const WAKE_GAP_MIN: Real = MS / 10;

/// One replica.
#[derive(Debug)]
pub(super) struct Replica {
    /// Counts its lives.
    pub run: u64,
    /// Its host's clock.
    pub clock: Clock,
    /// Its process is stopped until then.
    pub paused_until: Real,
    /// What stands between the core and the world.
    pub driver: Driver,
    /// The core, while the process lives.
    pub core: Option<Core>,
    /// Its part in the election.
    pub election: Election,
    /// The newest desired state that it has.
    pub desired_version: u64,
    /// How many its core has put in force.
    pub desired_taken: u64,
    /// The one that is.
    pub in_force: Arc<Desired>,
    /// What is in it.
    pub desired: Arc<Desired>,
    /// The budgets in the one that is in force.
    pub jobs_max: BTreeMap<ClusterName, u32>,
    /// When the core is woken.
    pub wake: Option<Moment>,
}

impl Replica {
    /// A replica that is not up.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            run: 0,
            clock,
            paused_until: 0,
            driver: Driver::new(clock, 0),
            core: None,
            election: Election::default(),
            desired_version: 0,
            desired_taken: 0,
            in_force: Arc::default(),
            desired: Arc::default(),
            jobs_max: BTreeMap::new(),
            wake: None,
        }
    }

    /// Whether its process lives.
    pub(super) fn is_up(&self) -> bool {
        self.core.is_some()
    }

    /// The term that its core believes to lead.
    pub(super) fn leads(&self) -> Option<Epoch> {
        match self.core.as_ref()?.leadership() {
            Leadership::Leads(epoch) => Some(epoch),
            Leadership::StandsBy(_) => None,
        }
    }
}

impl World {
    /// Whether a replica's process is stopped.
    pub(super) fn paused_replica(&self, replica: usize) -> bool {
        self.replicas[replica].paused_until > self.t
    }

    /// Stops a replica's process until then.
    pub(super) fn pause_replica(&mut self, replica: usize, until: Real) {
        let node = &mut self.replicas[replica];
        node.driver.read_by(node.clock, node.paused_until, self.t);
        node.paused_until = node.paused_until.max(until);
    }

    /// The process starts.
    pub(super) fn boot_replica(&mut self, replica: usize) {
        if self.replicas[replica].is_up() {
            return;
        }
        let node = &mut self.replicas[replica];
        node.run += 1;
        node.driver = Driver::new(node.clock, self.t);
        node.core = Some(Core::new(Config {
            bounds: self.profile.bounds,
            reports_max: self.profile.reports_max,
            small_reports_max: self.profile.small_reports_max(),
            slice: self.profile.slice,
            keeps_names: self.keeps_names,
        }));
        node.election = Election::default();
        node.desired_version = 0;
        node.desired_taken = 0;
        node.in_force = Arc::default();
        node.desired = Arc::default();
        node.jobs_max.clear();
        node.wake = None;
        let (run, version) = (node.run, self.manifests.version);
        let desired = self.manifests.desired();
        let lag = self.rng.u64(0..=20 * MS);
        self.after(lag, Happening::Desired { replica, version, desired });
        self.after(MS, Happening::Poll { replica, run });
    }

    /// The process dies.
    pub(super) fn crash_replica(&mut self, replica: usize) {
        if self.replicas[replica].core.take().is_none() {
            return;
        }
        self.replicas[replica].run += 1;
        self.replicas[replica].election = Election::default();
        self.end_links(|link| link.replica == replica, false);
        self.cover.hit("fault: replica crashed");
    }

    pub(super) fn after_settle(&mut self, replica: usize) {
        let node = &mut self.replicas[replica];
        let Some(core) = node.core.as_ref() else { return };
        let wake = core.poll_timeout().map(|wakeup| wakeup.at);
        if wake != node.wake {
            node.wake = wake;
            if let Some(at) = wake {
                let run = node.run;
                // What is due and was not done waits for what has not been read yet.
                let now = node.clock.local(self.t);
                let t = match at > now {
                    true => node.clock.real(at).max(self.t + WAKE_GAP_MIN),
                    false => self.t + PULSE.as_nanos() as Real,
                };
                if t < Real::MAX {
                    self.queue.push(t, Happening::CoreWake { replica, run, at });
                }
            }
        }
    }

    /// A wake-up is due.
    pub(super) fn core_wake(&mut self, replica: usize, at: Moment) {
        if self.replicas[replica].wake == Some(at) {
            self.replicas[replica].wake = None;
            self.core_event(replica, Event::Wake);
        }
    }

    pub(super) fn core_effect(&mut self, replica: usize, effect: Effect) {
        let run = self.replicas[replica].run;
        match effect {
            Effect::Send { conn, message } => {
                self.observe_decision(conn, &message);
                let link = conn.0 as usize;
                if link >= self.network.links.len() {
                    // A stranger's.
                    self.cover.hit(names::of_message(&message));
                    return;
                }
                let mut delay = self.rng.u64(0..=MS);
                if self.network.links[link].slow_writer {
                    delay += self.rng.u64(0..self.profile.ttl_real() / 2);
                }
                let message = Box::new(message);
                self.after(delay, Happening::Write { replica, run, link, message });
            }
            Effect::Close(conn) => {
                // After the message that the writer has, if any.
                let message = Box::new(CoordinatorMessage::Refusal(closing()));
                let link = conn.0 as usize;
                if link >= self.network.links.len() {
                    return;
                }
                let slow = self.network.links[link].slow_writer;
                let delay = MS + 1 + if slow { self.profile.ttl_real() / 2 } else { 0 };
                self.after(delay, Happening::Write { replica, run, link, message });
            }
            Effect::Order { epoch, order } => self.order(replica, epoch, order),
            Effect::Notice(_) => {}
        }
    }

    /// The writer takes a message: the last look at leadership.
    pub(super) fn write(&mut self, replica: usize, link: LinkId, message: CoordinatorMessage) {
        if message == CoordinatorMessage::Refusal(closing()) {
            self.close_conn(link);
            return;
        }
        if !self.network.links[link].replica_open {
            return;
        }
        if let CoordinatorMessage::Grant(grant) = &message
            && !self.gate_is_open(replica, grant.epoch)
        {
            self.cover.hit("grant stopped at the writer");
            self.close_conn(link);
            self.core_event(replica, Event::Closed(ConnId(link as u64)));
            return;
        }
        self.cover.hit(names::of_message(&message));
        let bytes = wire::encode_down(&message);
        self.trace.hash(&bytes);
        self.put_down(link, Data::Message(bytes));
        self.core_event(replica, Event::Sent(ConnId(link as u64)));
    }

    /// A replica's clock now.
    pub(super) fn local_of_replica(&self, replica: usize) -> Moment {
        self.replicas[replica].clock.local(self.t)
    }
}

/// A replica's address.
pub(super) fn address(replica: usize) -> String {
    format!("c{replica}:7400")
}

/// Stands for the end of the connection in the writer's queue; never sent.
fn closing() -> leasehold_types::message::Refusal {
    leasehold_types::message::Refusal {
        reason: RefusalReason::Unauthorized,
        message: "simulator: end of the connection".into(),
    }
}
