//! The worker's state behind one lock: its jobs, its streams and bindings, and the ends and
//! releases that the agent has not confirmed.
//!
//! Invariant: a stream or binding is handed out at most once under a token, and never to a second
//! owner in this process before the first has released it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use leasehold_proto::worker::v1::worker_service_client::WorkerServiceClient;
use leasehold_types::{Moment, Token};
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::clock;
use crate::owned::{Key, Kind, LeaseStatus, OwnedLease};
use crate::route::Next;

pub(crate) type Client = WorkerServiceClient<Channel>;

/// A lease is lost at most the tenth part of its remaining time before its end.
const SPARE_DIVISOR: u32 = 10;

/// The state, and a notification of each change.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

/// The present state.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The connection of this era, once the agent's process knows this start and its jobs.
    pub(crate) client: Option<Client>,
    /// Counts the agent's processes that this worker has connected to.
    pub(crate) era: u64,
    /// Jobs that wait for their slots.
    pub(crate) pending: BTreeSet<String>,
    /// Jobs that run.
    pub(crate) running: BTreeSet<String>,
    /// Jobs that ran when this era began: an agent without a journal knows only their number.
    pub(crate) unnamed: BTreeSet<String>,
    /// An agent that knows only their number has not confirmed yet that there are fewer.
    pub(crate) fewer_unnamed: bool,
    /// Jobs that ended, unconfirmed by the agent: never more than ran at once.
    pub(crate) ended: BTreeSet<String>,
    /// Leases that were released, unconfirmed by the agent.
    pub(crate) released: BTreeSet<(Key, Token)>,
    /// The newest lease says that the worker drains.
    pub(crate) draining: bool,
    /// The worker is closed: no job or lease begins.
    pub(crate) closed: bool,
    /// The kinds of leases that this process consumes.
    pub(crate) consumed: BTreeSet<Kind>,
    /// The longest time before a lease's end at which it is lost.
    pub(crate) spare_max: Duration,
    /// Leases that were handed out and not dropped yet.
    pub(crate) owned: BTreeMap<Key, OwnedLease>,
    /// The newest lease of the agent.
    listed: BTreeMap<Key, ListedLease>,
    /// Listed leases that wait to be handed out.
    fresh: BTreeSet<Key>,
    /// The highest token of each lease that was handed out or released.
    spent: BTreeMap<Key, Token>,
}

/// A stream or binding as the newest lease has it.
#[derive(Clone, Debug)]
struct ListedLease {
    token: Token,
    held: bool,
    /// When it is lost; none if the lease does not end by time.
    end: Option<Moment>,
    release_by: Option<Moment>,
    /// Of a binding: its share of the load, and where documents go next.
    load: f64,
    next: Arc<[Next]>,
}

/// A lease that is handed out.
#[derive(Debug)]
pub(crate) struct TakenLease {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) load: f64,
    pub(crate) status: watch::Receiver<LeaseStatus>,
}

impl Shared {
    pub(crate) fn new(spare_max: Duration) -> Self {
        let state = State { spare_max, ..State::default() };
        Self { state: Mutex::new(state), changes: watch::Sender::new(()) }
    }

    /// Locks the state, to read it or to change it without a notification.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the lock is not poisoned")
    }

    /// Wakes all that wait for a change.
    pub(crate) fn notify(&self) {
        self.changes.send_replace(());
    }

    /// Changes the state, and wakes all that wait for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.notify();
        result
    }

    /// A receiver of all changes from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits until `answer` returns a value.
    pub(crate) async fn until<T>(&self, mut answer: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            if let Some(answer) = answer(&mut self.lock()) {
                return answer;
            }
            changes.changed().await.expect("the sender is in the same place");
        }
    }
}

impl State {
    /// Applies the newest lease, which was requested at `asked`.
    pub(crate) fn apply(&mut self, lease: &wire::Lease, asked: Moment) {
        self.draining = lease.draining;
        let now = clock::now();
        let at = |ms: u64| asked + Duration::from_millis(ms);
        let spare = |left: Duration| self.spare_max.min(left / SPARE_DIVISOR);
        let end = |ms: Option<u64>| ms.map(|ms| at(ms) - spare(at(ms).since(now)));
        let listed = |token: &str, state, valid_ms: Option<u64>, release_ms: Option<u64>| {
            Some(ListedLease {
                token: token.parse().ok()?,
                held: state == wire::StreamLeaseState::Held,
                end: end(valid_ms),
                release_by: release_ms.map(at),
                load: 0.0,
                next: Arc::default(),
            })
        };
        let streams = lease.streams.iter().filter_map(|stream| {
            let own = listed(
                &stream.token,
                stream.state(),
                stream.valid_for_ms,
                stream.release_within_ms,
            )?;
            Some((stream.into(), own))
        });
        let bindings = lease.bindings.iter().filter_map(|binding| {
            let own = listed(
                &binding.token,
                binding.state(),
                binding.valid_for_ms,
                binding.release_within_ms,
            )?;
            let next = binding.next.iter().map(Into::into).collect();
            Some((binding.into(), ListedLease { load: binding.documents_per_second, next, ..own }))
        });
        self.listed = streams.chain(bindings).collect();
        for (key, owned) in &mut self.owned {
            match self.listed.get(key).filter(|listed| listed.token == owned.token) {
                None => owned.mark_lost("it was withdrawn"),
                Some(ListedLease { held, end, release_by, next, .. }) => {
                    owned.renew(*held, *end, *release_by);
                    owned.set_routes(next);
                }
            }
        }
        self.fresh.clear();
        self.offer_all();
    }

    /// Records that this process consumes leases of `kind`.
    pub(crate) fn consume(&mut self, kind: Kind) {
        self.consumed.insert(kind);
        self.offer_all();
    }

    /// Hands out a lease of `kind`, if one waits.
    pub(crate) fn take(&mut self, kind: Kind) -> Option<TakenLease> {
        let now = clock::now();
        while let Some(key) = self.fresh.iter().find(|key| key.kind == kind).cloned() {
            self.fresh.remove(&key);
            let listed = self.listed.get(&key).expect("what is fresh is listed").clone();
            if listed.end.is_some_and(|end| end <= now) {
                // It may still be renewed: the next lease offers it again.
                continue;
            }
            let ListedLease { token, end, load, next, .. } = listed;
            let (owned, status) = OwnedLease::new(&key, token, end, next);
            self.spent.insert(key.clone(), token);
            self.owned.insert(key.clone(), owned);
            return Some(TakenLease { key, token, load, status });
        }
        None
    }

    /// Releases a lease that the worker has dropped.
    pub(crate) fn release(&mut self, key: &Key, token: Token) {
        if self.owned.get(key).is_none_or(|owned| owned.token != token) {
            return;
        }
        self.owned.remove(key);
        self.released.insert((key.clone(), token));
        self.offer(key);
    }

    /// Records that the agent's process of `era` has confirmed a job's end. A later process must
    /// confirm it as well.
    pub(crate) fn end_confirmed(&mut self, job: &str, era: u64) {
        if self.era == era {
            self.ended.remove(job);
            self.fewer_unnamed |= self.unnamed.remove(job);
        }
    }

    /// Begins the era of a new process of the agent's; returns how many jobs run here.
    pub(crate) fn begin_era(&mut self) -> u32 {
        self.era += 1;
        self.unnamed = self.running.clone();
        self.fewer_unnamed = false;
        self.unnamed_left()
    }

    /// How many jobs an agent without a journal has to assume.
    pub(crate) fn unnamed_left(&self) -> u32 {
        u32::try_from(self.unnamed.len()).unwrap_or(u32::MAX)
    }

    /// Whether the agent has yet to confirm an end or a release.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        !(self.ended.is_empty() && self.released.is_empty())
    }

    /// Marks leases as lost whose time is over; returns how long until the next one's is.
    pub(crate) fn expire(&mut self, now: Moment) -> Option<Duration> {
        let ends = self.owned.values_mut().filter_map(|owned| owned.expire(now));
        ends.min().map(|end| end.since(now))
    }

    /// Records that a job has ended.
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

    /// Queues a held lease to be handed out. Releases one that was not handed out, if it is revoked
    /// or its worker drains: nobody takes it any more.
    fn offer(&mut self, key: &Key) {
        let Some(ListedLease { token, held, .. }) = self.listed.get(key) else { return };
        let spent = self.spent.get(key).is_some_and(|spent| token <= spent);
        if !self.consumed.contains(&key.kind) || spent || self.owned.contains_key(key) {
            return;
        }
        if *held && !self.draining {
            self.fresh.insert(key.clone());
        } else {
            self.spent.insert(key.clone(), *token);
            self.released.insert((key.clone(), *token));
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
