//! All that a worker knows, behind one lock: its jobs, its streams and bindings, and what is owed
//! to the agent.
//!
//! Invariant: a stream or binding is handed out at most once under a token, and its next owner in
//! this process comes after the last one has let go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use leasehold_proto::worker::v1::worker_service_client::WorkerServiceClient;
use leasehold_types::{Moment, Token};
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::clock;
use crate::lease::{Hand, Standing};
use crate::route::Next;

pub(crate) type Client = WorkerServiceClient<Channel>;

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A stream.
    Stream,
    /// A share of a pipeline's node.
    Binding,
}

/// Names what is leased.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    /// The stream set, or the pipeline.
    pub(crate) of: String,
    /// The stream, or the node.
    pub(crate) name: String,
    /// Which of the node's shares; 0 of a stream.
    pub(crate) index: u32,
}

/// The part of what is left of a lease that is kept for stopping in time.
const SPARE: u32 = 10;

/// The state, and the word that it has changed.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

/// What is known now.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The connection of this era, once the agent's process knows this start and its jobs.
    pub(crate) client: Option<Client>,
    /// Counts the agent's processes, as far as this worker has met them.
    pub(crate) era: u64,
    /// Jobs that wait for their slots.
    pub(crate) asking: BTreeSet<String>,
    /// Jobs that run.
    pub(crate) running: BTreeSet<String>,
    /// Jobs that ran when this era began: an agent without memory knows their number only.
    pub(crate) unnamed: BTreeSet<String>,
    /// An agent that knows no ids has not heard yet that there are fewer of them.
    pub(crate) fewer_unnamed: bool,
    /// Jobs that ended, and the agent has not answered yet: never more than ran at once.
    pub(crate) ended: BTreeSet<String>,
    /// Leases that were let go, and the agent has not answered yet.
    pub(crate) released: BTreeSet<(Key, Token)>,
    /// The newest lease says that the worker drains.
    pub(crate) draining: bool,
    /// Nothing begins any more.
    pub(crate) closed: bool,
    /// What this process consumes.
    pub(crate) consumed: BTreeSet<Kind>,
    /// The longest time before a lease's end at which it is lost.
    pub(crate) spare_max: Duration,
    pub(crate) in_hand: BTreeMap<Key, Hand>,
    listed: BTreeMap<Key, Listed>,
    fresh: BTreeSet<Key>,
    /// The highest token of each lease that was handed out or released.
    spent: BTreeMap<Key, Token>,
}

/// A stream or binding as the newest lease has it.
#[derive(Clone, Debug)]
struct Listed {
    token: Token,
    held: bool,
    /// When to have stopped; none where the lease does not end by time.
    end: Option<Moment>,
    release_by: Option<Moment>,
    /// Of a binding.
    load: f64,
    next: Arc<[Next]>,
}

/// One that was handed out.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) load: f64,
    pub(crate) standing: watch::Receiver<Standing>,
}

impl Shared {
    pub(crate) fn new(spare_max: Duration) -> Self {
        let state = State { spare_max, ..State::default() };
        Self { state: Mutex::new(state), changes: watch::Sender::new(()) }
    }

    /// Looks at the state.
    pub(crate) fn look(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// Wakes those who wait for a change.
    pub(crate) fn tell(&self) {
        self.changes.send_replace(());
    }

    /// Changes the state, and wakes those who wait for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.look());
        self.tell();
        result
    }

    /// Changes from here on are seen by the receiver.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits until the state gives an answer.
    pub(crate) async fn until<T>(&self, mut answer: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            if let Some(answer) = answer(&mut self.look()) {
                return answer;
            }
            changes.changed().await.expect("the sender is in the same place");
        }
    }
}

impl State {
    /// Takes the newest lease, which was asked for at `asked`.
    pub(crate) fn obey(&mut self, lease: &wire::Lease, asked: Moment) {
        self.draining = lease.draining;
        let now = clock::now();
        let at = |ms: u64| asked + Duration::from_millis(ms);
        let spare = |left: Duration| self.spare_max.min(left / SPARE);
        let end = |ms: Option<u64>| ms.map(|ms| at(ms) - spare(at(ms).since(now)));
        let listed = |token: &str, state, valid_ms: Option<u64>, release_ms: Option<u64>| {
            Some(Listed {
                token: token.parse().ok()?,
                held: state == wire::StreamLeaseState::Held,
                end: end(valid_ms),
                release_by: release_ms.map(at),
                load: 0.0,
                next: Arc::default(),
            })
        };
        let streams = lease.streams.iter().filter_map(|it| {
            let own = listed(&it.token, it.state(), it.valid_for_ms, it.release_within_ms)?;
            Some((it.into(), own))
        });
        let bindings = lease.bindings.iter().filter_map(|it| {
            let own = listed(&it.token, it.state(), it.valid_for_ms, it.release_within_ms)?;
            let next = it.next.iter().map(Into::into).collect();
            Some((it.into(), Listed { load: it.documents_per_second, next, ..own }))
        });
        self.listed = streams.chain(bindings).collect();
        for (key, hand) in &mut self.in_hand {
            match self.listed.get(key).filter(|listed| listed.token == hand.token) {
                None => hand.lose("it was withdrawn"),
                Some(Listed { held, end, release_by, next, .. }) => {
                    hand.renew(*held, *end, *release_by);
                    hand.reroute(next);
                }
            }
        }
        self.fresh.clear();
        self.offer_all();
    }

    /// From here on this process takes them.
    pub(crate) fn consume(&mut self, kind: Kind) {
        self.consumed.insert(kind);
        self.offer_all();
    }

    /// One to own, if there is one: where it stands is told to the other end.
    pub(crate) fn take(&mut self, kind: Kind) -> Option<Taken> {
        let now = clock::now();
        while let Some(key) = self.fresh.iter().find(|key| key.kind == kind).cloned() {
            self.fresh.remove(&key);
            let listed = self.listed.get(&key).expect("what is fresh is listed").clone();
            if listed.end.is_some_and(|end| end <= now) {
                // It may be renewed yet: the next lease offers it again.
                continue;
            }
            let Listed { token, end, load, next, .. } = listed;
            let (hand, standing) = Hand::new(&key, token, end, next);
            self.spent.insert(key.clone(), token);
            self.in_hand.insert(key.clone(), hand);
            return Some(Taken { key, token, load, standing });
        }
        None
    }

    /// The worker has release it.
    pub(crate) fn release(&mut self, key: &Key, token: Token) {
        if self.in_hand.get(key).is_none_or(|hand| hand.token != token) {
            return;
        }
        self.in_hand.remove(key);
        self.released.insert((key.clone(), token));
        self.offer(key);
    }

    /// The agent has confirmed a job's end. Where another process has taken over meanwhile, it is
    /// told too.
    pub(crate) fn end_heard(&mut self, job: &str, era: u64) {
        if self.era == era {
            self.ended.remove(job);
            self.fewer_unnamed |= self.unnamed.remove(job);
        }
    }

    /// A new process of the agent's: the number of jobs that run in this one.
    pub(crate) fn begin_era(&mut self) -> u32 {
        self.era += 1;
        self.unnamed = self.running.clone();
        self.fewer_unnamed = false;
        self.unnamed_left()
    }

    /// How many jobs an agent without memory has to assume.
    pub(crate) fn unnamed_left(&self) -> u32 {
        u32::try_from(self.unnamed.len()).unwrap_or(u32::MAX)
    }

    /// Whether the agent has not answered yet to an end or a release.
    pub(crate) fn owes(&self) -> bool {
        !(self.ended.is_empty() && self.released.is_empty())
    }

    /// Ends leases whose time is over; how long until the next one's is.
    pub(crate) fn keep_time(&mut self, now: Moment) -> Option<Duration> {
        let ends = self.in_hand.values_mut().filter_map(|hand| hand.keep_time(now));
        ends.min().map(|end| end.since(now))
    }

    /// A job has ended.
    pub(crate) fn end(&mut self, job: &str) {
        if self.running.remove(job) {
            self.ended.insert(job.to_owned());
        }
    }

    fn offer_all(&mut self) {
        for key in self.listed.keys().cloned().collect::<Vec<_>>() {
            self.offer(&key);
        }
    }

    /// Queues one for the next taker, or releases one that no caller took.
    fn offer(&mut self, key: &Key) {
        let Some(Listed { token, held, .. }) = self.listed.get(key) else { return };
        let spent = self.spent.get(key).is_some_and(|spent| token <= spent);
        if !self.consumed.contains(&key.kind) || spent || self.in_hand.contains_key(key) {
            return;
        }
        if *held {
            self.fresh.insert(key.clone());
        } else {
            self.spent.insert(key.clone(), *token);
            self.released.insert((key.clone(), *token));
        }
    }
}

impl From<&wire::StreamLease> for Key {
    fn from(it: &wire::StreamLease) -> Self {
        let (of, name) = (it.set.clone(), it.stream.clone());
        Self { kind: Kind::Stream, of, name, index: 0 }
    }
}

impl From<&wire::Binding> for Key {
    fn from(it: &wire::Binding) -> Self {
        let (of, name) = (it.pipeline.clone(), it.node.clone());
        Self { kind: Kind::Binding, of, name, index: it.index }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, of, name, index } = self;
        match kind {
            Kind::Stream => write!(f, "{of}/{name}"),
            Kind::Binding => write!(f, "{of}/{name}/{index}"),
        }
    }
}

#[cfg(test)]
mod tests;
