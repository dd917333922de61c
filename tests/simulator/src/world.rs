//! Everything that exists in one run, and its one step.
//!
//! Invariant: one seed decides everything.

mod driver;
mod election;
mod faults;
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
use crate::system::faults::Favour;
use crate::system::manifests::Manifests;
use crate::system::network::Network;
use crate::system::pod::Pod;
use crate::system::profile::Profile;
use crate::system::replica::Replica;
use crate::system::store::{Shape, Store};
use crate::system::tracked::Tracked;
use crate::trace::Trace;
use crate::world::liveness::Stage;
use crate::world::queue::{Happening, Queue};

/// A driver is never woken more often than this.
pub(crate) const WAKE_GAP_MIN: Real = MS / 10;

/// One run.
#[derive(Debug)]
pub(crate) struct World {
    /// The only source of chance.
    pub rng: Rng,
    /// Now.
    pub t: Real,
    /// What will happen.
    pub queue: Queue,
    /// How hard it is.
    pub profile: Profile,
    /// Where no platform says which agent of a name may speak, coordinators may keep names.
    pub keeps_names: bool,
    /// The stores of the election.
    pub store: Store,
    /// The coordinators.
    pub replicas: Tracked<Replica>,
    /// The pods, dead ones too.
    pub pods: Tracked<Pod>,
    /// The links.
    pub network: Network,
    /// The desired state.
    pub manifests: Manifests,
    /// Who sees everything.
    pub observer: Observer,
    /// What happened.
    pub cover: Coverage,
    /// The record.
    pub trace: Trace,
    /// How far the liveness phase has come.
    pub stage: Stage,
    /// When faults ended, or the last change after that was made.
    pub calm_since: Option<Real>,
}

impl World {
    /// The world of a seed, at its beginning, with more of some faults than others have.
    pub(super) fn new(seed: u64, favour: Favour, trace: Trace) -> Self {
        let mut rng = Rng::with_seed(seed);
        let profile = Profile::new(seed, favour, &mut rng);
        let manifests = Manifests::new(&mut rng, &profile);
        let shape = if rng.bool() { Shape::Logs } else { Shape::Objects };
        let replicas = (0..profile.replicas)
            .map(|_| Replica::new(Clock::new(&mut rng, profile.bounds.drift_ppm)))
            .collect();
        let mut world = Self {
            rng,
            t: 0,
            queue: Queue::default(),
            profile,
            keeps_names: shape == Shape::Logs && seed % 4 < 2,
            store: Store::new(shape),
            replicas,
            pods: Tracked::default(),
            network: Network::default(),
            manifests,
            observer: Observer::default(),
            cover: Coverage::default(),
            trace,
            stage: Stage::default(),
            calm_since: None,
        };
        world.begin();
        world
    }

    pub(super) fn begin(&mut self) {
        self.trace.say(0, || format!("{:?}", self.profile));
        self.trace.say(0, || format!("{:?}", self.manifests));
        for replica in 0..self.replicas.len() {
            self.after(replica as Real * 5 * MS, Happening::BootReplica { replica });
        }
        for _ in 0..self.profile.pods {
            self.new_pod(None, 0);
        }
        let ttl = self.profile.ttl_real();
        self.after(ttl, Happening::List);
        // A while without faults first, so that there is something to break.
        self.after(ttl * 3 / 2, Happening::Fault);
        self.after(self.profile.safety, Happening::Calm);
    }

    /// The state of the system, to be read.
    fn view(&self) -> View<'_> {
        View {
            t: self.t,
            profile: &self.profile,
            keeps_names: self.keeps_names,
            store: &self.store,
            replicas: &self.replicas,
            pods: &self.pods,
            network: &self.network,
            manifests: &self.manifests,
            trace: &self.trace,
        }
    }

    /// The observer, which reads the state of the system.
    fn checks(&mut self) -> Checks<'_> {
        let view = View {
            t: self.t,
            profile: &self.profile,
            keeps_names: self.keeps_names,
            store: &self.store,
            replicas: &self.replicas,
            pods: &self.pods,
            network: &self.network,
            manifests: &self.manifests,
            trace: &self.trace,
        };
        Checks { view, observer: &mut self.observer, cover: &mut self.cover }
    }

    /// Checks what must hold at every moment.
    fn check(&mut self) {
        let sampled = self.view().is_sampled();
        let entries =
            if sampled { std::mem::take(&mut self.store.changed) } else { BTreeSet::new() };
        let (pods, replicas) = (self.pods.take_touched(), self.replicas.take_touched());
        self.checks().check(Touched { pods, replicas, entries });
    }

    /// Schedules something.
    pub(super) fn after(&mut self, delay: Real, what: Happening) {
        self.queue.push(self.t + delay, what);
    }

    /// Runs to the end, or to the first property that does not hold.
    pub(super) fn run(&mut self) {
        while self.observer.failure.is_none() && !matches!(self.stage, Stage::Done) {
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

    fn step(&mut self, what: Happening) {
        if let Some(until) = self.stopped(&what) {
            let what = match what {
                Happening::Tick { pod, start, number, asked: None } => {
                    let asked = Some(self.view().local_of_pod(pod));
                    Happening::Tick { pod, start, number, asked }
                }
                what => what,
            };
            self.cover.hit("bit: a stopped process was late");
            if let Happening::ToReplica { link, .. } = &what {
                self.network.links[*link].unread = Some(self.t);
            }
            self.queue.push(until, what);
            return;
        }
        let too_late = what.is_fault() && self.t >= self.profile.safety;
        if too_late || !self.current(&what) {
            return;
        }
        self.trace.step(self.t);
        self.trace.say(self.t, || format!("{what:?}"));
        match what {
            Happening::Dial { .. }
            | Happening::Opened { .. }
            | Happening::Ping { .. }
            | Happening::ToReplica { .. }
            | Happening::ToPod { .. }
            | Happening::Cut(..)
            | Happening::Heal(_) => self.step_network(what),
            Happening::Desired { .. }
            | Happening::Gone { .. }
            | Happening::OrderDrain { .. }
            | Happening::Write { .. }
            | Happening::CoreWake { .. }
            | Happening::Turn { .. }
            | Happening::BootReplica { .. }
            | Happening::Renew { .. }
            | Happening::Poll { .. }
            | Happening::TakeOver { .. }
            | Happening::CrashReplica { .. }
            | Happening::Widen { .. }
            | Happening::DeclareGone { .. }
            | Happening::Retry { .. }
            | Happening::Store { .. }
            | Happening::Answer { .. } => self.step_replica(what),
            Happening::AgentWake { .. }
            | Happening::BootAgent { .. }
            | Happening::Tick { .. }
            | Happening::JobEnd { .. }
            | Happening::LetGo { .. }
            | Happening::Tell { .. }
            | Happening::BootWorker { .. }
            | Happening::DrainPod { .. }
            | Happening::CrashAgain { .. }
            | Happening::Lure { .. }
            | Happening::ComeBack { .. }
            | Happening::RestartWorker { .. }
            | Happening::EndLeft { .. }
            | Happening::EndPod { .. }
            | Happening::MendJournal { .. } => self.step_pod(what),
            Happening::List => self.list(),
            Happening::Fault => self.fault(),
            Happening::Calm => {
                self.calm();
                let ttl = self.profile.ttl_real();
                self.after(ttl, Happening::Look);
            }
            Happening::Look => self.look(),
            Happening::Hindered { pod } => self.check_hindered(pod),
        }
    }

    fn step_network(&mut self, what: Happening) {
        match what {
            Happening::Dial { pod, number, target, .. } => {
                let wanted = self.pods[pod].agent.as_ref().is_some_and(|a| a.number == number);
                if wanted {
                    self.dial(pod, number, &target);
                }
            }
            Happening::Opened { link } => self.opened(link),
            Happening::Ping { link, missed } => self.ping(link, missed),
            Happening::ToReplica { link, data } => self.arrive_up(link, data),
            Happening::ToPod { link, data } => self.arrive_down(link, data),
            Happening::Cut(cut, time) => self.cut(cut, time),
            Happening::Heal(cut) => self.heal(cut),
            other => unreachable!("{other:?} is not of the network"),
        }
    }

    fn step_replica(&mut self, what: Happening) {
        match what {
            Happening::Desired { replica, version, desired } => {
                let node = &mut self.replicas[replica];
                if version > node.desired_version && node.is_up() {
                    node.desired_version = version;
                    node.desired = Arc::clone(&desired);
                    self.core_event(replica, Event::Desired(desired));
                }
            }
            Happening::Gone { replica, mut keys } => {
                // A name that lives again is not gone: platforms tell pods, not names, apart.
                keys.retain(|key| self.is_gone(key));
                if !keys.is_empty() {
                    self.core_event(replica, Event::Gone(keys));
                }
            }
            Happening::OrderDrain { replica, key } => self.order_drain(replica, key),
            Happening::Write { replica, link, message, .. } => self.write(replica, link, *message),
            Happening::CoreWake { replica, at, .. } => self.core_wake(replica, at),
            Happening::Turn { replica, .. } => self.turn(replica),
            Happening::BootReplica { replica } => self.boot_replica(replica),
            Happening::Renew { replica, .. } => self.renew_due(replica),
            Happening::Poll { replica, .. } => self.poll_store(replica),
            Happening::TakeOver { replica, .. } => self.take_over(replica),
            Happening::Widen { pod } => self.widen(pod),
            Happening::DeclareGone { replica, pod } => self.declare_empty(replica, pod),
            Happening::CrashReplica { replica } => {
                self.crash_replica(replica);
                self.after(MS, Happening::BootReplica { replica });
            }
            Happening::Retry { replica, number, .. } => self.no_answer(replica, number),
            Happening::Store { replica, run, request } => self.store_request(replica, run, request),
            Happening::Answer { replica, answer, .. } => self.store_answer(replica, answer),
            other => unreachable!("{other:?} is not of a replica"),
        }
    }

    fn step_pod(&mut self, what: Happening) {
        match what {
            Happening::AgentWake { pod, at, .. } => self.agent_wake(pod, at),
            Happening::BootAgent { pod, .. } => self.boot_agent(pod),
            Happening::Tick { pod, asked, .. } => self.tick(pod, asked),
            Happening::JobEnd { pod, job, .. } => self.job_end(pod, job),
            Happening::LetGo { pod, stream, token, .. } => self.let_go_decided(pod, stream, token),
            Happening::Tell { pod, .. } => self.tell_count(pod),
            Happening::BootWorker { pod, .. } => self.boot_worker(pod),
            Happening::DrainPod { pod } => self.drain_pod(pod),
            Happening::CrashAgain { pod } => {
                let after = self.rng.u64(MS..self.profile.ttl_real());
                self.crash_agent(pod, true, Some(after));
            }
            Happening::Lure { pod, replica, forget } => self.lure(pod, replica, forget),
            Happening::ComeBack { pod } => self.come_back(pod),
            Happening::EndPod { pod } => self.end_pod(pod),
            Happening::EndLeft { pod } => {
                if self.pods[pod].left {
                    self.end_pod(pod);
                }
            }
            Happening::RestartWorker { pod } => self.restart_worker(pod),
            Happening::MendJournal { pod } => self.mend_journal(pod),
            other => unreachable!("{other:?} is not of a pod"),
        }
    }

    /// Until when the process that this concerns is stopped: its clock runs on, it does not.
    fn stopped(&self, what: &Happening) -> Option<Real> {
        let (pods, replicas) = (&self.pods, &self.replicas);
        let until = match what {
            Happening::Dial { pod, .. }
            | Happening::AgentWake { pod, .. }
            | Happening::Tick { pod, .. } => pods[*pod].paused_until,
            Happening::Opened { link }
            | Happening::Ping { link, .. }
            | Happening::ToPod { link, .. } => pods[self.network.links[*link].pod].paused_until,
            Happening::ToReplica { link, .. } => {
                replicas[self.network.links[*link].replica].paused_until
            }
            Happening::Desired { replica, .. }
            | Happening::Gone { replica, .. }
            | Happening::OrderDrain { replica, .. }
            | Happening::CoreWake { replica, .. }
            | Happening::Turn { replica, .. }
            | Happening::Renew { replica, .. }
            | Happening::Poll { replica, .. }
            | Happening::TakeOver { replica, .. }
            | Happening::Retry { replica, .. }
            | Happening::Answer { replica, .. } => replicas[*replica].paused_until,
            Happening::Write { replica, link, .. } => {
                let pod = self.network.links[*link].pod;
                let full = self.network.full == Some(pod);
                let drained = if full { pods[pod].paused_until } else { 0 };
                replicas[*replica].paused_until.max(drained)
            }
            _ => 0,
        };
        (until > self.t).then_some(until)
    }

    /// Whether the life of the process that this was meant for goes on.
    pub(super) fn current(&self, what: &Happening) -> bool {
        match what {
            Happening::Dial { pod, run, .. }
            | Happening::AgentWake { pod, run, .. }
            | Happening::BootAgent { pod, run } => {
                self.pods[*pod].run == *run && !self.pods[*pod].dead
            }
            Happening::Tick { pod, start, number, .. } => {
                let worker = &self.pods[*pod].worker;
                worker.start == *start && worker.alive && worker.tick_number == *number
            }
            Happening::JobEnd { pod, start, .. }
            | Happening::LetGo { pod, start, .. }
            | Happening::Tell { pod, start } => {
                self.pods[*pod].worker.start == *start && self.pods[*pod].worker.alive
            }
            Happening::BootWorker { pod, start } => {
                let worker = &self.pods[*pod].worker;
                worker.start == *start && !worker.alive && !self.pods[*pod].dead
            }
            Happening::Write { replica, run, .. }
            | Happening::CoreWake { replica, run, .. }
            | Happening::Turn { replica, run }
            | Happening::Renew { replica, run }
            | Happening::Poll { replica, run }
            | Happening::TakeOver { replica, run }
            | Happening::Retry { replica, run, .. }
            | Happening::Answer { replica, run, .. } => {
                self.replicas[*replica].run == *run && self.replicas[*replica].is_up()
            }
            _ => true,
        }
    }
}
