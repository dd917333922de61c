//! How replicas run: their process starts and dies, and their core's effects are carried out.
//!
//! Invariant: a grant is written only under its epoch and before the leadership's end, checked when
//! it is written.

use std::sync::Arc;

use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::turn::WATERMARK_TICK;
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::Moment;
use leasehold_types::message::{CoordinatorMessage, RefusalReason};

use crate::system::clock::{MS, Real};
use crate::system::driver::Driver;
use crate::system::election::Election;
use crate::system::network::{Frame, LinkId};
use crate::world::queue::SimEvent;
use crate::world::{WAKE_GAP_MIN, World, labels as names, wire};

impl World {
    /// Whether a replica's process is stopped.
    pub(super) fn paused_replica(&self, replica: usize) -> bool {
        self.replicas[replica].paused_until > self.t
    }

    /// Stops a replica's process until `until`.
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
            ..Config::default()
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
        self.after(lag, SimEvent::Desired { replica, version, desired });
        self.after(MS, SimEvent::Poll { replica, run });
    }

    /// The process dies.
    pub(super) fn crash_replica(&mut self, replica: usize) {
        if self.replicas[replica].core.take().is_none() {
            return;
        }
        self.replicas[replica].run += 1;
        self.replicas[replica].election = Election::default();
        self.end_links(|link| link.replica == replica, false);
        self.coverage.hit("fault: replica crashed");
    }

    pub(super) fn after_settle(&mut self, replica: usize) {
        let node = &mut self.replicas[replica];
        let Some(core) = node.core.as_ref() else { return };
        let wake = core.poll_timeout().map(|wakeup| wakeup.at);
        if wake != node.wake {
            node.wake = wake;
            if let Some(at) = wake {
                let run = node.run;
                // Work that is due and was not done waits for unread messages.
                let now = node.clock.local(self.t);
                let t = if at > now {
                    node.clock.real(at).max(self.t + WAKE_GAP_MIN)
                } else {
                    self.t + WATERMARK_TICK.as_nanos() as Real
                };
                if t < Real::MAX {
                    self.queue.push(t, SimEvent::CoreWake { replica, run, at });
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
                let link = conn.0 as usize;
                if link >= self.network.links.len() {
                    // The connection of an agent that no pod has.
                    self.check_stray(conn, &message);
                    self.coverage.hit(names::of_message(&message));
                    return;
                }
                self.checks().observe_decision(conn, &message);
                let mut delay = self.rng.u64(0..=MS);
                if self.network.links[link].slow_writer {
                    delay += self.rng.u64(0..self.profile.ttl_real() / 2);
                }
                let message = Box::new(message);
                self.after(delay, SimEvent::Write { replica, run, link, message });
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
                self.after(delay, SimEvent::Write { replica, run, link, message });
            }
            Effect::Order { epoch, order } => self.order(replica, epoch, order),
            Effect::Notice(_) => {}
        }
    }

    /// The writer takes a message, and checks leadership for the last time.
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
            self.coverage.hit("grant stopped at the writer");
            self.close_conn(link);
            self.core_event(replica, Event::Closed(ConnId(link as u64)));
            return;
        }
        self.coverage.hit(names::of_message(&message));
        let bytes = wire::encode_down(&message);
        self.trace.hash(&bytes);
        self.send_frame_down(link, Frame::Message(bytes));
        self.core_event(replica, Event::Sent(ConnId(link as u64)));
    }
}

/// A replica's address.
pub(crate) fn address(replica: usize) -> String {
    format!("c{replica}:7400")
}

/// Stands for the end of the connection in the writer's queue; never sent.
fn closing() -> leasehold_types::message::Refusal {
    leasehold_types::message::Refusal {
        reason: RefusalReason::Unauthorized,
        message: "simulator: end of the connection".into(),
    }
}
