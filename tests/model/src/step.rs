//! What a step does to a state.

use leasehold_coordinator_core::turn::Turn;
use leasehold_types::{Epoch, LinkNumber, Moment};

use crate::action::Action;
use crate::clock::Real;
use crate::fault::Fault;
use crate::replica::Times;
use crate::scope::{ACCOUNTS, NODES};
use crate::state::{
    Item, Link, ObserverMemory, PodState, ReplicaState, RequestKind, State, Store, Upward,
};
use crate::violation::Violation;
use crate::world::{CoreCall, CoreOut, PodCall, PodOut, World};

/// Conns are named by pod and by how many links that had opened.
const CONNS_PER_POD: u64 = 100;

/// The moment from which a message counts that arrives at `t` in a turn that began at `begun`.
fn stamp(begun: Option<Real>, t: Real) -> Real {
    // The driver's own rule, over real time: every clock keeps its order.
    Turn::begin(Moment(begun.unwrap_or(t))).stamp(Moment(t)).0
}

/// A step under way.
pub(crate) struct Step<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) state: State,
    pub(crate) violation: Option<Violation>,
}

/// The states that a scope begins in: one for each choice of clocks.
pub(crate) fn initial(world: &mut World) -> Vec<State> {
    let pods: [u32; NODES] = std::array::from_fn(|pod| world.new_pod(pod));
    let replica = ReplicaState {
        core: None,
        paused: false,
        busy: None,
        slow_store: false,
        desired: 0,
        told_gone: [false; NODES],
        term: None,
        above: Epoch(0),
        terms: Vec::new(),
        register: Vec::new(),
    };
    let store = Store { epoch: Epoch(0), owner: None, changed_at: 0, register: [None; ACCOUNTS] };
    let begin = |rates: &[_; 2]| State {
        t: 0,
        rates: *rates,
        pods: pods.map(|id| PodState { id, paused: false, slow_worker: false, dialled: 0 }),
        replicas: std::array::from_fn(|_| replica.clone()),
        store: store.clone(),
        links: Vec::new(),
        desired: 0,
        budget: world.scope.budget,
        seen: ObserverMemory::default(),
    };
    world.scope.rates.iter().map(begin).collect()
}

/// The state after a step, and the property that it broke.
pub(crate) fn apply(
    world: &mut World,
    state: &State,
    action: Action,
) -> (State, Option<Violation>) {
    let mut step = Step { world, state: state.clone(), violation: None };
    step.act(action);
    step.drop_links();
    let Step { state, violation, .. } = step;
    (state, violation)
}

impl Step<'_> {
    fn act(&mut self, action: Action) {
        let at = usize::from;
        match action {
            Action::BootReplica(replica) => {
                let core = self.world.new_core();
                let node = &mut self.state.replicas[at(replica)];
                (node.core, node.desired) = (Some(core), self.state.desired + 1);
                self.core(at(replica), &CoreCall::Read(self.state.desired));
            }
            Action::BootPod(pod) => self.pod(at(pod), PodCall::Boot),
            Action::Read(replica) => {
                self.state.replicas[at(replica)].desired = self.state.desired + 1;
                self.core(at(replica), &CoreCall::Read(self.state.desired));
            }
            Action::Elect(replica) => self.take(at(replica)),
            Action::TakeOver(replica) => {
                self.state.budget.spend(Fault::TakeOver);
                self.take(at(replica));
            }
            Action::Dial(pod, replica) => self.dial(pod, replica),
            Action::ToPod(link) => self.reach_pod(at(link)),
            Action::ToReplica(link) => self.reach_replica(at(link)),
            Action::Arrive(link) => {
                let link = &mut self.state.links[at(link)];
                let begun = self.state.replicas[at(link.replica)].busy;
                if let Some(first) = link.up.iter_mut().find(|upward| upward.arrived.is_none()) {
                    first.arrived = Some(stamp(begun, self.state.t));
                }
            }
            Action::FlowUp(link) => self.state.links[at(link)].slow_up = false,
            Action::FlowDown(link) => self.state.links[at(link)].slow_down = false,
            Action::EndTurn(replica) => self.state.replicas[at(replica)].busy = None,
            Action::Terms(replica, part) => self.terms(at(replica), part),
            Action::Register(replica, part) => self.register(at(replica), part),
            Action::Renew(replica) => self.renew(at(replica)),
            Action::Gone(replica, pod) => {
                self.state.replicas[at(replica)].told_gone[at(pod)] = true;
                self.core(at(replica), &CoreCall::Gone(pod));
            }
            Action::WakeReplica(replica) => self.core(at(replica), &CoreCall::Wake),
            Action::WakePod(pod) => self.pod(at(pod), PodCall::Wake),
            Action::Introduce(pod) => self.pod(at(pod), PodCall::Introduce),
            Action::BeginJob(pod) => self.pod(at(pod), PodCall::BeginJob),
            Action::StopUse(pod) => self.pod(at(pod), PodCall::StopUse),
            Action::Advance => {
                if let Some(t) = self.world.next_moment(&self.state) {
                    self.state.t = t;
                }
            }
            Action::ResumePod(pod) => self.state.pods[at(pod)].paused = false,
            Action::ResumeReplica(replica) => self.state.replicas[at(replica)].paused = false,
            Action::EndJob(pod) => {
                self.state.budget.spend(Fault::EndJob);
                self.pod(at(pod), PodCall::EndJob);
            }
            Action::Edit => {
                self.state.budget.spend(Fault::Edit);
                self.state.desired += 1;
            }
            _ => self.fault(action),
        }
    }

    fn fault(&mut self, action: Action) {
        let at = usize::from;
        let budget = &mut self.state.budget;
        match action {
            Action::SlowUp(link) => {
                budget.spend(Fault::SlowUp);
                self.state.links[at(link)].slow_up = true;
            }
            Action::SlowDown(link) => {
                budget.spend(Fault::SlowDown);
                self.state.links[at(link)].slow_down = true;
            }
            Action::SlowStore(replica) => {
                budget.spend(Fault::SlowStore);
                self.state.replicas[at(replica)].slow_store = true;
            }
            Action::SlowWorker(pod) => {
                budget.spend(Fault::SlowWorker);
                self.state.pods[at(pod)].slow_worker = true;
            }
            Action::PausePod(pod) => {
                budget.spend(Fault::Pause);
                self.state.pods[at(pod)].paused = true;
            }
            Action::PauseReplica(replica) => {
                budget.spend(Fault::Pause);
                self.state.replicas[at(replica)].paused = true;
            }
            Action::LongTurn(replica) => {
                budget.spend(Fault::LongTurn);
                self.state.replicas[at(replica)].busy = Some(self.state.t);
            }
            Action::LoseUp(link) => {
                budget.spend(Fault::Lose);
                self.state.links[at(link)].up.remove(0);
            }
            Action::LoseDown(link) => {
                budget.spend(Fault::Lose);
                self.state.links[at(link)].down.remove(0);
            }
            Action::DoubleUp(link) => {
                budget.spend(Fault::Double);
                let queue = &mut self.state.links[at(link)].up;
                queue.insert(0, queue[0]);
            }
            Action::DoubleDown(link) => {
                budget.spend(Fault::Double);
                let queue = &mut self.state.links[at(link)].down;
                queue.insert(0, queue[0]);
            }
            Action::SwapUp(link) => {
                budget.spend(Fault::Swap);
                self.state.links[at(link)].up.swap(0, 1);
            }
            Action::SwapDown(link) => {
                budget.spend(Fault::Swap);
                self.state.links[at(link)].down.swap(0, 1);
            }
            Action::Break(link) => {
                budget.spend(Fault::Break);
                self.break_link(at(link));
            }
            Action::CrashPod(pod) => {
                budget.spend(Fault::CrashAgent);
                self.crash_pod(at(pod), PodCall::Crash { keep: true });
            }
            Action::LosePod(pod) => {
                budget.spend(Fault::LoseJournal);
                self.crash_pod(at(pod), PodCall::Crash { keep: false });
            }
            Action::Kill(pod) => {
                budget.spend(Fault::Kill);
                self.crash_pod(at(pod), PodCall::Kill);
            }
            Action::CrashReplica(replica) => {
                budget.spend(Fault::CrashReplica);
                self.crash_replica(at(replica));
            }
            Action::Drain(pod) => {
                budget.spend(Fault::Drain);
                self.pod(at(pod), PodCall::Drain);
            }
            Action::FullDisk(pod) => {
                budget.spend(Fault::FullDisk);
                self.pod(at(pod), PodCall::FullDisk);
            }
            _ => {}
        }
    }

    /// Calls a pod, and carries out what it wants.
    fn pod(&mut self, pod: usize, call: PodCall) {
        let (id, now) = (self.state.pods[pod].id, self.state.pod_now(pod));
        let step = self.world.call_pod(id, call, now);
        self.state.pods[pod].id = step.next;
        if let Some(violation) = &step.violation {
            self.violation.get_or_insert_with(|| violation.clone());
        }
        for output in &step.outputs {
            match *output {
                PodOut::Send(number, message) => {
                    self.note_said(pod, message);
                    let link = self.link_of(pod, number);
                    if let Some(link) = link.filter(|link| link.agent_open && link.replica_open) {
                        link.up.push(Upward::new(Item::Message(message)));
                    }
                }
                PodOut::Hangup(number) => {
                    let link = self.link_of(pod, number);
                    if let Some(link) = link.filter(|link| link.agent_open) {
                        link.agent_open = false;
                        if link.replica_open {
                            link.up.push(Upward::new(Item::Close));
                        }
                    }
                }
                PodOut::Took(stream, token) => self.note_taken(pod, stream, token),
                PodOut::TookPool(token) => self.note_pool(pod, token),
            }
        }
    }

    /// Calls a core, and carries out what it wants.
    pub(crate) fn core(&mut self, replica: usize, call: &CoreCall) {
        self.core_at(replica, call, None);
    }

    /// Calls a core with what arrived then or now, and carries out what it wants.
    fn core_at(&mut self, replica: usize, call: &CoreCall, arrived: Option<Real>) {
        let Some(id) = self.state.replicas[replica].core else { return };
        let now = self.state.replica_now(replica);
        let rate = self.state.rates[0][replica];
        let arrived = arrived.map_or(now, |at| rate.local(at));
        let oldest = self.state.oldest_waiting(replica);
        let heard = oldest.map_or(now, |at| rate.local(at));
        let step = self.world.call_core(id, call, Times { now, arrived, heard });
        self.state.replicas[replica].core = Some(step.next);
        for output in &step.outputs {
            match output {
                CoreOut::Send(conn, message) => {
                    // An agent that has left a link gets what was on its way, and nothing later.
                    let link = self.conn(*conn);
                    if let Some(link) = link.filter(|link| link.replica_open && link.agent_open) {
                        link.down.push(Item::Message(*message));
                    }
                }
                CoreOut::Close(conn) => {
                    let link = self.conn(*conn);
                    if let Some(link) = link.filter(|link| link.replica_open) {
                        link.replica_open = false;
                        link.up.clear();
                        if link.agent_open {
                            link.down.push(Item::Close);
                        }
                    }
                }
                CoreOut::Register(entries) => {
                    self.ask_register(replica, RequestKind::Write(entries.clone()));
                }
                CoreOut::Unregister(pods) => {
                    self.ask_register(replica, RequestKind::Unregister(pods.clone()));
                }
                CoreOut::Confirm => self.renew(replica),
                CoreOut::StepDown(above) => self.step_down(replica, *above),
                CoreOut::Freed(stream, token, how) => {
                    self.check_freed(replica, *stream, *token, *how);
                }
                CoreOut::Granted(stream) => self.check_unreported(replica, *stream),
            }
        }
    }

    fn link_of(&mut self, pod: usize, number: LinkNumber) -> Option<&mut Link> {
        let mut links = self.state.links.iter_mut().rev();
        links.find(|link| usize::from(link.pod) == pod && link.number == number)
    }

    fn conn(&mut self, conn: u64) -> Option<&mut Link> {
        self.state.links.iter_mut().find(|link| link.conn == conn)
    }

    fn dial(&mut self, pod: u8, replica: u8) {
        let node = &mut self.state.pods[usize::from(pod)];
        let Some(number) = self.world.pods.get(node.id).pod.dial else { return };
        node.dialled += 1;
        let conn = u64::from(pod) * CONNS_PER_POD + u64::from(node.dialled);
        self.state.links.push(Link {
            pod,
            replica,
            number,
            conn,
            agent_open: true,
            replica_open: true,
            up: Vec::new(),
            down: Vec::new(),
            slow_up: false,
            slow_down: false,
        });
        self.pod(usize::from(pod), PodCall::Opened(number));
    }

    fn reach_pod(&mut self, link: usize) {
        let line = &mut self.state.links[link];
        let item = line.down.remove(0);
        let (pod, number) = (usize::from(line.pod), line.number);
        if item == Item::Close {
            if !line.agent_open {
                return;
            }
            line.agent_open = false;
        }
        self.pod(pod, PodCall::Item(number, item));
    }

    fn reach_replica(&mut self, link: usize) {
        let line = &mut self.state.links[link];
        let Upward { item, arrived } = line.up.remove(0);
        let (replica, conn) = (usize::from(line.replica), line.conn);
        if item == Item::Close {
            line.replica_open = false;
            line.up.clear();
        }
        self.core_at(replica, &CoreCall::Item(conn, item), arrived);
    }

    /// The agent learns it at once; the replica when it comes to it, after what was on its way.
    /// What was slow on its way to the agent may lie in its own buffers, and come after the break.
    fn break_link(&mut self, link: usize) {
        let line = &mut self.state.links[link];
        let (pod, number) = (usize::from(line.pod), line.number);
        line.agent_open = false;
        if !line.slow_down {
            line.down.clear();
        }
        if line.replica_open {
            line.up.push(Upward::new(Item::Close));
        }
        self.pod(pod, PodCall::Item(number, Item::Close));
    }

    fn crash_pod(&mut self, pod: usize, call: PodCall) {
        let of = |link: &&mut Link| usize::from(link.pod) == pod;
        for link in self.state.links.iter_mut().filter(of) {
            link.down.clear();
            if std::mem::take(&mut link.agent_open) && link.replica_open {
                link.up.push(Upward::new(Item::Close));
            }
        }
        self.state.pods[pod].paused = false;
        self.pod(pod, call);
    }

    fn crash_replica(&mut self, replica: usize) {
        let of = |link: &&mut Link| usize::from(link.replica) == replica;
        for link in self.state.links.iter_mut().filter(of) {
            link.up.clear();
            if std::mem::take(&mut link.replica_open) && link.agent_open {
                link.down.push(Item::Close);
            }
        }
        let node = &mut self.state.replicas[replica];
        *node = ReplicaState {
            core: None,
            paused: false,
            busy: None,
            slow_store: false,
            desired: node.desired,
            told_gone: [false; NODES],
            term: None,
            above: Epoch(0),
            terms: Vec::new(),
            register: Vec::new(),
        };
    }

    /// Links of which nothing can come any more.
    fn drop_links(&mut self) {
        self.state
            .links
            .retain(|link| link.agent_open || link.replica_open || !link.down.is_empty());
    }
}
