//! How pods run: the agent's process starts, dies, leaves and comes back.
//!
//! Invariant: no effect of an agent's dead process is carried out.

use std::rc::Rc;

use leasehold_agent_core::{
    Config, Effect, Holder, INCARNATION_OFFSET_MAX, Notice, SNAPSHOT_NOT_ABOVE,
};
use leasehold_types::message::{CoordinatorMessage, RefusalReason};
use leasehold_types::{AgentId, Epoch, GrantNumber, Incarnation, LinkNumber, Moment};

use crate::observer::BeforeMessage;
use crate::system::clock::{MS, Real};
use crate::system::faults::Sequence;
use crate::system::journal::{JournalLeft, SimJournal};
use crate::system::network::{LinkId, SlowStore};
use crate::system::pod::Agent;
use crate::world::queue::SimEvent;
use crate::world::{WAKE_GAP_MIN, World, labels as names};

impl World {
    /// Whether an agent's process is stopped.
    pub(super) fn paused_pod(&self, pod: usize) -> bool {
        self.pods[pod].paused_until > self.t
    }

    /// The agent's process starts, with what the journal holds.
    pub(super) fn boot_agent(&mut self, pod: usize) {
        let now = self.view().local_of_pod(pod);
        // No two agents get equal clocks: only the order of their clocks may be wrong.
        let own = pod as u64;
        let incarnation_offset = self.incarnation_offset(pod);
        let by_time = Incarnation(1_000_000_000 + self.t / MS * 10_000 + own * 100);
        let wrong_clock = self.rng.u8(0..6) == 0;
        let node = &mut self.pods[pod];
        if node.dead || node.left || node.is_replaced() || node.agent.is_some() {
            return;
        }
        let wrong_clock = wrong_clock || node.late_clock;
        node.superseded = false;
        node.run += 1;
        let drawn = AgentId(u128::from(own) << 64 | u128::from(node.run));
        let (memory, identity) = {
            let mut disk = node.disk.borrow_mut();
            disk.crashed = false;
            (disk.memory.clone(), *disk.identity.get_or_insert(drawn))
        };
        let is_another = node.identities.insert(identity) && node.identities.len() > 1;
        if is_another && self.keeps_names {
            // It was started without its state folder, and has another identity.
            node.takes_name = self.rng.bool();
            self.coverage.hit(if node.takes_name {
                "fault: agent without its folder takes its name over"
            } else {
                "fault: agent without its folder waits for its name"
            });
        }
        let incarnation = match memory.incarnation {
            Some(last) => last.next(),
            None if wrong_clock => Incarnation(own * 1_000 + node.run),
            None => by_time.max(Incarnation(node.incarnation.0 + 1)),
        };
        self.coverage.hit(match (memory.incarnation, node.run) {
            (None, 1) => "agent began: new",
            (None, _) => "agent began: no journal",
            (Some(_), _) => "agent began: journal",
        });
        node.incarnation = node.incarnation.max(incarnation);
        node.took_name |= node.takes_name;
        let config = Config {
            incarnation,
            generation: node.generation,
            identity: Some(identity),
            take_over: node.takes_name,
            stops_worker: node.worker.stoppable,
            address: node.address.clone(),
            exposes_bindings: node.exposes_bindings,
            drain_deadline: node.drain_deadline,
            stays_after_drain: node.stays,
            ends_worker: node.ends_worker,
            incarnation_offset,
            ..Config::example(node.key.clone())
        };
        let journal = SimJournal(Rc::clone(&node.disk));
        let holder = Holder::new(config, memory, journal, now);
        node.agent = Some(Agent {
            holder,
            link: None,
            number: LinkNumber(0),
            next_address: node.redirected_to.take().unwrap_or(pod + node.run as usize),
            wake: None,
            applied: (Epoch(0), GrantNumber(0)),
        });
        self.trace.say(self.t, || format!("        p{pod} agent starts, {incarnation:?}"));
        if self.agent_call(pod, |_, _| ()).is_some() && self.pods[pod].leaving {
            // The platform's request to leave is repeated to a new process.
            self.agent_call(pod, Holder::drain);
        }
        self.check_worker_of_new_agent(pod);
        self.tick_soon(pod);
    }

    /// The distance by which this start may raise its incarnation; each start has its own.
    fn incarnation_offset(&self, pod: usize) -> u64 {
        ((pod as u64) << 10 | (self.pods[pod].run & 0x3ff)) % INCARNATION_OFFSET_MAX + 1
    }

    /// The agent's process dies.
    pub(super) fn crash_agent(&mut self, pod: usize, keep_journal: bool, back_after: Option<Real>) {
        let node = &mut self.pods[pod];
        if node.agent.take().is_none() {
            return;
        }
        node.run += 1;
        if !keep_journal {
            node.disk = Rc::default();
        }
        let run = node.run;
        self.trace
            .say(self.t, || format!("        p{pod} agent dies, journal kept: {keep_journal}"));
        self.end_links(|link| link.pod == pod, true);
        if let Some(after) = back_after {
            self.after(after, SimEvent::BootAgent { pod, run });
        }
    }

    /// A pod's host goes down, with all that runs there, and is back after `time`. What was written
    /// last may be lost.
    pub(super) fn boot_host(&mut self, pod: usize, left: JournalLeft, time: Real) {
        self.crash_worker(pod, Some(time));
        self.crash_agent(pod, true, Some(time));
        self.trace.say(self.t, || format!("        p{pod} host boots, journal left: {left:?}"));
        let uptime = self.rng.u64(MS..self.profile.ttl_real());
        let node = &mut self.pods[pod];
        node.clock.boot(self.t, uptime);
        node.disk.borrow_mut().boot(left);
    }

    /// Calls the holder and carries out its effects. `None` if no process runs, or if it died
    /// during the call.
    pub(super) fn agent_call<R>(
        &mut self,
        pod: usize,
        call: impl FnOnce(&mut Holder<SimJournal>, Moment) -> R,
    ) -> Option<R> {
        let now = self.view().local_of_pod(pod);
        let node = &mut self.pods[pod];
        let result = call(&mut node.agent.as_mut()?.holder, now);
        let crashed = node.disk.borrow().crashed;
        if crashed {
            self.coverage.hit("fault: agent died right after a write");
            let after = self.rng.u64(MS..=self.profile.ttl_real());
            self.crash_agent(pod, true, Some(after));
            return None;
        }
        self.agent_effects(pod);
        self.checks().check_reported(pod);
        Some(result)
    }

    fn agent_effects(&mut self, pod: usize) {
        while let Some(agent) = self.pods[pod].agent.as_mut() {
            let Some(effect) = agent.holder.poll_effect() else { break };
            self.trace.say(self.t, || format!("        p{pod} -> {effect:?}"));
            self.agent_effect(pod, effect);
        }
        let node = &mut self.pods[pod];
        let Some(agent) = node.agent.as_mut() else { return };
        let wake = agent.holder.poll_timeout().map(|wakeup| wakeup.at);
        if wake != agent.wake {
            agent.wake = wake;
            if let Some(at) = wake {
                let run = node.run;
                let t = node.clock.real(at).max(self.t + WAKE_GAP_MIN);
                if t < Real::MAX {
                    self.queue.push(t, SimEvent::AgentWake { pod, run, at });
                }
            }
        }
    }

    /// A stopped agent resumes before its pause ends, and its wake-ups with it.
    pub(super) fn go_on(&mut self, pod: usize) {
        let node = &mut self.pods[pod];
        let stopped = node.paused_until > self.t;
        node.paused_until = self.t;
        if let Some(agent) = node.agent.as_mut().filter(|_| stopped) {
            agent.wake = None;
            self.agent_effects(pod);
        }
    }

    /// A wake-up is due.
    pub(super) fn agent_wake(&mut self, pod: usize, at: Moment) {
        let Some(agent) = self.pods[pod].agent.as_mut() else { return };
        if agent.wake == Some(at) {
            agent.wake = None;
            self.agent_call(pod, Holder::handle_wake);
        }
    }

    fn agent_effect(&mut self, pod: usize, effect: Effect) {
        let run = self.pods[pod].run;
        let agent = self.pods[pod].agent.as_mut().expect("it has effects");
        match effect {
            Effect::Dial { link: number, target, attempt } => {
                agent.number = number;
                if let Some(old) = agent.link.take() {
                    self.hang_up(old);
                }
                let most = ((20 * MS) << attempt.min(10)).min(self.profile.ttl_real() / 3);
                let wait = if attempt == 0 { MS } else { self.rng.u64(most / 2..=most) };
                self.after(wait, SimEvent::Dial { pod, run, number, target });
            }
            Effect::Hangup(number) => {
                if let Some(link) = agent.link.filter(|_| agent.number == number) {
                    agent.link = None;
                    self.hang_up(link);
                }
            }
            Effect::Send(number, message) => {
                let Some(link) = agent.link.filter(|_| agent.number == number) else { return };
                self.checks().observe_sent(pod, &message);
                self.checks().note_reported(pod, &message);
                if self.network.links[link].pod_open {
                    self.send_up(link, &message);
                }
            }
            Effect::LeaseRenewed => {}
            Effect::LeaseChanged => self.tick_soon(pod),
            Effect::DrainEnded { jobs_left, reported } => {
                self.coverage.hit(if jobs_left == 0 { "drain ended" } else { "drain: jobs left" });
                let agent = self.pods[pod].agent.as_ref().expect("it has effects");
                let left = agent.holder.outstanding();
                let holds_nothing = left.jobs == Some(0) && left.in_effect == 0;
                if reported && holds_nothing && left.streams + left.shares == 0 {
                    self.checks().note_left(pod);
                }
                self.leave(pod);
            }
            Effect::Resumed => {
                // Only the container of its worker restarted.
                let was_left = std::mem::replace(&mut self.pods[pod].left, false);
                self.coverage.hit(if was_left { "drained agent resumed" } else { "agent resumed" });
                self.pods[pod].leaving = false;
            }
            Effect::DrainOverdue { .. } if self.pods[pod].ends_worker => {
                self.coverage.hit("drain overdue: the worker is ended");
                let grace = self.rng.u64(0..self.profile.ttl_real());
                self.crash_worker(pod, Some(grace));
            }
            Effect::DrainOverdue { .. } => {
                self.coverage.hit("drain overdue");
                self.observer.drains_overdue.insert(pod);
            }
            Effect::Superseded => {
                self.coverage.hit("agent superseded");
                self.pods[pod].superseded = true;
                self.leave(pod);
            }
            Effect::Notice(notice) => {
                match &notice {
                    Notice::StreamExpired(stream, _) => self.checks().check_renewed(pod, stream),
                    Notice::DrainStarted => self.pods[pod].leaving = true,
                    Notice::DrainOver(_) => {
                        self.pods[pod].leaving = false;
                        self.observer.drains_overdue.remove(&pod);
                    }
                    _ => {}
                }
                self.count_agent_notice(&notice);
            }
        }
    }

    /// The agent leaves, and its pod ends some time later, or the agent is started again.
    fn leave(&mut self, pod: usize) {
        let node = &mut self.pods[pod];
        node.left = true;
        node.leaving = true;
        let ends = node.superseded || node.returned || self.quiet_since.is_some();
        let (stays, returns_at_once) = (node.stays && !node.superseded, node.returns_at_once);
        if !node.stays {
            self.crash_agent(pod, true, None);
        }
        let ttl = self.profile.ttl_real();
        let grace = self.rng.u64(0..ttl);
        if !ends && returns_at_once {
            self.pods[pod].returned = true;
            self.come_back_elsewhere(pod);
            return;
        }
        // Everything that follows ends before the faults end.
        let soon = self.t + ttl * 8 < self.profile.safety;
        let takes = self.profile.has(Sequence::TakenNames) && soon;
        if !ends && stays && takes && self.may_get_twin(pod) {
            self.take_name(pod);
        } else if !ends && stays && self.rng.bool() {
            self.after(grace, SimEvent::RestartWorker { pod });
            self.after(ttl, SimEvent::EndLeft { pod });
        } else if ends || self.rng.u8(0..3) > 0 {
            self.after(grace, SimEvent::EndLeft { pod });
        } else {
            self.after(grace, SimEvent::ComeBack { pod });
        }
    }

    /// An agent that has left comes back at once, while its leader's write to its entry is still on
    /// its way; often another replica leads by then.
    fn come_back_elsewhere(&mut self, pod: usize) {
        let ttl = self.profile.ttl_real();
        if let Some((leader, _)) = self.view().true_leader()
            && self.rng.bool()
        {
            self.coverage.hit("fault: a pod came back under another leader");
            self.network.slow_store = Some((leader, SlowStore::All, self.t + ttl));
            let next = (leader + 1) % self.replicas.len();
            self.replicas[next].election.eager = true;
            let run = self.replicas[next].run;
            self.after(MS, SimEvent::Poll { replica: next, run });
        }
        let soon = self.rng.u64(0..=self.profile.delay * 10);
        if self.pods[pod].stays {
            self.after(soon, SimEvent::RestartWorker { pod });
            self.after(ttl, SimEvent::EndLeft { pod });
        } else {
            self.after(soon, SimEvent::ComeBack { pod });
        }
    }

    /// The worker of a pod that was drained is started again.
    pub(super) fn restart_worker(&mut self, pod: usize) {
        if self.pods[pod].left && !self.pods[pod].dead {
            if self.pods[pod].returns_at_once
                && let Some((leader, _)) = self.view().true_leader()
            {
                let until = self.t + self.profile.ttl_real();
                self.network.slow_store = Some((leader, SlowStore::Writes, until));
            }
            self.crash_worker(pod, Some(MS));
        }
    }

    /// A journal can be written again; sometimes its agent dies soon after.
    pub(super) fn repair_journal(&mut self, pod: usize) {
        let dies = self.quiet_since.is_none() && self.rng.bool();
        let writes = self.rng.u32(0..3);
        let mut disk = self.pods[pod].disk.borrow_mut();
        (disk.failing, disk.nearly_full) = (false, false);
        if dies {
            disk.crash_after = Some(writes);
        }
    }

    /// An agent that has left is started again, with the journal that it left.
    pub(super) fn come_back(&mut self, pod: usize) {
        if self.pods[pod].dead || self.pods[pod].is_replaced() {
            return;
        }
        self.coverage.hit("fault: agent that left came back");
        self.crash_agent(pod, true, None);
        let node = &mut self.pods[pod];
        (node.left, node.leaving, node.returned) = (false, false, true);
        self.boot_agent(pod);
    }

    /// The link is open.
    pub(super) fn opened(&mut self, link: LinkId) {
        let line = &self.network.links[link];
        let (pod, run, number, open) = (line.pod, line.pod_run, line.number, line.pod_open);
        let node = &mut self.pods[pod];
        let Some(agent) = node.agent.as_mut() else { return };
        if open && node.run == run && agent.link == Some(link) {
            agent.applied = (Epoch(0), GrantNumber(0));
            self.agent_call(pod, |holder, now| holder.handle_open(number, now));
            self.ping_later(link, false);
        }
    }

    /// A message reaches the agent.
    pub(super) fn deliver(&mut self, pod: usize, link: LinkId, message: CoordinatorMessage) {
        let number = self.network.links[link].number;
        self.trace.say(self.t, || format!("        p{pod} <- {number:?} {message:?}"));
        let before = self.checks().before_message(pod, link, &message);
        let told = message.clone();
        let is_left = matches!(&message, CoordinatorMessage::Refusal(refusal)
            if refusal.reason == RefusalReason::Left);
        let agent = self.pods[pod].agent.as_ref().filter(|_| self.pods[pod].left);
        if is_left && agent.is_some_and(|agent| agent.link == Some(link)) {
            self.coverage.hit("goodbye answered after the drain");
            self.checks().note_left(pod);
        }
        self.agent_call(pod, |holder, now| holder.handle_message(number, told, now));
        self.note_applied(pod, link, &before);
        self.checks().observe_message(pod, link, &message, &before);
    }

    /// The agent has applied the grant that came, if it came in turn.
    fn note_applied(&mut self, pod: usize, link: LinkId, before: &BeforeMessage) {
        let agent = self.pods[pod].agent.as_mut();
        if let (Some(agent), Some((of, number, snapshot))) = (agent, before.grant) {
            let next = agent.applied.0 == of && number == agent.applied.1.next();
            // An agent that gave the link up meanwhile has written nothing of the grant.
            if (snapshot || next) && agent.link == Some(link) {
                agent.applied = (of, number);
            }
        }
    }

    fn count_agent_notice(&mut self, notice: &Notice) {
        if let Notice::StreamExpired(stream, _) = notice {
            self.observer.streams_expired.insert(stream.clone());
        }
        if *notice == Notice::ProtocolViolation(SNAPSHOT_NOT_ABOVE) {
            self.checks().fail("S6", || format!("an agent got {SNAPSHOT_NOT_ABOVE}"));
        }
        self.coverage.hit(names::of_agent_notice(notice));
    }
}
