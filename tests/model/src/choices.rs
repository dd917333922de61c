//! Which steps a state allows.
//!
//! Everything that can happen at one moment happens in one order, and time advances when nothing is
//! left: that is the usual step. A fault is possible just before a usual step of the node or link
//! that it affects (earlier, it would change nothing visible), and before time advances.
//! What a fault has made slow or stopped may go on at any moment, after its usual steps.

use leasehold_types::{Epoch, Moment};

use crate::action::{Action, Part};
use crate::clock::{BOUNDS, Real};
use crate::fault::Fault;
use crate::scope::NODES;
use crate::state::{Item, ReplicaState, Request, State};
use crate::world::World;

/// Agents of one pod, one after the other.
const BOOTS_MAX: u8 = 3;
/// Agents run at multiples of this alone: later than they asked for by less than that.
const AGENTS_EVERY: Real = 1_000;
/// Jobs end and manifests are edited at multiples of this alone.
const EVENTS_EVERY: Real = 4_000;

impl World {
    /// All steps that a state allows, the usual one first; none at the end of a path.
    pub(crate) fn choices(&self, state: &State) -> Vec<Action> {
        let mut all = Vec::with_capacity(16);
        let Some(usual) = self.usual(state) else { return all };
        all.push(usual);
        self.others(state, usual, &mut all);
        if usual == Action::Advance {
            self.slow(state, &mut all);
        }
        self.faults(state, usual, &mut all);
        all
    }

    /// The step that comes next where nothing is slow and nothing fails.
    fn usual(&self, state: &State) -> Option<Action> {
        let nodes = 0..NODES as u8;
        let replica = |at: u8| &state.replicas[usize::from(at)];
        let runs = |at: &u8| {
            replica(*at).core.is_some() && !replica(*at).paused && replica(*at).busy.is_none()
        };
        let boot =
            nodes.clone().find(|at| replica(*at).core.is_none() && replica(*at).desired == 0);
        if let Some(at) = boot {
            return Some(Action::BootReplica(at));
        }
        let reads = |at: &u8| replica(*at).desired <= state.desired;
        if let Some(at) = nodes.clone().filter(runs).find(reads) {
            return Some(Action::Read(at));
        }
        if let Some(action) = self.usual_of_network(state) {
            return Some(action);
        }
        for at in nodes.clone().filter(runs).filter(|at| !replica(*at).slow_store) {
            if !replica(at).terms.is_empty() {
                return Some(Action::Terms(at, Part::Whole));
            }
            if !replica(at).register.is_empty() {
                return Some(Action::Register(at, Part::Whole));
            }
            let renews = |moment: Moment| moment <= state.replica_now(usize::from(at));
            if replica(at).term.is_some_and(|term| renews(term.renew_at)) {
                return Some(Action::Renew(at));
            }
        }
        for at in nodes.clone().filter(runs) {
            if let Some(pod) = self.dead_unknown(state, usize::from(at)) {
                return Some(Action::Gone(at, pod));
            }
        }
        if let Some(action) = nodes.clone().find_map(|pod| self.usual_of_pod(state, pod)) {
            return Some(action);
        }
        let wakes = |at: &u8| {
            let wake = self.core(state, usize::from(*at)).and_then(|core| core.facts.wake);
            wake.is_some_and(|at_local| at_local <= state.replica_now(usize::from(*at)))
        };
        if let Some(at) = nodes.clone().filter(runs).find(wakes) {
            return Some(Action::WakeReplica(at));
        }
        if let Some(action) = nodes.clone().find_map(|pod| self.usual_of_worker(state, pod)) {
            return Some(action);
        }
        let vacant = state.store.owner.is_none_or(|owner| {
            let owner = replica(owner);
            owner.core.is_none() || owner.term.is_none()
        });
        if vacant && let Some(at) = nodes.clone().filter(runs).find(|at| self.may_take(state, *at))
        {
            return Some(Action::Elect(at));
        }
        let new = |pod: &u8| self.pod(state, usize::from(*pod)).pod.boots == 0;
        if let Some(pod) = nodes.clone().find(new) {
            return Some(Action::BootPod(pod));
        }
        self.next_moment(state).map(|_| Action::Advance)
    }

    fn usual_of_network(&self, state: &State) -> Option<Action> {
        for (at, link) in (0..).zip(&state.links) {
            if !link.slow_down && self.comes_down(state, at) {
                return Some(Action::ToPod(at));
            }
        }
        // What waits for the end of a turn comes in the order in which it arrived.
        let taken = (0..).zip(&state.links).filter(|(at, link)| {
            let waits = link.up.first().is_some_and(|first| first.arrived.is_some());
            (waits || !link.slow_up) && self.comes_up(state, *at)
        });
        let first = taken.min_by_key(|(_, link)| link.up[0].arrived.unwrap_or(Real::MAX));
        if let Some((at, _)) = first {
            return Some(Action::ToReplica(at));
        }
        let mut links = (0..).zip(&state.links);
        let arrives = links.find(|(at, link)| !link.slow_up && self.arrives(state, *at));
        arrives.map(|(at, _)| Action::Arrive(at))
    }

    fn comes_down(&self, state: &State, link: u8) -> bool {
        let link = &state.links[usize::from(link)];
        let pod = &state.pods[usize::from(link.pod)];
        !link.down.is_empty() && !pod.paused && self.pods.get(pod.id).pod.is_up()
    }

    fn comes_up(&self, state: &State, link: u8) -> bool {
        let link = &state.links[usize::from(link)];
        let replica = &state.replicas[usize::from(link.replica)];
        let runs = replica.core.is_some() && !replica.paused && replica.busy.is_none();
        !link.up.is_empty() && link.replica_open && runs
    }

    /// Whether something arrives at a replica in a long turn.
    fn arrives(&self, state: &State, link: u8) -> bool {
        let link = &state.links[usize::from(link)];
        let replica = &state.replicas[usize::from(link.replica)];
        let comes = link.up.iter().any(|upward| upward.arrived.is_none());
        comes && link.replica_open && replica.busy.is_some() && !replica.paused
    }

    fn usual_of_pod(&self, state: &State, at: u8) -> Option<Action> {
        let node = &state.pods[usize::from(at)];
        let entry = self.pods.get(node.id);
        if node.paused || !entry.pod.is_up() {
            return None;
        }
        if entry.pod.dial.is_some() && node.dialled < self.scope.dials {
            let target = self.dial_targets(state).next();
            return target.map(|replica| Action::Dial(at, replica));
        }
        let now = state.pod_now(usize::from(at));
        entry.wake.is_some_and(|wake| wake <= now).then_some(Action::WakePod(at))
    }

    fn usual_of_worker(&self, state: &State, at: u8) -> Option<Action> {
        let node = &state.pods[usize::from(at)];
        let entry = self.pods.get(node.id);
        if node.slow_worker || node.paused || !entry.pod.is_up() {
            return None;
        }
        self.of_worker(state, at)
    }

    fn of_worker(&self, state: &State, at: u8) -> Option<Action> {
        let entry = self.pod(state, usize::from(at));
        if !entry.pod.introduced {
            return Some(Action::Introduce(at));
        }
        if entry.revoked {
            return Some(Action::StopUse(at));
        }
        let running = entry.pod.jobs.len();
        let size = entry.pod.size_in_effect(state.pod_now(usize::from(at))) as usize;
        let hungry = running < size.min(usize::from(self.scope.appetite));
        hungry.then_some(Action::BeginJob(at))
    }

    /// Replicas that believe to lead; the others would send an agent on. The real leader first.
    fn dial_targets<'a>(&'a self, state: &'a State) -> impl Iterator<Item = u8> + 'a {
        let owner = state.store.owner.unwrap_or(0);
        let all = [owner, 1 - owner].into_iter();
        all.filter(|at| {
            let leads = self.core(state, usize::from(*at)).and_then(|core| core.facts.leads);
            leads.is_some()
        })
    }

    /// Other steps of the kind that is due, where no fault is needed for them.
    fn others(&self, state: &State, usual: Action, all: &mut Vec<Action>) {
        if let Action::Dial(pod, _) = usual {
            all.extend(self.dial_targets(state).skip(1).map(|at| Action::Dial(pod, at)));
        }
        for at in 0..NODES as u8 {
            let entry = self.pod(state, usize::from(at));
            let concerned = usual == Action::Advance && state.t.is_multiple_of(EVENTS_EVERY);
            let ends = !entry.pod.jobs.is_empty() && entry.pod.is_up() && entry.pod.introduced;
            if concerned && ends && state.budget.allows(Fault::EndJob) {
                all.push(Action::EndJob(at));
            }
            // A worker that does not know of its drain asks on.
            let wants = entry.pod.jobs.len() < usize::from(self.scope.appetite);
            let asks = entry.pod.memory.draining && entry.pod.is_up() && entry.pod.introduced;
            let now = usual == Action::Advance || pod_of(state, usual) == Some(at);
            if now && wants && asks {
                all.push(Action::BeginJob(at));
            }
            let unrenewed = state.t.saturating_sub(state.store.changed_at) as u128;
            let overdue = unrenewed >= BOUNDS.outlast(self.scope.leadership).as_millis();
            let runs =
                |node: &ReplicaState| node.core.is_some() && !node.paused && node.busy.is_none();
            let node = &state.replicas[usize::from(at)];
            let anothers = state.store.owner.is_some_and(|owner| owner != at);
            if usual == Action::Advance
                && overdue
                && anothers
                && runs(node)
                && self.may_take(state, at)
            {
                all.push(Action::Elect(at));
            }
        }
        let edits = usual == Action::Advance && state.t.is_multiple_of(EVENTS_EVERY);
        if edits && state.budget.allows(Fault::Edit) {
            let last = usize::from(state.desired) + 1 == self.scope.desired.len();
            all.extend((!last).then_some(Action::Edit));
        }
    }

    /// What is slow or stopped continues, or a dead process comes back.
    fn slow(&self, state: &State, all: &mut Vec<Action>) {
        for (at, link) in (0..).zip(&state.links) {
            if link.slow_down && self.comes_down(state, at) {
                all.push(Action::FlowDown(at));
            }
            if link.slow_up && (self.comes_up(state, at) || self.arrives(state, at)) {
                all.push(Action::FlowUp(at));
            }
        }
        for (at, node) in (0..).zip(&state.replicas) {
            match node.core {
                None if node.desired > 0 => all.push(Action::BootReplica(at)),
                Some(_) if node.paused => all.push(Action::ResumeReplica(at)),
                Some(_) if node.busy.is_some() => all.push(Action::EndTurn(at)),
                Some(_) if node.slow_store => {
                    let part = |request: &Request| match request.done {
                        None => Part::Carry,
                        Some(_) => Part::Answer,
                    };
                    all.extend(node.terms.first().map(|request| Action::Terms(at, part(request))));
                    all.extend(
                        node.register.first().map(|request| Action::Register(at, part(request))),
                    );
                }
                _ => {}
            }
        }
        for (at, node) in (0..).zip(&state.pods) {
            let pod = &self.pods.get(node.id).pod;
            let back = pod.boots > 0 && pod.boots < BOOTS_MAX && !pod.is_up();
            if back && !pod.dead && !pod.left {
                all.push(Action::BootPod(at));
            }
            if node.paused {
                all.push(Action::ResumePod(at));
            } else if node.slow_worker && pod.is_up() {
                all.extend(self.of_worker(state, at));
            }
        }
    }

    fn faults(&self, state: &State, usual: Action, all: &mut Vec<Action>) {
        let mut add = |fault: Fault, action: Action| {
            if state.budget.allows(fault) {
                all.push(action);
            }
        };
        let idle = usual == Action::Advance;
        match usual {
            Action::ToPod(at) => {
                let link = &state.links[usize::from(at)];
                let message = matches!(link.down[0], Item::Message(_));
                add(Fault::SlowDown, Action::SlowDown(at));
                if message {
                    add(Fault::Lose, Action::LoseDown(at));
                    add(Fault::Double, Action::DoubleDown(at));
                }
                if matches!(link.down.get(1), Some(Item::Message(_))) {
                    add(Fault::Swap, Action::SwapDown(at));
                }
                if link.agent_open {
                    add(Fault::Break, Action::Break(at));
                }
            }
            Action::ToReplica(at) => {
                let link = &state.links[usize::from(at)];
                let message = matches!(link.up[0].item, Item::Message(_));
                add(Fault::SlowUp, Action::SlowUp(at));
                if message {
                    add(Fault::Lose, Action::LoseUp(at));
                    add(Fault::Double, Action::DoubleUp(at));
                }
                if link.up.get(1).is_some_and(|upward| matches!(upward.item, Item::Message(_))) {
                    add(Fault::Swap, Action::SwapUp(at));
                }
                if link.agent_open {
                    add(Fault::Break, Action::Break(at));
                }
            }
            Action::Terms(at, _) | Action::Register(at, _) => {
                add(Fault::SlowStore, Action::SlowStore(at));
            }
            Action::Introduce(at) | Action::StopUse(at) => {
                add(Fault::SlowWorker, Action::SlowWorker(at));
            }
            Action::Advance => {
                for (at, link) in (0..).zip(&state.links) {
                    if link.agent_open {
                        add(Fault::Break, Action::Break(at));
                    }
                }
            }
            _ => {}
        }
        for at in 0..NODES as u8 {
            let up = self.pod(state, usize::from(at)).pod.is_up();
            let dead = self.pod(state, usize::from(at)).pod.dead;
            let concerned = pod_of(state, usual) == Some(at);
            let paused = state.pods[usize::from(at)].paused;
            if up && !paused && concerned {
                add(Fault::Pause, Action::PausePod(at));
                add(Fault::FullDisk, Action::FullDisk(at));
            }
            if up && (idle || concerned) {
                add(Fault::CrashAgent, Action::CrashPod(at));
                add(Fault::LoseJournal, Action::LosePod(at));
                if !paused {
                    add(Fault::Drain, Action::Drain(at));
                }
            }
            if idle && !dead {
                add(Fault::Kill, Action::Kill(at));
            }
            let node = &state.replicas[usize::from(at)];
            let concerned = replica_of(state, usual) == Some(at);
            if node.core.is_some() && !node.paused && node.busy.is_none() && concerned {
                add(Fault::Pause, Action::PauseReplica(at));
                add(Fault::LongTurn, Action::LongTurn(at));
            }
            if node.core.is_some() && node.term.is_some() && (idle || concerned) {
                add(Fault::CrashReplica, Action::CrashReplica(at));
            }
            let leader = state.store.owner.filter(|owner| *owner != at);
            let concerned = leader.is_some_and(|leader| replica_of(state, usual) == Some(leader));
            let taken = leader.is_some() && (idle || concerned);
            if taken && node.core.is_some() && !node.paused && self.may_take(state, at) {
                add(Fault::TakeOver, Action::TakeOver(at));
            }
        }
    }

    fn may_take(&self, state: &State, replica: u8) -> bool {
        let node = &state.replicas[usize::from(replica)];
        node.term.is_none() && node.terms.is_empty() && state.store.epoch < Epoch(self.scope.epochs)
    }

    /// A pod that is dead, and that a leader still counts with.
    fn dead_unknown(&self, state: &State, replica: usize) -> Option<u8> {
        let core = self.core(state, replica)?;
        core.facts.leads?;
        let pods = 0..NODES;
        let unknown = |pod: &usize| {
            self.pod(state, *pod).pod.dead
                && core.facts.committed[*pod].is_some()
                && !state.replicas[replica].told_gone[*pod]
        };
        pods.into_iter().find(unknown).map(|pod| pod as u8)
    }

    /// The next moment at which something is due or ends, within the scope.
    pub(crate) fn next_moment(&self, state: &State) -> Option<Real> {
        let mut next: Option<Real> = None;
        let mut add = |at: Option<Real>| {
            let at = at.filter(|at| *at > state.t);
            next = next.into_iter().chain(at).min();
        };
        for (at, node) in state.replicas.iter().enumerate() {
            let rate = state.rates[0][at];
            let wake = self.core(state, at).and_then(|core| core.facts.wake);
            add(wake.and_then(|wake| rate.real(wake)));
            if let Some(term) = node.term {
                add(rate.real(term.renew_at));
                add(rate.real(term.until));
            }
        }
        for (at, node) in state.pods.iter().enumerate() {
            let rate = state.rates[1][at];
            let entry = self.pods.get(node.id);
            let due = |moment| rate.real(moment).map(|at| at.next_multiple_of(AGENTS_EVERY));
            add(entry.wake.and_then(due));
            for (_, used) in &entry.uses {
                add(used.until.and_then(due));
            }
        }
        if state.store.owner.is_some() {
            let outlast = BOUNDS.outlast(self.scope.leadership).as_millis();
            add(Some(state.store.changed_at + Real::try_from(outlast).unwrap_or(Real::MAX)));
        }
        next.filter(|at| *at <= self.scope.horizon)
    }

    pub(crate) fn pod(&self, state: &State, pod: usize) -> &crate::world::PodEntry {
        self.pods.get(state.pods[pod].id)
    }

    pub(crate) fn core(&self, state: &State, replica: usize) -> Option<&crate::world::CoreEntry> {
        Some(self.cores.get(state.replicas[replica].core?))
    }
}

/// The pod that a step is of.
fn pod_of(state: &State, action: Action) -> Option<u8> {
    match action {
        Action::ToPod(link) => Some(state.links[usize::from(link)].pod),
        Action::Dial(pod, _)
        | Action::WakePod(pod)
        | Action::Introduce(pod)
        | Action::BeginJob(pod)
        | Action::StopUse(pod) => Some(pod),
        _ => None,
    }
}

/// The replica that a step is of.
fn replica_of(state: &State, action: Action) -> Option<u8> {
    match action {
        Action::ToReplica(link) => Some(state.links[usize::from(link)].replica),
        Action::Terms(replica, _)
        | Action::Register(replica, _)
        | Action::Renew(replica)
        | Action::WakeReplica(replica) => Some(replica),
        _ => None,
    }
}
