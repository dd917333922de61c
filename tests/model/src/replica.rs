//! One replica's core, as a function of its input and its clock.
//!
//! Invariant: a message that the core gives is on its connection at once, and the core learns
//! that before anything else happens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::effect::{Effect, Freed, Notice, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, Renewed};
use leasehold_coordinator_core::exposure::{AccountId, Entry, Exposure};
use leasehold_coordinator_core::view::Leadership;
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use leasehold_types::{Epoch, Moment, StreamKey, TermId, Token, WorkerKey};

use crate::clock::BOUNDS;
use crate::scope::{BEAT, NODES, Names};

/// What happens to a replica.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// The manifests are read.
    Desired(Arc<Desired>),
    /// A message comes on a connection.
    Message(u64, AgentMessage),
    /// A connection has ended.
    Closed(u64),
    /// Leadership was won.
    Elected {
        epoch: Epoch,
        until: Moment,
        predecessor_end: Moment,
        exposed: Vec<Written>,
    },
    /// Leadership was renewed.
    Renewed {
        epoch: Epoch,
        sent_at: Moment,
        until: Moment,
    },
    /// Leadership is over.
    Deposed,
    /// What these workers may hold is stored.
    Registered(Vec<Registration>),
    Unregistered(Vec<WorkerKey>),
    /// These workers are gone.
    Gone(Vec<WorkerKey>),
    /// A wake-up is due.
    Wake,
}

/// What a worker may hold, as it is stored.
pub(crate) type Written = (WorkerKey, Entry);
/// What a worker may hold by one account, as a leader wants it stored.
pub(crate) type Registration = (WorkerKey, AccountId, Exposure);

/// What a replica does that others see.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// It sends on a connection.
    Send(u64, CoordinatorMessage),
    /// It ends one.
    Close(u64),
    /// It wants this stored.
    Register(Vec<Registration>),
    /// It wants these entries removed.
    Unregister(Vec<WorkerKey>),
    /// It wants leadership renewed at once.
    Confirm,
    /// It gives leadership up; the next term is to be above this.
    StepDown(Option<Epoch>),
    /// It takes a lease for ended.
    Freed(StreamKey, Token, Freed),
    /// It grants a stream.
    Granted(StreamKey),
}

/// What is asked of a core again and again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The term that it believes to lead.
    pub(crate) leads: Option<Epoch>,
    /// When it is to be woken.
    pub(crate) wake: Option<Moment>,
    /// Of each pod whose worker it knows: the slots that it may be using.
    pub(crate) committed: [Option<u32>; NODES],
}

/// When a core takes an input, by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Times {
    pub(crate) now: Moment,
    /// When the input arrived.
    pub(crate) arrived: Moment,
    /// All that arrived before this has been taken.
    pub(crate) heard: Moment,
}

/// A core that has just started.
pub(crate) fn start(names: Names) -> Core {
    Core::new(Config { bounds: BOUNDS, keeps_names: names.are_kept(), ..Config::default() })
}

/// What is asked of this core again and again.
pub(crate) fn facts(core: &Core, names: Names, now: Moment) -> Facts {
    let leads = match core.leadership() {
        Leadership::Leader(epoch) => Some(epoch),
        Leadership::Standby(_) => None,
    };
    let wake = core.poll_timeout().map(|wakeup| wakeup.at);
    let committed = |pod| {
        let accounts = accounts_of(core, names, pod, now).into_iter();
        accounts.filter_map(|key| Some(core.worker(&key, now)?.committed)).max()
    };
    Facts { leads, wake, committed: std::array::from_fn(committed) }
}

/// The accounts of a pod's agent: that of its name, unless that is known to be the other agent's,
/// and its own if the other one has taken the name over.
pub(crate) fn accounts_of(core: &Core, names: Names, pod: usize, now: Moment) -> Vec<WorkerKey> {
    let name = names.worker(pod);
    let Some(agent) = names.agent(pod) else { return vec![name] };
    let holder = core.worker(&name, now).and_then(|view| view.agent);
    let present = Some(name.clone()).filter(|_| holder.is_none_or(|holder| holder == agent));
    present.into_iter().chain([name.former(agent)]).collect()
}

/// One input, and all that follows from it.
pub(crate) fn call(core: &mut Core, input: Input, times: Times) -> Vec<Output> {
    let mut outputs = Vec::new();
    take(core, event(input), times, &mut outputs);
    outputs
}

fn take(core: &mut Core, event: Event, times: Times, outputs: &mut Vec<Output>) {
    core.handle(event, times.arrived);
    core.settle(times.now, times.heard);
    while core.has_more() {
        core.settle(times.now, times.heard);
    }
    let mut sent = Vec::new();
    while let Some(effect) = core.poll_effect() {
        match effect {
            Effect::Send { conn, message } => {
                outputs.push(Output::Send(conn.0, slowed(message)));
                sent.push(conn);
            }
            Effect::Close(conn) => outputs.push(Output::Close(conn.0)),
            // In the model nothing comes between an order and the store of its term.
            Effect::Order { order, .. } => outputs.push(match order {
                Order::Register(entries) => Output::Register(entries),
                Order::Unregister(keys) => Output::Unregister(keys),
                // A renewal answers both.
                Order::Confirm | Order::AskTerm { .. } => Output::Confirm,
                Order::StepDown { above } => Output::StepDown(above),
            }),
            Effect::Notice(Notice::StreamFreed { stream, token, how, .. }) => {
                outputs.push(Output::Freed(stream, token, how));
            }
            Effect::Notice(Notice::StreamGranted { stream, .. }) => {
                outputs.push(Output::Granted(stream));
            }
            Effect::Notice(_) => {}
        }
    }
    for conn in sent {
        take(core, Event::Sent(conn), Times { arrived: times.now, ..times }, outputs);
    }
}

fn event(input: Input) -> Event {
    match input {
        Input::Desired(desired) => Event::Desired(desired),
        Input::Message(conn, AgentMessage::Hello(hello)) => Event::Hello(ConnId(conn), hello, None),
        Input::Message(conn, AgentMessage::Report(report)) => Event::Report(ConnId(conn), report),
        Input::Message(conn, AgentMessage::Beat(beat)) => Event::Beat(ConnId(conn), beat),
        Input::Closed(conn) => Event::Closed(ConnId(conn)),
        Input::Elected { epoch, until, predecessor_end, exposed } => {
            let exposed: BTreeMap<_, _> = exposed.into_iter().collect();
            Event::Elected(Elected {
                epoch,
                // No store of the model is put back from a copy.
                term: TermId(0),
                cell: None,
                until,
                predecessor_end,
                exposed,
                unreadable: BTreeSet::new(),
            })
        }
        Input::Renewed { epoch, sent_at, until } => {
            Event::Renewed(Renewed { epoch, sent_at, until })
        }
        Input::Deposed => Event::Deposed { leader: None },
        Input::Registered(entries) => Event::Registered(entries),
        Input::Unregistered(keys) => Event::Unregistered(keys),
        Input::Gone(keys) => Event::Gone(keys),
        Input::Wake => Event::Wake,
    }
}

/// The same message with fewer beats in a lease: safety rests on no beat, and states are fewer.
fn slowed(message: CoordinatorMessage) -> CoordinatorMessage {
    match message {
        CoordinatorMessage::Welcome(mut welcome) => {
            welcome.terms.beat = BEAT;
            CoordinatorMessage::Welcome(welcome)
        }
        CoordinatorMessage::Grant(mut grant) => {
            grant.terms.beat = BEAT;
            CoordinatorMessage::Grant(grant)
        }
        refusal @ CoordinatorMessage::Refusal(_) => refusal,
    }
}
