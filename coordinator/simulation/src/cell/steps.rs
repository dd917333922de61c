//! The steps of a cell: a message arrives, a core is woken, and what follows from either.

use std::time::Duration;

use anyhow::{Result, bail};
use leasehold_agent_core::{
    Effect as AgentEffect, Holder, Notice as AgentNotice, UnwrittenJournal,
};
use leasehold_coordinator_core::effect::{Effect, Notice, Order};
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_types::message::AgentMessage;
use leasehold_types::{LinkNumber, Moment, WorkerKey};

use super::agent::{Agent, WorkerPhase};
use super::{
    Cell, Connection, ELECTED_AFTER, Happening, IdleTime, LATENCY, Message, RENEWED_EVERY,
    SLOWDOWN, Sleeper, WorkerNumber,
};

/// An agent's wait before its second dial, and its longest one, without jitter.
const DIAL_WAIT: Duration = Duration::from_millis(10);
const DIAL_WAIT_MAX: Duration = Duration::from_secs(1);
/// After this many doublings the wait is the longest one.
const DIAL_DOUBLINGS_MAX: u32 = 7;
/// Why an agent's link ends, as its log would say.
const CLOSED: &str = "the coordinator has ended the connection";

impl Cell {
    /// When something happens next in the cell by itself.
    #[must_use]
    pub fn next_at(&self) -> Option<Moment> {
        let slows_down = self.idle_time == IdleTime::Skipped && self.clock.is_exact();
        let slows_down = slows_down.then_some(self.exact_until);
        let next = [self.messages.next_at(), self.next_wakeup(), slows_down];
        next.into_iter().flatten().min().map(|at| at.max(self.now))
    }

    /// Lets what happens next happen.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn step(&mut self) -> Result<()> {
        let Some(at) = self.next_at() else { return Ok(()) };
        self.now = at;
        if self.messages.next_at().is_some_and(|next| next <= at)
            && let Some(message) = self.messages.take_next()
        {
            return self.deliver(message);
        }
        if self.next_wakeup().is_some_and(|next| next <= at)
            && let Some(sleeper) = self.wakeups.take_next()
        {
            return self.wake(sleeper);
        }
        self.slow_down();
        Ok(())
    }

    fn next_wakeup(&self) -> Option<Moment> {
        self.wakeups.next_at().map(|at| self.clock.reaches(at))
    }

    /// From now on the cores' clock runs slower, unless there is something that leases or accounts
    /// end by.
    fn slow_down(&mut self) {
        let has_deadline =
            self.awaits_give_up() || self.agents.iter().any(Agent::drains_with_shares);
        if self.store.is_led() && !self.store.is_away() && !has_deadline {
            self.clock.set_slowdown(SLOWDOWN, self.now);
        } else {
            self.be_exact_for(Duration::ZERO);
        }
    }

    fn deliver(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Opened(worker, link) => self.open(worker, link),
            Message::ToCoordinator(conn, event) => {
                if self.connection(conn).process == self.process {
                    self.take_event(*event)
                } else {
                    Ok(())
                }
            }
            Message::ToAgent(conn, message) => {
                let Connection { worker, link, .. } = self.connection(conn);
                let taken =
                    self.drive(worker, |holder, now| holder.handle_message(link, *message, now));
                taken.map(|_| ())
            }
            Message::ClosedAtAgent(conn) => {
                let Connection { worker, link, .. } = self.connection(conn);
                let taken =
                    self.drive(worker, |holder, now| holder.handle_closed(link, CLOSED, now));
                taken.map(|_| ())
            }
            Message::ToStore(epoch, order) => {
                let now = self.cores_now();
                let answer = self.store.carry_out(epoch, *order, now);
                answer.map_or(Ok(()), |answer| self.take_event(answer))
            }
            Message::Election => self.elect(),
        }
    }

    fn wake(&mut self, sleeper: Sleeper) -> Result<()> {
        match sleeper {
            Sleeper::Coordinator => {
                self.core_wakeup = None;
                self.take_event(Event::Wake)
            }
            Sleeper::Agent(worker) => {
                self.agents[worker].wakeup = None;
                self.drive(worker, Holder::handle_wake).map(|_| ())
            }
            Sleeper::Renewal => {
                self.wakeups.add(self.cores_now() + RENEWED_EVERY, Sleeper::Renewal);
                self.renew()
            }
        }
    }

    /// Renews leadership, if a coordinator leads and the store answers.
    pub(super) fn renew(&mut self) -> Result<()> {
        let now = self.cores_now();
        let renewed = self.store.renew(now);
        renewed.map_or(Ok(()), |renewed| self.take_event(renewed))
    }

    /// A coordinator takes the next term, unless one leads. The agents that wait dial it.
    pub(super) fn elect(&mut self) -> Result<()> {
        if self.store.is_led() || self.store.is_away() {
            return Ok(());
        }
        self.be_exact_for(Duration::ZERO);
        let now = self.cores_now();
        let elected = self.store.elect(now);
        if self.process > 0 {
            // A new process has read its manifests before.
            self.take_event(Event::Desired(self.desired.clone()))?;
        }
        self.take_event(Event::Elected(elected))?;
        for (worker, link) in std::mem::take(&mut self.unanswered) {
            // It is between two attempts.
            let wait = 2 * DIAL_WAIT_MAX.mul_f64(self.rng.f64());
            self.messages.add(self.now + LATENCY + wait, Message::Opened(worker, link));
        }
        self.tell_all_gone()
    }

    fn open(&mut self, worker: WorkerNumber, link: LinkNumber) -> Result<()> {
        let agent = &self.agents[worker];
        if agent.phase != WorkerPhase::Running || agent.dialled != Some(link) {
            return Ok(());
        }
        if !self.store.is_led() {
            self.unanswered.push((worker, link));
            return Ok(());
        }
        let conn = ConnId(self.connections.len() as u64);
        self.connections.push(Connection { worker, link, process: self.process });
        self.agents[worker].open = Some((link, conn));
        self.drive(worker, |holder, now| holder.handle_open(link, now)).map(|_| ())
    }

    fn connection(&self, conn: ConnId) -> Connection {
        self.connections[conn.0 as usize]
    }

    /// Lets something happen to the agent of a worker that runs, and carries out its effects.
    /// Returns what came of it; none if the worker has ended.
    pub(super) fn drive<R>(
        &mut self,
        worker: WorkerNumber,
        happens: impl FnOnce(&mut Holder<UnwrittenJournal>, Moment) -> R,
    ) -> Result<Option<R>> {
        let now = self.cores_now();
        let agent = &mut self.agents[worker];
        if agent.phase != WorkerPhase::Running {
            return Ok(None);
        }
        let result = happens(&mut agent.holder, now);
        loop {
            while let Some(effect) = self.agents[worker].holder.poll_effect() {
                self.carry_out(worker, effect)?;
            }
            let agent = &mut self.agents[worker];
            agent.forget_loads();
            if std::mem::take(&mut agent.has_new_stream) {
                // Its worker looks at the lease at once.
                let _ = agent.holder.lease(now);
            }
            if !std::mem::take(&mut agent.is_changed) {
                break;
            }
            let size = agent.holder.size_for_worker(now);
            agent.free_slots = size.saturating_sub(agent.holder.running());
            let asked = if agent.serves_pipelines { agent.take_asked(now) } else { Vec::new() };
            let revoked = |(stream, token)| Happening::Revoked { worker, stream, token };
            self.happenings.extend(asked.into_iter().map(revoked));
            self.happenings.push_back(Happening::SlotsChanged(worker));
        }
        let agent = &mut self.agents[worker];
        if let Some(place) = agent.wakeup.take() {
            self.wakeups.cancel(place);
        }
        let wakeup = agent.holder.poll_timeout();
        agent.wakeup = wakeup.map(|wakeup| self.wakeups.add(wakeup.at, Sleeper::Agent(worker)));
        Ok(Some(result))
    }

    fn carry_out(&mut self, worker: WorkerNumber, effect: AgentEffect) -> Result<()> {
        let now = self.cores_now();
        let agent = &mut self.agents[worker];
        match effect {
            AgentEffect::Dial { link, attempt, .. } => {
                agent.dialled = Some(link);
                let wait = self.dial_wait(attempt);
                self.messages.add(self.now + wait + LATENCY, Message::Opened(worker, link));
            }
            AgentEffect::Hangup(link) => {
                if let Some((_, conn)) = agent.open.take_if(|(open, _)| *open == link) {
                    self.send_to_coordinator(conn, Event::Closed(conn), LATENCY);
                }
            }
            AgentEffect::Send(link, message) => {
                if let Some((_, conn)) = agent.open.filter(|(open, _)| *open == link) {
                    self.send_to_coordinator(conn, event_of(conn, message), LATENCY);
                }
            }
            AgentEffect::LeaseChanged => agent.is_changed = true,
            AgentEffect::DrainEnded { .. } => {
                self.happenings.push_back(Happening::Drained(worker));
            }
            AgentEffect::Superseded => bail!("worker {worker}: its agent is superseded"),
            AgentEffect::Notice(AgentNotice::StreamGranted(stream, _)) => {
                agent.has_new_stream = true;
                let load = agent.load_of(&stream, now);
                self.happenings.push_back(Happening::Granted { worker, stream, load });
            }
            AgentEffect::Notice(
                AgentNotice::StreamReleased(stream, _) | AgentNotice::StreamExpired(stream, _),
            ) => self.happenings.push_back(Happening::Freed { worker, stream }),
            AgentEffect::Notice(AgentNotice::StreamRevoked(stream, token))
                if !stream.set.is_shares() =>
            {
                self.happenings.push_back(Happening::Revoked { worker, stream, token });
            }
            AgentEffect::Notice(AgentNotice::ProtocolViolation(rule)) => {
                bail!("worker {worker}: its coordinator breaks a rule: {rule}");
            }
            AgentEffect::LeaseRenewed
            | AgentEffect::DrainOverdue { .. }
            | AgentEffect::Resumed
            | AgentEffect::Notice(_) => {}
        }
        Ok(())
    }

    /// An agent's wait before a dial, after this many attempts in a row that have failed.
    fn dial_wait(&mut self, failed: u32) -> Duration {
        if failed == 0 {
            return Duration::ZERO;
        }
        let doublings = (failed - 1).min(DIAL_DOUBLINGS_MAX);
        let wait = (DIAL_WAIT * 2_u32.pow(doublings)).min(DIAL_WAIT_MAX);
        wait.mul_f64(1.0 + self.rng.f64())
    }

    fn send_to_coordinator(&mut self, conn: ConnId, event: Event, after: Duration) {
        let message = Message::ToCoordinator(conn, Box::new(event));
        self.messages.add(self.now + after, message);
    }

    /// Nothing of a worker runs from now on. Its connection ends after this time.
    pub(super) fn end_processes(
        &mut self,
        worker: WorkerNumber,
        phase: WorkerPhase,
        closed_after: Duration,
    ) {
        let agent = &mut self.agents[worker];
        agent.phase = phase;
        let (wakeup, open) = (agent.wakeup.take(), agent.open.take());
        if let Some(place) = wakeup {
            self.wakeups.cancel(place);
        }
        if let Some((_, conn)) = open {
            self.send_to_coordinator(conn, Event::Closed(conn), closed_after);
        }
    }

    /// The platform says that these workers are gone, if a coordinator can be told now.
    pub(super) fn tell_gone(&mut self, workers: Vec<WorkerKey>) -> Result<()> {
        if workers.is_empty() || !self.store.is_led() || self.store.is_away() {
            return Ok(());
        }
        self.take_event(Event::Gone(workers))
    }

    /// The same of all workers that are gone and have an entry.
    pub(super) fn tell_all_gone(&mut self) -> Result<()> {
        let is_gone = |key: &&WorkerKey| {
            let number = self.numbers.get(*key);
            number.is_some_and(|number| self.agents[*number].phase == WorkerPhase::Gone)
        };
        let gone = self.store.workers().filter(is_gone).cloned().collect();
        self.tell_gone(gone)
    }

    /// One turn of the coordinator, and those that follow at once. A message counts as written when
    /// it is sent.
    pub(super) fn take_event(&mut self, event: Event) -> Result<()> {
        let now = self.cores_now();
        self.core.handle(event, now);
        loop {
            self.core.settle(now, now);
            let mut written = Vec::new();
            while let Some(effect) = self.core.poll_effect() {
                match effect {
                    Effect::Send { conn, message } => {
                        written.push(conn);
                        let message = Message::ToAgent(conn, Box::new(message));
                        self.messages.add(self.now + LATENCY, message);
                    }
                    Effect::Close(conn) => {
                        self.messages.add(self.now + LATENCY, Message::ClosedAtAgent(conn));
                    }
                    Effect::Order { order: Order::StepDown { .. }, .. } => {
                        self.store.step_down(now);
                        self.messages.add(self.now + ELECTED_AFTER, Message::Election);
                    }
                    Effect::Order { epoch, order } => {
                        let message = Message::ToStore(epoch, Box::new(order));
                        self.messages.add(self.now + LATENCY, message);
                    }
                    Effect::Notice(notice) => self.note(notice)?,
                }
            }
            if written.is_empty() && !self.core.has_more() {
                break;
            }
            written.into_iter().for_each(|conn| self.core.handle(Event::Sent(conn), now));
        }
        if let Some(place) = self.core_wakeup.take() {
            self.wakeups.cancel(place);
        }
        let wakeup = self.core.poll_timeout();
        self.core_wakeup = wakeup.map(|wakeup| self.wakeups.add(wakeup.at, Sleeper::Coordinator));
        Ok(())
    }

    fn note(&mut self, notice: Notice) -> Result<()> {
        match notice {
            Notice::StreamGranted { .. } => self.be_exact_for_streams(),
            Notice::ProtocolViolation { worker, rule } => {
                bail!("worker {worker}: its agent breaks a rule: {rule}");
            }
            _ => {}
        }
        Ok(())
    }
}

fn event_of(conn: ConnId, message: AgentMessage) -> Event {
    match message {
        AgentMessage::Hello(hello) => Event::Hello(conn, hello, None),
        AgentMessage::Report(report) => Event::Report(conn, report),
        AgentMessage::Beat(beat) => Event::Beat(conn, beat),
    }
}
