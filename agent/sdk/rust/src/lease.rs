//! The lease of a stream or of a binding while this worker owns it: where it stands, and its way
//! back.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_types::{Moment, Token};
use tokio::sync::watch;

use crate::binding::Binding;
use crate::clock;
use crate::route::Next;
use crate::state::{Key, Kind, Taken};
use crate::stream::Stream;
use crate::worker::Inner;

/// Where a lease stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    revoked: bool,
    lost: bool,
    /// Of a binding: where documents go from here.
    pub(crate) next: Arc<[Next]>,
}

impl Standing {
    /// Nothing may be written any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }
}

/// A lease as the state keeps it while it is in the worker's hands.
#[derive(Debug)]
pub(crate) struct Hand {
    pub(crate) token: Token,
    end: Option<Moment>,
    release_by: Option<Moment>,
    shown: String,
    standing: watch::Sender<Standing>,
}

impl Hand {
    pub(crate) fn new(
        key: &Key,
        token: Token,
        end: Option<Moment>,
        next: Arc<[Next]>,
    ) -> (Self, watch::Receiver<Standing>) {
        let (standing, seen) = watch::channel(Standing { next, ..Standing::default() });
        (Self { token, end, release_by: None, shown: key.to_string(), standing }, seen)
    }

    /// What the newest lease says of it. What is lost stays lost.
    pub(crate) fn renew(&mut self, held: bool, end: Option<Moment>, release_by: Option<Moment>) {
        let Standing { revoked, lost, .. } = *self.standing.borrow();
        if lost {
            return;
        }
        self.end = end;
        if held == revoked {
            // Revoked, or after all to be kept: a new leader may want it so.
            self.release_by = release_by.filter(|_| !held);
            self.standing.send_modify(|standing| standing.revoked = !held);
        }
    }

    /// Where documents go from here now.
    pub(crate) fn reroute(&self, next: &Arc<[Next]>) {
        self.standing.send_if_modified(|standing| {
            let other = standing.next != *next;
            if other {
                standing.next = next.clone();
            }
            other
        });
    }

    /// The lease is over.
    pub(crate) fn lose(&mut self, why: &str) {
        if !self.standing.borrow().is_lost() {
            tracing::warn!(lease = self.shown, token = %self.token, why, "a lease is lost");
            self.standing.send_modify(|standing| standing.lost = true);
        }
    }

    /// Ends it where its time is over; when it will be.
    pub(crate) fn keep_time(&mut self, now: Moment) -> Option<Moment> {
        let end = self.end.filter(|_| !self.standing.borrow().is_lost())?;
        if end <= now {
            self.lose("it was not renewed");
            return None;
        }
        Some(end)
    }
}

/// What a [`Stream`] and a [`Binding`] have in common: a lease that
/// this worker owns, until it is dropped.
///
/// It is lost a little before it ends, by this process's own clock, whether the agent says so or
/// cannot be reached.
pub struct Lease {
    key: Key,
    token: Token,
    /// Of a binding: its share of the load.
    pub(crate) load: f64,
    standing: watch::Receiver<Standing>,
    inner: Arc<Inner>,
}

impl Lease {
    /// The next of this kind to own; none when there will be none any more.
    async fn next(inner: &Arc<Inner>, kind: Kind) -> Option<Self> {
        let taken = inner.shared.until(|state| match state.take(kind) {
            Some(taken) => Some(Some(taken)),
            None if state.draining || state.closed => Some(None),
            None => None,
        });
        let Taken { key, token, load, standing } = taken.await?;
        let lease = Self { key, token, load, standing, inner: inner.clone() };
        inner.shared.tell();
        Some(lease)
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Of a binding: where documents go from here, at this moment.
    pub(crate) fn routes(&self) -> Arc<[Next]> {
        self.standing.borrow().next.clone()
    }

    /// The fencing token: goes with everything that is written under the lease.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether anything may be written under it at this moment, by the clock.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        if self.standing.borrow().is_lost() {
            return false;
        }
        self.with_hand(|hand| hand.keep_time(clock::now()));
        !self.standing.borrow().is_lost()
    }

    /// The time until it is lost unless it is renewed; none where it does not end by time.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        if self.standing.borrow().is_lost() {
            return Some(Duration::ZERO);
        }
        self.with_hand(|hand| hand.end).flatten().map(|end| end.since(clock::now()))
    }

    /// Of a revoked one: the time within which it should be let go.
    #[must_use]
    pub fn release_within(&self) -> Option<Duration> {
        self.with_hand(|hand| hand.release_by).flatten().map(|at| at.since(clock::now()))
    }

    /// Whether it is revoked.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.standing.borrow().revoked
    }

    /// Ends when nothing may be written any more.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|standing| standing.lost)
    }

    /// Ends when it is revoked: finish what is in hand, then drop it.
    pub fn revoked(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|standing| standing.revoked)
    }

    /// Ends when it is revoked or lost: what a worker waits for between two steps.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|standing| standing.revoked || standing.lost)
    }

    /// Runs `work` to its end, or drops it when the lease is lost, which gives none.
    pub async fn while_owned<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.lost() => None,
            done = work => Some(done),
        }
    }

    /// Releases it, and returns when the agent has confirmed that.
    pub(crate) async fn release(self) {
        let (inner, key, token) = (self.inner.clone(), self.key.clone(), self.token);
        drop(self);
        let told = (key, token);
        inner.shared.until(|state| (!state.released.contains(&told)).then_some(())).await;
    }

    fn once(&self, holds: fn(&Standing) -> bool) -> impl Future<Output = ()> + Send + use<> {
        let mut standing = self.standing.clone();
        // What was let go is nobody's to write to either.
        async move { drop(standing.wait_for(holds).await) }
    }

    fn with_hand<T>(&self, look: impl FnOnce(&mut Hand) -> T) -> Option<T> {
        let mut state = self.inner.shared.look();
        state.in_hand.get_mut(&self.key).filter(|hand| hand.token == self.token).map(look)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.inner.shared.change(|state| state.release(&self.key, self.token));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} under {})", self.key, self.token)
    }
}

/// Each stream, see [`Owning`].
pub type Streams = Owning<Stream>;
/// Each binding, see [`Owning`].
pub type Bindings = Owning<Binding>;

/// Each stream or binding once this worker owns it, until the worker drains.
pub struct Owning<T>(Pin<Box<dyn futures_util::Stream<Item = T> + Send>>);

impl<T: 'static> Owning<T> {
    pub(crate) fn new(inner: Arc<Inner>, kind: Kind, of: fn(Lease) -> T) -> Self {
        inner.shared.change(|state| state.consume(kind));
        let next = move |inner: Arc<Inner>| async move {
            let lease = Lease::next(&inner, kind).await?;
            Some((of(lease), inner))
        };
        Self(Box::pin(futures_util::stream::unfold(inner, next)))
    }

    /// The next one; none once the worker drains.
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
