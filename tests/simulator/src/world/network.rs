//! Links between agents and replicas: messages in bytes, with delay, cuts, breaks, and what a
//! link loses, doubles or reorders.
//!
//! Invariant: unless a seed wants unreliable links, what goes into a link in one direction comes
//! out in order or not at all.

use std::collections::VecDeque;

use leasehold_agent_core::Target;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_types::LinkNumber;
use leasehold_types::message::AgentMessage;

use crate::system::clock::{MS, Real};
use crate::system::faults::Sequence;
use crate::system::network::{Cut, Frame, Link, LinkId};
use crate::system::profile::one_in;
use crate::system::store::Shape;
use crate::world::queue::SimEvent;
use crate::world::{World, wire};

/// The number of pings that a transport sends during a lease.
const PINGS_PER_TTL: Real = 5;

impl World {
    /// Draws the delay of one message.
    pub(super) fn delay(&mut self) -> Real {
        let usual = self.profile.delay;
        let quick = self.rng.u64(usual / 4..=usual);
        if one_in(&mut self.rng, self.profile.slow_one_in) {
            quick + self.rng.u64(0..=self.profile.slow_max)
        } else {
            quick
        }
    }

    /// An agent dials: the replica accepts the link, or the agent learns that it cannot.
    pub(super) fn dial(&mut self, pod: usize, number: LinkNumber, target: &Target) {
        if self.dials_astray(pod, number) {
            return;
        }
        let replica = match target {
            Target::Leader(address) => {
                address[1..address.find(':').unwrap_or(address.len())].parse().unwrap_or(0)
            }
            Target::Next => {
                let agent = self.pods[pod].agent.as_mut().expect("the dialler lives");
                let replica = agent.next_address % self.replicas.len();
                agent.next_address += 1;
                replica
            }
        };
        let cut = self.network.cuts.contains(&Cut::Up(pod, replica))
            || self.network.cuts.contains(&Cut::Down(pod, replica));
        if cut || !self.replicas[replica].is_up() || self.paused_replica(replica) {
            self.agent_call(pod, |holder, now| holder.handle_closed(number, "no answer", now));
            return;
        }
        let link = Link {
            pod,
            pod_run: self.pods[pod].run,
            number,
            replica,
            replica_run: self.replicas[replica].run,
            pod_open: true,
            replica_open: true,
            lost: false,
            torn: false,
            slow_writer: one_in(&mut self.rng, self.profile.slow_writer_one_in),
            unread: None,
            clear_up: 0,
            clear_down: 0,
            held_up: VecDeque::new(),
            held_down: VecDeque::new(),
        };
        self.network.links.push(link);
        let id = self.network.links.len() - 1;
        self.pods[pod].agent.as_mut().expect("the dialler lives").link = Some(id);
        let delay = self.delay();
        self.after(delay, SimEvent::Opened { link: id });
    }

    /// Schedules the transport's next ping.
    pub(super) fn ping_later(&mut self, link: LinkId, missed: bool) {
        let every = self.profile.ttl_real() / PINGS_PER_TTL;
        self.after(every, SimEvent::Ping { link, missed });
    }

    /// The transport of an agent's link sends a ping. After two without an answer the link is
    /// over.
    pub(super) fn ping(&mut self, link: LinkId, missed: bool) {
        let line = &self.network.links[link];
        let (pod, number, replica) = (line.pod, line.number, line.replica);
        let up = &self.replicas[replica];
        let cut = self.network.cuts.contains(&Cut::Up(pod, replica))
            || self.network.cuts.contains(&Cut::Down(pod, replica));
        let answered = up.is_up()
            && up.run == line.replica_run
            && line.replica_open
            && !(cut || line.lost || line.torn || self.paused_replica(replica));
        let agent = self.pods[pod].agent.as_ref();
        if !line.pod_open || agent.is_none_or(|agent| agent.link != Some(link)) {
            return;
        }
        if answered || !missed {
            self.ping_later(link, !answered);
            return;
        }
        self.coverage.hit("link without an answer to pings");
        self.hang_up(link);
        self.agent_call(pod, |holder, now| holder.handle_closed(number, "pings not answered", now));
    }

    /// An agent sends on a link.
    pub(super) fn send_up(&mut self, link: LinkId, message: &AgentMessage) {
        let bytes = wire::encode_up(message);
        self.trace.hash(&bytes);
        let late = self.profile.has(Sequence::LateReports)
            && self.quiet_since.is_none()
            && matches!(message, AgentMessage::Report(_))
            && self.rng.bool();
        self.send_frame_up(link, Frame::Message(bytes), late);
        if matches!(message, AgentMessage::Hello(_))
            && one_in(&mut self.rng, self.profile.fallback_one_in)
        {
            self.coverage.hit("fault: link broken after hello");
            self.break_link(link);
        }
    }

    /// Puts data on its way to the replica.
    fn send_frame_up(&mut self, link: LinkId, data: Frame, late: bool) {
        let (mut delay, copies, ordered) = self.draw_delivery(&data);
        if late {
            let ttl = self.profile.ttl_real();
            delay += self.rng.u64(ttl / 2..ttl * 3);
        }
        let line = &mut self.network.links[link];
        line.torn |= copies == 0;
        for _ in 0..copies {
            let t = if ordered { (self.t + delay).max(line.clear_up) } else { self.t + delay };
            line.clear_up = line.clear_up.max(t);
            self.queue.push(t, SimEvent::ToReplica { link, data: data.clone() });
        }
    }

    /// Puts data on its way to the agent.
    pub(super) fn send_frame_down(&mut self, link: LinkId, data: Frame) {
        let (delay, copies, ordered) = self.draw_delivery(&data);
        let line = &mut self.network.links[link];
        line.torn |= copies == 0;
        for _ in 0..copies {
            let t = if ordered { (self.t + delay).max(line.clear_down) } else { self.t + delay };
            line.clear_down = line.clear_down.max(t);
            self.queue.push(t, SimEvent::ToPod { link, data: data.clone() });
        }
    }

    /// Draws how long a frame takes, how many copies arrive, and whether they stay in order.
    fn draw_delivery(&mut self, data: &Frame) -> (Real, u32, bool) {
        let delay = self.delay();
        if *data == Frame::Close || !one_in(&mut self.rng, self.profile.unreliable_one_in) {
            return (delay, 1, true);
        }
        match self.rng.u8(0..3) {
            0 => {
                self.coverage.hit("fault: message dropped");
                (delay, 0, true)
            }
            1 => {
                self.coverage.hit("fault: message doubled");
                (delay, 2, true)
            }
            _ => {
                self.coverage.hit("fault: message reordered");
                (delay * 4, 1, false)
            }
        }
    }

    /// Data reaches a replica, unless the direction is cut.
    pub(super) fn frame_at_replica(&mut self, link: LinkId, data: Frame) {
        let line = &mut self.network.links[link];
        line.unread = None;
        if self.network.cuts.contains(&Cut::Up(line.pod, line.replica)) || !line.held_up.is_empty()
        {
            line.held_up.push_back(data);
            self.coverage.hit("effective: a cut held a message");
            return;
        }
        let (replica, run) = (line.replica, line.replica_run);
        if line.lost || self.replicas[replica].run != run || !self.replicas[replica].is_up() {
            return;
        }
        let conn = ConnId(link as u64);
        let open = line.replica_open;
        let event = match data {
            Frame::Close if open => {
                line.replica_open = false;
                Event::Closed(conn)
            }
            Frame::Close => return,
            Frame::Message(bytes) => {
                // A replica that has closed the link may still take earlier messages of it.
                if !open && self.rng.bool() {
                    return;
                }
                match wire::decode_up(&bytes) {
                    AgentMessage::Hello(hello) => Event::Hello(conn, hello, None),
                    AgentMessage::Report(report) => Event::Report(conn, report),
                    AgentMessage::Beat(beat) => Event::Beat(conn, beat),
                }
            }
        };
        if matches!(event, Event::Hello(..)) && !self.is_authorized(link) {
            self.coverage.hit("agent of an earlier pod kept out");
            self.close_conn(link);
            return;
        }
        self.checks().observe_arrival(&event);
        self.core_event(replica, event);
    }

    /// Whether the platform lets a pod's agent speak. Where entries are on the objects of pods, it
    /// proves of which pod an agent is; and a leader that has listed them since a later pod of
    /// that name appeared lets no earlier one speak. An entry that cannot be read names no newest
    /// agent, so that the leader has no other way to know which of the two speaks.
    fn is_authorized(&self, link: LinkId) -> bool {
        let line = &self.network.links[link];
        if self.pods[line.pod].removed {
            return false;
        }
        let Some(replaced_at) = self.pods[line.pod].replaced_at else { return true };
        // The list is there before the core knows of its term, and the hello may wait until then.
        let term = self.replicas[line.replica].election.term();
        let listed_at = term.and_then(|(epoch, _)| self.store.listed_at(epoch));
        self.store.shape == Shape::Logs || listed_at.is_none_or(|at| at < replaced_at)
    }

    /// Data reaches a pod, unless the direction is cut.
    pub(super) fn frame_at_pod(&mut self, link: LinkId, data: Frame) {
        let line = &mut self.network.links[link];
        if self.network.cuts.contains(&Cut::Down(line.pod, line.replica))
            || !line.held_down.is_empty()
        {
            line.held_down.push_back(data);
            self.coverage.hit("effective: a cut held a message");
            return;
        }
        let (pod, number) = (line.pod, line.number);
        if line.lost || self.pods[pod].run != line.pod_run || self.pods[pod].agent.is_none() {
            self.coverage.hit("effective: a message was lost with its link");
            return;
        }
        match data {
            Frame::Close if line.pod_open => {
                line.pod_open = false;
                self.agent_call(pod, |holder, now| holder.handle_closed(number, "ended", now));
            }
            Frame::Close => {}
            Frame::Message(bytes) => {
                // A link that the agent left may still deliver earlier messages.
                if line.pod_open || self.rng.bool() {
                    self.deliver(pod, link, wire::decode_down(&bytes));
                }
            }
        }
    }

    /// The agent ends a link: what it had sent may still arrive, before the end or without one.
    pub(super) fn hang_up(&mut self, link: LinkId) {
        let line = &mut self.network.links[link];
        if !line.pod_open {
            return;
        }
        line.pod_open = false;
        self.close_at_replica(link);
    }

    /// The replica ends a link, after what it has sent.
    pub(super) fn close_conn(&mut self, link: LinkId) {
        let line = &mut self.network.links[link];
        if line.replica_open {
            line.replica_open = false;
            self.send_frame_down(link, Frame::Close);
        }
    }

    /// A link breaks: each end learns that later, and messages on their way may be lost.
    pub(super) fn break_link(&mut self, link: LinkId) {
        self.send_frame_down(link, Frame::Close);
        self.close_at_replica(link);
        if self.rng.u8(0..3) == 0 {
            // All messages on their way are lost; only silence shows the ends that the link broke.
            let line = &mut self.network.links[link];
            line.lost = true;
            let (pod, run, number) = (line.pod, line.pod_run, line.number);
            let open = std::mem::take(&mut line.pod_open);
            if open && self.pods[pod].run == run && self.pods[pod].agent.is_some() {
                self.agent_call(pod, |holder, now| holder.handle_closed(number, "broken", now));
            }
        }
    }

    fn close_at_replica(&mut self, link: LinkId) {
        match self.rng.u8(0..4) {
            // Half-open: the replica finds out much later.
            0 => {
                let t = self.t + self.rng.u64(0..self.profile.ttl_real() * 4);
                self.queue.push(t, SimEvent::ToReplica { link, data: Frame::Close });
            }
            _ => self.send_frame_up(link, Frame::Close, false),
        }
    }

    /// A process at one end has died: the other end learns that soon, or only by a timeout.
    pub(super) fn end_links(&mut self, concerns: impl Fn(&Link) -> bool, of_pod: bool) {
        for link in 0..self.network.links.len() {
            let line = &mut self.network.links[link];
            if !concerns(line) {
                continue;
            }
            if of_pod {
                let was = std::mem::take(&mut line.pod_open);
                if was {
                    self.close_at_replica(link);
                }
            } else {
                let was = std::mem::take(&mut line.replica_open);
                if was && self.rng.u8(0..4) > 0 {
                    self.send_frame_down(link, Frame::Close);
                }
            }
        }
    }

    /// Cuts a direction for a while.
    pub(super) fn cut(&mut self, cut: Cut, time: Real) {
        if self.network.cuts.insert(cut) {
            self.after(time, SimEvent::Heal(cut));
        }
    }

    /// A pod and all replicas lose each other for a while.
    pub(super) fn cut_pod(&mut self, pod: usize, time: Real) {
        for replica in 0..self.replicas.len() {
            self.cut(Cut::Up(pod, replica), time);
            self.cut(Cut::Down(pod, replica), time);
        }
    }

    /// A direction works again: held frames go on in order.
    pub(super) fn heal(&mut self, cut: Cut) {
        if !self.network.cuts.remove(&cut) {
            return;
        }
        for link in 0..self.network.links.len() {
            let line = &mut self.network.links[link];
            let waited: Vec<Frame> = match cut {
                Cut::Up(pod, replica) if (pod, replica) == (line.pod, line.replica) => {
                    line.clear_up = self.t;
                    line.held_up.drain(..).collect()
                }
                Cut::Down(pod, replica) if (pod, replica) == (line.pod, line.replica) => {
                    line.clear_down = self.t;
                    line.held_down.drain(..).collect()
                }
                _ => continue,
            };
            for data in waited {
                match cut {
                    Cut::Up(..) => {
                        let t = self.network.links[link].clear_up + MS / 10;
                        self.network.links[link].clear_up = t;
                        self.queue.push(t, SimEvent::ToReplica { link, data });
                    }
                    _ => {
                        let t = self.network.links[link].clear_down + MS / 10;
                        self.network.links[link].clear_down = t;
                        self.queue.push(t, SimEvent::ToPod { link, data });
                    }
                }
            }
        }
    }
}
