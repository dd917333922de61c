//! A stream while this worker owns it: where it stands, and its way back.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_types::{Moment, Token};
use tokio::sync::watch;

use crate::clock;
use crate::state::Key;
use crate::worker::Inner;

/// Where a stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    revoked: bool,
    lost: bool,
}

impl Standing {
    /// Nothing may be written any more.
    pub(crate) fn is_lost(self) -> bool {
        self.lost
    }
}

/// A stream as the state keeps it while it is in the worker's hands.
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
    ) -> (Self, watch::Receiver<Standing>) {
        let (standing, seen) = watch::channel(Standing::default());
        let shown = format!("{}/{}", key.0, key.1);
        (Self { token, end, release_by: None, shown, standing }, seen)
    }

    /// What the newest lease says of it. What is lost stays lost.
    pub(crate) fn renew(&mut self, held: bool, end: Option<Moment>, release_by: Option<Moment>) {
        let Standing { revoked, lost } = *self.standing.borrow();
        if lost {
            return;
        }
        self.end = end;
        if !held && !revoked {
            self.release_by = release_by;
            self.standing.send_modify(|standing| standing.revoked = true);
        }
    }

    /// The lease is over.
    pub(crate) fn lose(&mut self, why: &str) {
        if !self.standing.borrow().is_lost() {
            tracing::warn!(stream = self.shown, token = %self.token, why, "a stream is lost");
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

/// A stream that this worker owns, until it is dropped: dropping lets it go.
///
/// It is lost a little before its lease ends, by this process's own clock, whether the agent says
/// so or cannot be reached.
pub struct Stream {
    set: String,
    name: String,
    token: Token,
    standing: watch::Receiver<Standing>,
    inner: Arc<Inner>,
}

impl Stream {
    /// The next stream to own; none when there will be none any more.
    pub(crate) async fn next(inner: &Arc<Inner>) -> Option<Self> {
        let taken = inner.shared.until(|state| match state.take() {
            Some(taken) => Some(Some(taken)),
            None if state.draining || state.closed => Some(None),
            None => None,
        });
        let ((set, name), token, standing) = taken.await?;
        let stream = Self { set, name, token, standing, inner: inner.clone() };
        inner.shared.tell();
        Some(stream)
    }

    /// The stream set.
    #[must_use]
    pub fn set(&self) -> &str {
        &self.set
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fencing token: goes with everything that is written for the stream.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether the stream may be written to at this moment, by the clock.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        if self.standing.borrow().is_lost() {
            return false;
        }
        self.with_hand(|hand| hand.keep_time(clock::now()));
        !self.standing.borrow().is_lost()
    }

    /// The time until it is lost unless it is renewed; none where its lease does not end by time.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        if self.standing.borrow().is_lost() {
            return Some(Duration::ZERO);
        }
        self.with_hand(|hand| hand.end).flatten().map(|end| end.since(clock::now()))
    }

    /// Of a revoked stream: the time within which it should be let go.
    #[must_use]
    pub fn release_within(&self) -> Option<Duration> {
        self.with_hand(|hand| hand.release_by).flatten().map(|at| at.since(clock::now()))
    }

    /// Whether the stream is asked back.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.standing.borrow().revoked
    }

    /// Ends when nothing may be written any more.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|standing| standing.lost)
    }

    /// Ends when the stream is asked back: finish what is in hand, then drop the stream.
    pub fn revoked(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|standing| standing.revoked)
    }

    /// Ends when the stream is asked back or lost: what a worker waits for between two steps.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.once(|standing| standing.revoked || standing.lost)
    }

    /// Runs `work` to its end, or drops it when the stream is lost, which gives none.
    pub async fn while_owned<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.lost() => None,
            done = work => Some(done),
        }
    }

    /// Lets the stream go, and ends when the agent has heard of it.
    pub async fn release(self) {
        let (inner, key, token) = (self.inner.clone(), self.key(), self.token);
        drop(self);
        let told = (key, token);
        inner.shared.until(|state| (!state.released.contains(&told)).then_some(())).await;
    }

    fn once(&self, holds: fn(&Standing) -> bool) -> impl Future<Output = ()> + Send + use<> {
        let mut standing = self.standing.clone();
        // A stream that was let go is nobody's to write to either.
        async move { drop(standing.wait_for(holds).await) }
    }

    fn with_hand<T>(&self, look: impl FnOnce(&mut Hand) -> T) -> Option<T> {
        let mut state = self.inner.shared.look();
        state.in_hand.get_mut(&self.key()).filter(|hand| hand.token == self.token).map(look)
    }

    fn key(&self) -> Key {
        (self.set.clone(), self.name.clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let key = self.key();
        self.inner.shared.change(|state| state.release(&key, self.token));
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, name, token, .. } = self;
        write!(f, "Stream({set}/{name} under {token})")
    }
}

/// Each stream once this worker owns it, until the worker drains.
pub struct Streams(Pin<Box<dyn futures_util::Stream<Item = Stream> + Send>>);

impl Streams {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        inner.shared.change(crate::state::State::consume);
        Self(Box::pin(futures_util::stream::unfold(inner, async |inner| {
            let stream = Stream::next(&inner).await?;
            Some((stream, inner))
        })))
    }

    /// The next stream; none once the worker drains.
    pub async fn next(&mut self) -> Option<Stream> {
        futures_util::StreamExt::next(&mut self.0).await
    }
}

impl futures_util::Stream for Streams {
    type Item = Stream;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Stream>> {
        self.0.as_mut().poll_next(context)
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Streams")
    }
}
