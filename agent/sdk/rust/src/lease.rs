//! Streams and bindings that this worker owns, and the lease that both have.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_types::Token;
use tokio::sync::watch;

use crate::clock;
use crate::fence::{self, StaleToken};
use crate::owned::{Key, Kind, LeaseStatus, OwnedLease};
use crate::route::{Endpoint, Next, Turns};
use crate::session::Session;
use crate::state::TakenLease;

/// The lease of a [`Stream`] or a [`Binding`] that this worker owns until it drops it.
///
/// It is lost shortly before it ends, by this process's own clock, even if the agent cannot be
/// reached.
pub struct Lease {
    key: Key,
    token: Token,
    /// Of a binding: its share of the load.
    load: f64,
    status: watch::Receiver<LeaseStatus>,
    session: Arc<Session>,
}

impl Lease {
    /// Waits for the next lease of this kind; none once the worker drains or is closed.
    async fn next(session: &Arc<Session>, kind: Kind) -> Option<Self> {
        let taken = session.shared.until(|state| match state.take(kind) {
            Some(taken) => Some(Some(taken)),
            None if state.draining || state.closed => Some(None),
            None => None,
        });
        let TakenLease { key, token, load, status } = taken.await?;
        let lease = Self { key, token, load, status, session: session.clone() };
        session.shared.notify();
        Some(lease)
    }

    fn key(&self) -> &Key {
        &self.key
    }

    /// Of a binding: where documents go from here, at this moment.
    fn routes(&self) -> Arc<[Next]> {
        self.status.borrow().next.clone()
    }

    /// The fencing token: send it with every write under the lease.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Refuses a write whose transaction runs `query`, if a later owner has written to the
    /// database.
    ///
    /// `query` runs a statement with two parameters, `$1` and `$2`, in the transaction of the
    /// write, before the write, and returns the text of the only column of its row, if it has one.
    /// The table is [`FENCE_TABLE`](crate::FENCE_TABLE).
    ///
    /// # Errors
    /// [`StaleToken`]: roll the transaction back. And the errors of `query`.
    pub async fn fence<E, F>(
        &self,
        query: impl FnMut(&'static str, [String; 2]) -> F,
    ) -> Result<(), E>
    where
        E: From<StaleToken>,
        F: Future<Output = Result<Option<String>, E>>,
    {
        let name = self.key.to_string();
        fence::advance(&name, self.token, query).await
    }

    /// Refuses a write to a store that has seen `newest`, the highest token of this stream or
    /// binding that it keeps. Nobody else may write to the store between that look and the write:
    /// it is locked, or the write is conditional.
    ///
    /// # Errors
    /// [`StaleToken`], if `newest` is higher than this lease's token.
    pub fn check_token(&self, newest: Token) -> Result<(), StaleToken> {
        fence::check(&self.key.to_string(), self.token, newest)
    }

    /// Whether the lease permits writes at this moment, by the clock.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        if self.status.borrow().lost {
            return false;
        }
        self.with_owned(|owned| owned.expire(clock::now()));
        !self.status.borrow().lost
    }

    /// The time until the lease is lost unless it is renewed; none if it does not end by time.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        if self.status.borrow().lost {
            return Some(Duration::ZERO);
        }
        self.with_owned(|owned| owned.end).flatten().map(|end| end.since(clock::now()))
    }

    /// The time within which a revoked lease should be released.
    #[must_use]
    pub fn release_within(&self) -> Option<Duration> {
        self.with_owned(|owned| owned.release_by).flatten().map(|at| at.since(clock::now()))
    }

    /// Whether the lease is revoked.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.status.borrow().revoked
    }

    /// Completes when the lease is lost and permits no more writes.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|status| status.lost)
    }

    /// Completes when the lease is revoked: finish the current work, then drop the stream or
    /// binding.
    pub fn revoked(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|status| status.revoked)
    }

    /// Completes when the lease is revoked or lost: a worker checks this between two steps.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|status| status.revoked || status.lost)
    }

    /// Runs `work` to its end. Drops it and returns none when the lease is lost.
    pub async fn while_owned<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.lost() => None,
            done = work => Some(done),
        }
    }

    /// Releases the lease, and returns when the agent has confirmed that.
    async fn release(self) {
        let (session, key, token) = (self.session.clone(), self.key.clone(), self.token);
        drop(self);
        let released = (key, token);
        session.shared.until(|state| (!state.released.contains(&released)).then_some(())).await;
    }

    fn once(&self, holds: fn(&LeaseStatus) -> bool) -> impl Future<Output = ()> + Send + use<> {
        let mut status = self.status.clone();
        // The sender is gone once the lease is released: that permits no writes either.
        async move { drop(status.wait_for(holds).await) }
    }

    fn with_owned<T>(&self, lock: impl FnOnce(&mut OwnedLease) -> T) -> Option<T> {
        let mut state = self.session.shared.lock();
        state.owned.get_mut(&self.key).filter(|owned| owned.token == self.token).map(lock)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.session.shared.change(|state| state.release(&self.key, self.token));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} under {})", self.key, self.token)
    }
}

/// Yields each stream or binding that this worker comes to own, until the worker drains.
pub struct Owning<T>(Pin<Box<dyn futures_util::Stream<Item = T> + Send>>);

impl<T: 'static> Owning<T> {
    pub(crate) fn new(session: Arc<Session>, kind: Kind, of: fn(Lease) -> T) -> Self {
        session.shared.change(|state| state.consume(kind));
        let next = move |session: Arc<Session>| async move {
            let lease = Lease::next(&session, kind).await?;
            Some((of(lease), session))
        };
        Self(Box::pin(futures_util::stream::unfold(session, next)))
    }

    /// Waits for the next one; none once the worker drains.
    pub async fn next(&mut self) -> Option<T> {
        futures_util::StreamExt::next(&mut self.0).await
    }
}

impl<T> futures_util::Stream for Owning<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.as_mut().poll_next(context)
    }
}

impl<T> fmt::Debug for Owning<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owning")
    }
}

/// Yields streams, see [`Owning`].
pub type Streams = Owning<Stream>;

/// A stream that this worker owns. Drop it to release it.
#[derive(Debug)]
pub struct Stream(Lease);

impl Stream {
    pub(crate) fn of(lease: Lease) -> Self {
        Self(lease)
    }

    /// The stream set.
    #[must_use]
    pub fn set(&self) -> &str {
        &self.0.key().of
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.key().name
    }

    /// Releases the stream, and returns when the agent has confirmed that.
    pub async fn release(self) {
        self.0.release().await;
    }
}

impl Deref for Stream {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}

/// Yields bindings, see [`Owning`].
pub type Bindings = Owning<Binding>;

/// A share of a pipeline's node that this worker owns. Drop it to release it.
#[derive(Debug)]
pub struct Binding {
    lease: Lease,
    turns: Mutex<Turns>,
}

impl Binding {
    pub(crate) fn of(lease: Lease) -> Self {
        Self { lease, turns: Mutex::default() }
    }

    /// The pipeline.
    #[must_use]
    pub fn pipeline(&self) -> &str {
        &self.lease.key().of
    }

    /// The node of it that this worker serves.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.lease.key().name
    }

    /// The number of this share among the node's, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.lease.key().index
    }

    /// This worker's share of the load. It stays the same for as long as the token.
    #[must_use]
    pub fn documents_per_second(&self) -> f64 {
        self.lease.load
    }

    /// Where documents go from here, by node, at this moment; empty at the end of the pipeline.
    #[must_use]
    pub fn next(&self) -> Arc<[Next]> {
        self.lease.routes()
    }

    /// Where the next document for `node` goes: its workers take turns in proportion to their
    /// shares of the load, those that drain only if no other is left. None if no worker
    /// serves the node at this moment, or if no node of that name comes next.
    #[must_use]
    pub fn pick(&self, node: &str) -> Option<Endpoint> {
        let next = self.next();
        let route = next.iter().find(|next| next.node == node)?;
        let mut turns = self.turns.lock().expect("the lock is not poisoned");
        turns.pick(route).cloned()
    }

    /// Releases the binding, and returns when the agent has confirmed that.
    pub async fn release(self) {
        self.lease.release().await;
    }
}

impl Deref for Binding {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
