//! All that a worker knows, behind one lock: its jobs, its streams, and what is owed to the agent.
//!
//! Invariant: a stream is handed out at most once under a token, and its next owner in this process
//! comes after the last one has let go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use leasehold_proto::worker::v1::worker_service_client::WorkerServiceClient;
use leasehold_types::{Moment, Token};
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::clock;
use crate::stream::{Hand, Standing};

pub(crate) type Client = WorkerServiceClient<Channel>;
/// A stream set, and a stream of it.
pub(crate) type Key = (String, String);

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
    /// The connection of this era, once the process behind it has been told how things stand.
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
    /// Streams that were let go, and the agent has not answered yet.
    pub(crate) released: BTreeSet<(Key, Token)>,
    /// The newest lease says that the worker drains.
    pub(crate) draining: bool,
    /// Nothing begins any more.
    pub(crate) closed: bool,
    /// Somebody consumes streams here.
    consumed: bool,
    /// The longest time before a lease's end at which its stream is lost.
    pub(crate) spare_max: Duration,
    pub(crate) in_hand: BTreeMap<Key, Hand>,
    listed: BTreeMap<Key, Listed>,
    fresh: BTreeSet<Key>,
    /// The highest token of each stream that was handed out or given back.
    spent: BTreeMap<Key, Token>,
}

/// A stream as the newest lease has it.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) token: Token,
    held: bool,
    /// When to have stopped; none where the lease does not end by time.
    pub(crate) end: Option<Moment>,
    release_by: Option<Moment>,
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

    /// Tells those who wait for a change.
    pub(crate) fn tell(&self) {
        self.changes.send_replace(());
    }

    /// Changes the state, and tells those who wait for a change.
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
        let spare_max = self.spare_max;
        let listed = lease.streams.iter().filter_map(|it| {
            Some(((it.set.clone(), it.stream.clone()), Listed::new(it, asked, now, spare_max)?))
        });
        self.listed = listed.collect();
        for (key, hand) in &mut self.in_hand {
            match self.listed.get(key).filter(|listed| listed.token == hand.token) {
                None => hand.lose("it was withdrawn"),
                Some(Listed { held, end, release_by, .. }) => hand.renew(*held, *end, *release_by),
            }
        }
        self.fresh.clear();
        self.offer_all();
    }

    /// From here on somebody takes streams.
    pub(crate) fn consume(&mut self) {
        self.consumed = true;
        self.offer_all();
    }

    /// A stream to own, if there is one: where it stands is told to the other end.
    pub(crate) fn take(&mut self) -> Option<(Key, Token, watch::Receiver<Standing>)> {
        let now = clock::now();
        while let Some(key) = self.fresh.pop_first() {
            let listed = self.listed.get(&key).expect("what is fresh is listed").clone();
            if listed.end.is_some_and(|end| end <= now) {
                // It may be renewed yet: the next lease offers it again.
                continue;
            }
            let (hand, standing) = Hand::new(&key, listed.token, listed.end);
            self.spent.insert(key.clone(), listed.token);
            self.in_hand.insert(key.clone(), hand);
            return Some((key, listed.token, standing));
        }
        None
    }

    /// The worker has let a stream go.
    pub(crate) fn release(&mut self, key: &Key, token: Token) {
        if self.in_hand.get(key).is_none_or(|hand| hand.token != token) {
            return;
        }
        self.in_hand.remove(key);
        self.released.insert((key.clone(), token));
        self.offer(key);
    }

    /// The agent has heard of a job's end. Where another process has taken over meanwhile, it is
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

    /// Ends streams whose time is over; how long until the next one's is.
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

    /// Puts a stream where the next taker finds it, or gives back what nobody took.
    fn offer(&mut self, key: &Key) {
        let Some(Listed { token, held, .. }) = self.listed.get(key) else { return };
        let spent = self.spent.get(key).is_some_and(|spent| token <= spent);
        if !self.consumed || spent || self.in_hand.contains_key(key) {
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

impl Listed {
    /// None where the agent sent what is no lease.
    fn new(
        it: &wire::StreamLease,
        asked: Moment,
        now: Moment,
        spare_max: Duration,
    ) -> Option<Self> {
        let at = |ms: u64| asked + Duration::from_millis(ms);
        let end = it.valid_for_ms.map(|ms| {
            let until = at(ms);
            let spare = spare_max.min(until.since(now) / SPARE);
            until - spare
        });
        Some(Self {
            token: it.token.parse().ok()?,
            held: it.state() == wire::StreamLeaseState::Held,
            end,
            release_by: it.release_within_ms.map(at),
        })
    }
}

#[cfg(test)]
mod tests;
