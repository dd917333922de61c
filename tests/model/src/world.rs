//! A scope with all states of nodes that were found in it so far, and what each does with
//! each input: a core computes that once, however many states of the world it belongs to.

use std::collections::HashMap;
use std::rc::Rc;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryChange, EntryVersion, EntryWrite, resolve,
};
use leasehold_coordinator_core::exposure::{AccountId, Entry, Exposure};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use leasehold_types::{Epoch, LinkNumber, Moment, StreamKey, Token, WorkerKey};

use crate::intern::Interner;
use crate::pod::{self, Pod, StreamUse};
use crate::replica::{self, Facts, Times};
use crate::scope::{ACCOUNTS, Scope};
use crate::state::Item;
use crate::violation::Violation;

/// Everything that was computed for a scope.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scope: Scope,
    pub(crate) pods: Interner<PodEntry>,
    pub(crate) cores: Interner<CoreEntry>,
    pub(crate) ups: Interner<Up>,
    pub(crate) downs: Interner<CoordinatorMessage>,
    registrations: Interner<(AccountId, Exposure)>,
    entries: Interner<Entry>,
    streams: Vec<StreamKey>,
    pod_steps: HashMap<(u32, PodCall, Moment), Rc<PodStep>>,
    core_steps: HashMap<(u32, CoreCall, Times), Rc<CoreStep>>,
}

/// A pod's state, and what is asked of it again and again.
#[derive(Debug)]
pub(crate) struct PodEntry {
    pub(crate) pod: Pod,
    pub(crate) wake: Option<Moment>,
    pub(crate) uses: Vec<(u8, StreamUse)>,
    pub(crate) revoked: bool,
}

/// A core's state, and what is asked of it again and again.
#[derive(Debug)]
pub(crate) struct CoreEntry {
    pub(crate) core: Core,
    pub(crate) facts: Facts,
}

/// An agent's message, and what it says is not in effect any more.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) message: AgentMessage,
    pub(crate) released: Vec<(u8, Token)>,
    pub(crate) pool: Option<(Token, u32)>,
}

/// An input of a pod, with the message as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PodCall {
    Boot,
    Opened(LinkNumber),
    Item(LinkNumber, Item),
    Wake,
    Introduce,
    BeginJob,
    EndJob,
    StopUse,
    Drain,
    Crash { keep: bool },
    Kill,
    FullDisk,
}

/// What became of a pod.
#[derive(Debug)]
pub(crate) struct PodStep {
    pub(crate) next: u32,
    pub(crate) outputs: Vec<PodOut>,
    pub(crate) violation: Option<Violation>,
}

/// What a pod did that others see.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PodOut {
    Send(LinkNumber, u32),
    Hangup(LinkNumber),
    Took(u8, Token),
    TookPool(Token),
}

/// An input of a core, with everything in it as numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CoreCall {
    Read(u8),
    Item(u64, Item),
    Elected {
        epoch: Epoch,
        until: Moment,
        predecessor_end: Moment,
        exposed: [Option<u32>; ACCOUNTS],
    },
    Renewed {
        epoch: Epoch,
        sent_at: Moment,
        until: Moment,
    },
    Deposed,
    Registered(Vec<(u8, u32)>),
    Unregistered(Vec<u8>),
    Gone(u8),
    Wake,
}

/// What became of a core.
#[derive(Debug)]
pub(crate) struct CoreStep {
    pub(crate) next: u32,
    pub(crate) outputs: Vec<CoreOut>,
}

/// What a core did that others see.
#[derive(Clone, Debug)]
pub(crate) enum CoreOut {
    Send(u64, u32),
    Close(u64),
    Register(Vec<(u8, u32)>),
    Unregister(Vec<u8>),
    Confirm,
    StepDown(Option<Epoch>),
    Freed(u8, Token, leasehold_coordinator_core::effect::Freed),
    Granted(u8),
}

impl World {
    pub(crate) fn new(scope: Scope) -> Self {
        Self {
            scope,
            pods: Interner::new(&[" version: ", " attempt: "]),
            cores: Interner::new(&[]),
            ups: Interner::new(&[]),
            downs: Interner::new(&[]),
            registrations: Interner::new(&[]),
            entries: Interner::new(&[]),
            streams: Vec::new(),
            pod_steps: HashMap::new(),
            core_steps: HashMap::new(),
        }
    }

    /// How often a core was really run.
    pub(crate) fn calls(&self) -> usize {
        self.pod_steps.len() + self.core_steps.len()
    }

    pub(crate) fn stream(&self, number: u8) -> &StreamKey {
        &self.streams[usize::from(number)]
    }

    pub(crate) fn new_pod(&mut self, index: usize) -> u32 {
        self.put_pod(Pod::new(index, self.scope.names))
    }

    pub(crate) fn new_core(&mut self) -> u32 {
        self.put_core(replica::start(self.scope.names), Moment(0))
    }

    /// The step of a pod with this input.
    pub(crate) fn call_pod(&mut self, id: u32, call: PodCall, now: Moment) -> Rc<PodStep> {
        let key = (id, call, now);
        if let Some(step) = self.pod_steps.get(&key) {
            return Rc::clone(step);
        }
        let mut pod = self.pods.get(id).pod.clone();
        let input = match call {
            PodCall::Boot => pod::Input::Boot,
            PodCall::Opened(link) => pod::Input::Opened(link),
            PodCall::Item(link, Item::Close) => pod::Input::Closed(link),
            PodCall::Item(link, Item::Message(number)) => {
                pod::Input::Message(link, self.downs.get(number).clone())
            }
            PodCall::Wake => pod::Input::Wake,
            PodCall::Introduce => pod::Input::Introduce,
            PodCall::BeginJob => pod::Input::BeginJob,
            PodCall::EndJob => pod::Input::EndJob,
            PodCall::StopUse => match pod.revoked() {
                Some(stream) => pod::Input::StopUse(stream.clone()),
                None => pod::Input::Wake,
            },
            PodCall::Drain => pod::Input::Drain,
            PodCall::Crash { keep } => pod::Input::Crash { keep },
            PodCall::Kill => pod::Input::Kill,
            PodCall::FullDisk => pod::Input::FullDisk,
        };
        let called = pod.call(input, now);
        let outputs = called.outputs.into_iter().map(|output| self.pod_out(output)).collect();
        let next = self.put_pod(pod);
        let step = Rc::new(PodStep { next, outputs, violation: called.violation });
        self.pod_steps.insert(key, Rc::clone(&step));
        step
    }

    /// The step of a core with this input.
    pub(crate) fn call_core(&mut self, id: u32, call: &CoreCall, times: Times) -> Rc<CoreStep> {
        let key = (id, call.clone(), times);
        if let Some(step) = self.core_steps.get(&key) {
            return Rc::clone(step);
        }
        let mut core = self.cores.get(id).core.clone();
        let input = match call.clone() {
            CoreCall::Read(version) => {
                replica::Input::Desired(self.scope.desired[usize::from(version)].clone())
            }
            CoreCall::Item(conn, Item::Close) => replica::Input::Closed(conn),
            CoreCall::Item(conn, Item::Message(number)) => {
                replica::Input::Message(conn, self.ups.get(number).message.clone())
            }
            CoreCall::Elected { epoch, until, predecessor_end, exposed } => {
                let entries = exposed.iter().enumerate();
                let entries = entries.filter_map(|(account, entry)| {
                    let key = self.scope.names.account(account);
                    Some((key, self.entries.get((*entry)?).clone()))
                });
                let exposed = entries.collect();
                replica::Input::Elected { epoch, until, predecessor_end, exposed }
            }
            CoreCall::Renewed { epoch, sent_at, until } => {
                replica::Input::Renewed { epoch, sent_at, until }
            }
            CoreCall::Deposed => replica::Input::Deposed,
            CoreCall::Registered(entries) => replica::Input::Registered(self.registered(&entries)),
            CoreCall::Unregistered(pods) => {
                replica::Input::Unregistered(pods.iter().map(|pod| self.key(*pod)).collect())
            }
            CoreCall::Gone(pod) => {
                let (names, pod) = (self.scope.names, usize::from(pod));
                replica::Input::Gone(replica::accounts_of(&core, names, pod, times.now))
            }
            CoreCall::Wake => replica::Input::Wake,
        };
        let outputs = replica::call(&mut core, input, times);
        let outputs = outputs.into_iter().map(|output| self.core_out(output)).collect();
        let next = self.put_core(core, times.now);
        let step = Rc::new(CoreStep { next, outputs });
        self.core_steps.insert(key, Rc::clone(&step));
        step
    }

    fn put_pod(&mut self, pod: Pod) -> u32 {
        match self.pods.find(&pod) {
            Ok(number) => number,
            Err(unknown) => {
                let uses = pod.uses().into_iter();
                let uses = uses.map(|(stream, used)| (self.number(&stream), used)).collect();
                let (wake, revoked) = (pod.wake(), pod.revoked().is_some());
                self.pods.insert(unknown, PodEntry { pod, wake, uses, revoked })
            }
        }
    }

    fn put_core(&mut self, core: Core, now: Moment) -> u32 {
        match self.cores.find(&core) {
            Ok(number) => number,
            Err(unknown) => {
                let facts = replica::facts(&core, self.scope.names, now);
                self.cores.insert(unknown, CoreEntry { core, facts })
            }
        }
    }

    fn pod_out(&mut self, output: pod::Output) -> PodOut {
        match output {
            pod::Output::Send(link, message) => {
                let (released, pool) = self.said(&message);
                PodOut::Send(link, self.ups.put(Up { message, released, pool }))
            }
            pod::Output::Hangup(link) => PodOut::Hangup(link),
            pod::Output::Took(stream, token) => PodOut::Took(self.number(&stream), token),
            pod::Output::TookPool(token) => PodOut::TookPool(token),
        }
    }

    /// What a message says is not in effect any more: streams, and all of a pool above a size.
    fn said(&mut self, message: &AgentMessage) -> NotInEffect {
        match message {
            AgentMessage::Hello(_) => (Vec::new(), None),
            AgentMessage::Report(report) => {
                (Vec::new(), report.pool.map(|pool| (pool.token, pool.size)))
            }
            AgentMessage::Beat(beat) => {
                let released = beat.released.iter();
                let released =
                    released.map(|release| (self.number(&release.stream), release.token)).collect();
                (released, beat.pool.map(|pool| (pool.token, pool.size)))
            }
        }
    }

    fn core_out(&mut self, output: replica::Output) -> CoreOut {
        match output {
            replica::Output::Send(conn, message) => CoreOut::Send(conn, self.downs.put(message)),
            replica::Output::Close(conn) => CoreOut::Close(conn),
            replica::Output::Register(entries) => {
                let number = |(key, account_id, exposure): replica::Registration| {
                    (self.scope.names.number(&key), self.registrations.put((account_id, exposure)))
                };
                CoreOut::Register(entries.into_iter().map(number).collect())
            }
            replica::Output::Unregister(keys) => {
                CoreOut::Unregister(keys.iter().map(|key| self.scope.names.number(key)).collect())
            }
            replica::Output::Confirm => CoreOut::Confirm,
            replica::Output::StepDown(above) => CoreOut::StepDown(above),
            replica::Output::Freed(stream, token, how) => {
                CoreOut::Freed(self.number(&stream), token, how)
            }
            replica::Output::Granted(stream) => CoreOut::Granted(self.number(&stream)),
        }
    }

    /// The entry after a leader of `epoch` has stored what its worker may hold.
    pub(crate) fn enter(
        &mut self,
        found: Option<u32>,
        account: u8,
        asked: u32,
        epoch: Epoch,
    ) -> Option<u32> {
        let (account_id, exposure) = self.registrations.get(asked).clone();
        let change = EntryChange::Register(self.key(account), account_id, exposure);
        self.resolve(found, change, epoch)
    }

    /// The entry after a leader of `epoch` has removed it.
    pub(crate) fn strike(&mut self, found: Option<u32>, account: u8, epoch: Epoch) -> Option<u32> {
        self.resolve(found, EntryChange::Unregister(self.key(account)), epoch)
    }

    fn key(&self, account: u8) -> WorkerKey {
        self.scope.names.account(usize::from(account))
    }

    fn resolve(&mut self, found: Option<u32>, change: EntryChange, epoch: Epoch) -> Option<u32> {
        let entry = found.map(|found| self.entries.get(found));
        let attempt = EntryAttempt { change, confirmed: EntryVersion::default() };
        match resolve(entry, EntryVersion::default(), &attempt, epoch) {
            EntryWrite::Put(entry) => entry.map(|entry| self.entries.put(entry)),
            // Every entry of this world can be read.
            EntryWrite::Nothing | EntryWrite::Superseded | EntryWrite::Unreadable => found,
        }
    }

    fn registered(&self, numbers: &[(u8, u32)]) -> Vec<replica::Registration> {
        let each = |(account, number): &(u8, u32)| {
            let (account_id, exposure) = self.registrations.get(*number).clone();
            (self.key(*account), account_id, exposure)
        };
        numbers.iter().map(each).collect()
    }

    fn number(&mut self, stream: &StreamKey) -> u8 {
        let known = self.streams.iter().position(|known| known == stream);
        let number = known.unwrap_or_else(|| {
            self.streams.push(stream.clone());
            self.streams.len() - 1
        });
        u8::try_from(number).expect("a few streams")
    }
}

/// Streams that a message says are no longer in effect, and a pool lease with its size.
type NotInEffect = (Vec<(u8, Token)>, Option<(Token, u32)>);
