//! Everything that exists in one run, and its one step.
//!
//! Invariant: one seed decides everything.

mod backups;
mod cells;
mod driver;
mod election;
mod faults;
mod health;
mod labels;
mod liveness;
mod network;
mod platform;
mod pod;
mod queue;
mod replica;
mod sequences;
mod wire;
mod worker;

use std::collections::BTreeSet;
use std::sync::Arc;

use fastrand::Rng;
use leasehold_coordinator_core::event::Event;

use crate::coverage::Coverage;
use crate::observer::{Checks, Observer, Touched};
use crate::system::View;
use crate::system::clock::{Clock, MS, Real};
use crate::system::faults::FaultBias;
use crate::system::manifests::Manifests;
use crate::system::network::Network;
use crate::system::pod::Pod;
use crate::system::profile::Profile;
use crate::system::replica::Replica;
use crate::system::store::{Backup, Shape, Store};
use crate::system::tracked::Tracked;
use crate::trace::Trace;
use crate::world::liveness::LivenessStage;
use crate::world::queue::{Queue, SimEvent};

/// A driver is never woken more often than this.
pub(crate) const WAKE_GAP_MIN: Real = MS / 10;

/// The [`View`] of a world. A macro borrows only the fields that it names, so that [`Checks`] can
/// change the observer at the same time; a method would borrow the whole world.
macro_rules! view {
    ($world:expr) => {
        View {
            t: $world.t,
            profile: &$world.profile,
            keeps_names: $world.keeps_names,
            store: &$world.store,
            replicas: &$world.replicas,
            pods: &$world.pods,
            network: &$world.network,
            manifests: &$world.manifests,
            trace: &$world.trace,
        }
    };
}

/// One run.
#[derive(Debug)]
pub(crate) struct World {
    /// The only source of randomness.
    pub rng: Rng,
    /// Draws the failures of workers, in the seeds that have some.
    pub failures: Option<Rng>,
    /// Draws who meets another cell, in the seeds that have one.
    pub meetings: Option<Rng>,
    /// Now.
    pub t: Real,
    /// The scheduled events.
    pub queue: Queue,
    /// The sizes, times and faults of this run.
    pub profile: Profile,
    /// Where no platform says which agent of a name may speak, coordinators may keep names.
    pub keeps_names: bool,
    /// The stores of the election.
    pub store: Store,
    /// A copy of them.
    pub backup: Option<Backup>,
    /// The coordinators.
    pub replicas: Tracked<Replica>,
    /// The pods, dead ones too.
    pub pods: Tracked<Pod>,
    /// The links.
    pub network: Network,
    /// The desired state.
    pub manifests: Manifests,
    /// Checks the properties.
    pub observer: Observer,
    /// Counts what happened.
    pub coverage: Coverage,
    /// The record of this run.
    pub trace: Trace,
    /// How far the liveness phase has come.
    pub stage: LivenessStage,
    /// When faults ended, or the last change after that was made.
    pub quiet_since: Option<Real>,
}

impl World {
    /// The world of a seed, at its beginning, with more of some faults than others have.
    pub(super) fn new(seed: u64, bias: FaultBias, trace: Trace) -> Self {
        let mut rng = Rng::with_seed(seed);
        let profile = Profile::new(seed, bias, &mut rng);
        let manifests = Manifests::new(&mut rng, &profile);
        let shape = if rng.bool() { Shape::Logs } else { Shape::Objects };
        let replicas = (0..profile.replicas)
            .map(|_| Replica::new(Clock::new(&mut rng, profile.bounds.drift_ppm)))
            .collect();
        let mut world = Self {
            rng,
            failures: health::failures(seed),
            meetings: cells::meetings(seed),
            t: 0,
            queue: Queue::default(),
            profile,
            keeps_names: shape == Shape::Logs && seed % 4 < 2,
            store: Store::new(shape),
            backup: None,
            replicas,
            pods: Tracked::default(),
            network: Network::default(),
            manifests,
            observer: Observer::default(),
            coverage: Coverage::default(),
            trace,
            stage: LivenessStage::default(),
            quiet_since: None,
        };
        world.begin();
        world
    }

    pub(super) fn begin(&mut self) {
        self.trace.say(0, || format!("{:?}", self.profile));
        self.trace.say(0, || format!("{:?}", self.manifests));
        for replica in 0..self.replicas.len() {
            self.after(replica as Real * 5 * MS, SimEvent::BootReplica { replica });
        }
        for _ in 0..self.profile.pods {
            self.new_pod(None, 0);
        }
        let ttl = self.profile.ttl_real();
        self.after(ttl, SimEvent::ListPods);
        // Faults start late, so that there is something to break.
        self.after(ttl * 3 / 2, SimEvent::Fault);
        if self.failures.is_some() {
            self.after(ttl * 3 / 2, SimEvent::FailWorker);
        }
        if self.meetings.is_some() {
            self.after(ttl * 3 / 2, SimEvent::MeetStray);
        }
        self.after(self.profile.safety, SimEvent::EndFaults);
        if self.profile.restores_stores {
            self.back_up_later();
        }
    }

    /// The state of the system, to be read.
    fn view(&self) -> View<'_> {
        view!(self)
    }

    /// The observer, which reads the state of the system.
    fn checks(&mut self) -> Checks<'_> {
        Checks { view: view!(self), observer: &mut self.observer, coverage: &mut self.coverage }
    }

    /// Checks what must hold at every moment.
    fn check(&mut self) {
        let sampled = self.view().is_sampled();
        let entries =
            if sampled { std::mem::take(&mut self.store.changed) } else { BTreeSet::new() };
        let (pods, replicas) = (self.pods.take_touched(), self.replicas.take_touched());
        self.checks().check(Touched { pods, replicas, entries });
    }

    /// Schedules an event after `delay`.
    pub(super) fn after(&mut self, delay: Real, what: SimEvent) {
        self.queue.push(self.t + delay, what);
    }

    /// Runs to the end, or to the first property that does not hold.
    pub(super) fn run(&mut self) {
        while self.observer.failure.is_none() && !matches!(self.stage, LivenessStage::Done) {
            let Some((t, what)) = self.queue.pop() else { break };
            self.t = t;
            self.step(what);
            self.check();
            if self.trace.steps() > self.profile.steps_max {
                let steps = self.trace.steps();
                self.checks().fail("L1", || format!("no end after {steps} steps"));
            }
        }
    }

    fn step(&mut self, what: SimEvent) {
        if let Some(until) = self.stopped(&what) {
            self.postpone(what, until);
            return;
        }
        let too_late = what.is_fault() && self.t >= self.profile.safety;
        if too_late || !self.current(&what) {
            return;
        }
        self.trace.step(self.t);
        self.trace.say(self.t, || format!("{what:?}"));
        match what {
            SimEvent::Dial { .. }
            | SimEvent::Opened { .. }
            | SimEvent::Ping { .. }
            | SimEvent::ToReplica { .. }
            | SimEvent::ToPod { .. }
            | SimEvent::Cut(..)
            | SimEvent::Heal(_) => self.step_network(what),
            SimEvent::Desired { .. }
            | SimEvent::Gone { .. }
            | SimEvent::Removed { .. }
            | SimEvent::OrderDrain { .. }
            | SimEvent::Undrain { .. }
            | SimEvent::Write { .. }
            | SimEvent::CoreWake { .. }
            | SimEvent::Turn { .. }
            | SimEvent::BootReplica { .. }
            | SimEvent::Renew { .. }
            | SimEvent::Poll { .. }
            | SimEvent::TakeOver { .. }
            | SimEvent::CrashReplica { .. }
            | SimEvent::RaiseCaps { .. }
            | SimEvent::DeclareGone { .. }
            | SimEvent::Retry { .. }
            | SimEvent::Store { .. }
            | SimEvent::Answer { .. } => self.step_replica(what),
            SimEvent::AgentWake { .. }
            | SimEvent::BootAgent { .. }
            | SimEvent::Tick { .. }
            | SimEvent::JobEnd { .. }
            | SimEvent::StopUse { .. }
            | SimEvent::ReportCount { .. }
            | SimEvent::BootWorker { .. }
            | SimEvent::DrainPod { .. }
            | SimEvent::CrashAgain { .. }
            | SimEvent::Redirect { .. }
            | SimEvent::ComeBack { .. }
            | SimEvent::RestartWorker { .. }
            | SimEvent::EndLeft { .. }
            | SimEvent::EndPod { .. }
            | SimEvent::RepairJournal { .. } => self.step_pod(what),
            SimEvent::ListPods => self.list(),
            SimEvent::Fault => self.next_fault(),
            SimEvent::FailWorker => self.next_failure(),
            SimEvent::MeetStray => self.next_stray(),
            SimEvent::CheckWorker { pod } => self.check_worker(pod),
            SimEvent::BackUpStores => self.back_up_stores(),
            SimEvent::RestoreStores => self.restore_stores(),
            SimEvent::EndFaults => {
                self.end_faults();
                self.end_failures();
                let ttl = self.profile.ttl_real();
                self.after(ttl, SimEvent::CheckConvergence);
            }
            SimEvent::CheckConvergence => self.check_convergence(),
            SimEvent::CheckNotDelayed { pod } => self.check_not_delayed(pod),
        }
    }

    /// Schedules an event again, for when the process that handles it resumes.
    fn postpone(&mut self, what: SimEvent, until: Real) {
        let what = match what {
            SimEvent::Tick { pod, start, number, asked: None } => {
                let asked = Some(self.view().local_of_pod(pod));
                SimEvent::Tick { pod, start, number, asked }
            }
            what => what,
        };
        self.coverage.hit("effective: a stopped process was late");
        if let SimEvent::ToReplica { link, .. } = &what {
            self.network.links[*link].unread = Some(self.t);
        }
        self.queue.push(until, what);
    }

    fn step_network(&mut self, what: SimEvent) {
        match what {
            SimEvent::Dial { pod, number, target, .. } => {
                let wanted = self.pods[pod].agent.as_ref().is_some_and(|a| a.number == number);
                if wanted {
                    self.dial(pod, number, &target);
                }
            }
            SimEvent::Opened { link } => self.opened(link),
            SimEvent::Ping { link, missed } => self.ping(link, missed),
            SimEvent::ToReplica { link, data } => self.frame_at_replica(link, data),
            SimEvent::ToPod { link, data } => self.frame_at_pod(link, data),
            SimEvent::Cut(cut, time) => self.cut(cut, time),
            SimEvent::Heal(cut) => self.heal(cut),
            other => unreachable!("{other:?} is not an event of the network"),
        }
    }

    fn step_replica(&mut self, what: SimEvent) {
        match what {
            SimEvent::Desired { replica, version, desired } => {
                let node = &mut self.replicas[replica];
                if version > node.desired_version && node.is_up() {
                    node.desired_version = version;
                    node.desired = Arc::clone(&desired);
                    self.checks().note_set_lists(&desired);
                    self.core_event(replica, Event::Desired(desired));
                }
            }
            SimEvent::Gone { replica, mut keys } => {
                // A name that lives again is not gone: platforms distinguish pods, not names.
                keys.retain(|key| self.is_gone(replica, key));
                if !keys.is_empty() {
                    self.core_event(replica, Event::Gone(keys));
                }
            }
            SimEvent::Removed { replica, key } => {
                self.core_event(replica, Event::Removed(vec![key]));
            }
            SimEvent::OrderDrain { replica, key } => self.order_drain(replica, key),
            SimEvent::Undrain { replica, key } => self.undrain(replica, key),
            SimEvent::Write { replica, link, message, .. } => self.write(replica, link, *message),
            SimEvent::CoreWake { replica, at, .. } => self.core_wake(replica, at),
            SimEvent::Turn { replica, .. } => self.turn(replica),
            SimEvent::BootReplica { replica } => self.boot_replica(replica),
            SimEvent::Renew { replica, .. } => self.renew_due(replica),
            SimEvent::Poll { replica, .. } => self.poll_store(replica),
            SimEvent::TakeOver { replica, .. } => self.take_over(replica),
            SimEvent::RaiseCaps { pod } => self.raise_caps(pod),
            SimEvent::DeclareGone { replica, pod } => self.declare_empty_worker_gone(replica, pod),
            SimEvent::CrashReplica { replica } => {
                self.crash_replica(replica);
                self.after(MS, SimEvent::BootReplica { replica });
            }
            SimEvent::Retry { replica, number, .. } => self.no_answer(replica, number),
            SimEvent::Store { replica, run, request } => self.store_request(replica, run, request),
            SimEvent::Answer { replica, answer, .. } => self.store_answer(replica, answer),
            other => unreachable!("{other:?} is not an event of a replica"),
        }
    }

    fn step_pod(&mut self, what: SimEvent) {
        match what {
            SimEvent::AgentWake { pod, at, .. } => self.agent_wake(pod, at),
            SimEvent::BootAgent { pod, .. } => self.boot_agent(pod),
            SimEvent::Tick { pod, asked, .. } => self.tick(pod, asked),
            SimEvent::JobEnd { pod, job, .. } => self.job_end(pod, job),
            SimEvent::StopUse { pod, stream, token, .. } => {
                self.stop_use_decided(pod, stream, token)
            }
            SimEvent::ReportCount { pod, .. } => self.count_due(pod),
            SimEvent::BootWorker { pod, .. } => self.boot_worker(pod),
            SimEvent::DrainPod { pod } => self.drain_pod(pod),
            SimEvent::CrashAgain { pod } => {
                let after = self.rng.u64(MS..self.profile.ttl_real());
                self.crash_agent(pod, true, Some(after));
            }
            SimEvent::Redirect { pod, replica, forget } => self.redirect(pod, replica, forget),
            SimEvent::ComeBack { pod } => self.come_back(pod),
            SimEvent::EndPod { pod } => self.end_pod(pod),
            SimEvent::EndLeft { pod } => {
                if self.pods[pod].left {
                    self.end_pod(pod);
                }
            }
            SimEvent::RestartWorker { pod } => self.restart_worker(pod),
            SimEvent::RepairJournal { pod } => self.repair_journal(pod),
            other => unreachable!("{other:?} is not an event of a pod"),
        }
    }

    /// Until when the process that handles this event is stopped. Its clock keeps running.
    fn stopped(&self, what: &SimEvent) -> Option<Real> {
        let (pods, replicas) = (&self.pods, &self.replicas);
        let until = match what {
            SimEvent::Dial { pod, .. }
            | SimEvent::AgentWake { pod, .. }
            | SimEvent::Tick { pod, .. }
            | SimEvent::CheckWorker { pod } => pods[*pod].paused_until,
            SimEvent::Opened { link }
            | SimEvent::Ping { link, .. }
            | SimEvent::ToPod { link, .. } => pods[self.network.links[*link].pod].paused_until,
            SimEvent::ToReplica { link, .. } => {
                replicas[self.network.links[*link].replica].paused_until
            }
            SimEvent::Desired { replica, .. }
            | SimEvent::Gone { replica, .. }
            | SimEvent::Removed { replica, .. }
            | SimEvent::OrderDrain { replica, .. }
            | SimEvent::Undrain { replica, .. }
            | SimEvent::CoreWake { replica, .. }
            | SimEvent::Turn { replica, .. }
            | SimEvent::Renew { replica, .. }
            | SimEvent::Poll { replica, .. }
            | SimEvent::TakeOver { replica, .. }
            | SimEvent::Retry { replica, .. }
            | SimEvent::Answer { replica, .. } => replicas[*replica].paused_until,
            SimEvent::Write { replica, link, .. } => {
                let pod = self.network.links[*link].pod;
                let full = self.network.full == Some(pod);
                let drained = if full { pods[pod].paused_until } else { 0 };
                replicas[*replica].paused_until.max(drained)
            }
            _ => 0,
        };
        (until > self.t).then_some(until)
    }

    /// Whether the process that this event was meant for still runs.
    pub(super) fn current(&self, what: &SimEvent) -> bool {
        match what {
            SimEvent::Dial { pod, run, .. }
            | SimEvent::AgentWake { pod, run, .. }
            | SimEvent::BootAgent { pod, run } => {
                self.pods[*pod].run == *run && !self.pods[*pod].dead
            }
            SimEvent::Tick { pod, start, number, .. } => {
                let worker = &self.pods[*pod].worker;
                worker.start == *start && worker.alive && worker.tick_number == *number
            }
            SimEvent::JobEnd { pod, start, .. }
            | SimEvent::StopUse { pod, start, .. }
            | SimEvent::ReportCount { pod, start } => {
                self.pods[*pod].worker.start == *start && self.pods[*pod].worker.alive
            }
            SimEvent::BootWorker { pod, start } => {
                let worker = &self.pods[*pod].worker;
                worker.start == *start && !worker.alive && !self.pods[*pod].dead
            }
            SimEvent::Write { replica, run, .. }
            | SimEvent::CoreWake { replica, run, .. }
            | SimEvent::Turn { replica, run }
            | SimEvent::Renew { replica, run }
            | SimEvent::Poll { replica, run }
            | SimEvent::TakeOver { replica, run }
            | SimEvent::Retry { replica, run, .. }
            | SimEvent::Answer { replica, run, .. } => {
                self.replicas[*replica].run == *run && self.replicas[*replica].is_up()
            }
            _ => true,
        }
    }
}
