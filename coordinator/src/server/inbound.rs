//! What one session receives: decoded and mapped here, and handed to the driver on a small budget,
//! so that a peer that floods stalls itself and nobody else.

use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::event::ConnId;
use leasehold_proto::coordinator::v1::OpenSessionRequest;
use leasehold_types::message::{AgentMessage, CoordinatorMessage, Refusal, RefusalReason};
use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use crate::driver::{Envelope, SessionEvent};
use crate::metrics::Metrics;

/// Messages of one session that may wait for the driver.
pub(crate) const WAITING_MAX: usize = 4;
/// How long a peer may take to say hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Messages that one session may send within [`WINDOW`]; what is beyond waits for the next.
const WINDOW_MESSAGES_MAX: u32 = 1_000;
/// See [`WINDOW_MESSAGES_MAX`].
const WINDOW: Duration = Duration::from_secs(1);

/// The receiving side of one session.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) conn: ConnId,
    pub(crate) events: mpsc::Sender<Envelope>,
    /// Reaches the slot only as long as the driver keeps the session.
    pub(crate) slot: mpsc::WeakSender<Box<CoordinatorMessage>>,
    pub(crate) metrics: Arc<Metrics>,
    /// The session's place among all; free again when the driver knows that it has ended.
    pub(crate) place: OwnedSemaphorePermit,
}

impl Inbound {
    /// Receives until either side ends the session, then tells the driver.
    pub(crate) async fn run(self, mut messages: Streaming<Bytes>, gone: oneshot::Receiver<()>) {
        let outcome = tokio::select! {
            outcome = self.receive(&mut messages) => outcome,
            _ = gone => Ok(()),
        };
        if let Err(refusal) = outcome {
            self.refuse(refusal);
        }
        let Self { conn, events, place, .. } = self;
        // The channel has room for this by construction, unless the driver has ended.
        let _ = events.try_send(Envelope::new(conn, SessionEvent::Closed).with_place(place));
    }

    async fn receive(&self, messages: &mut Streaming<Bytes>) -> Result<(), Refusal> {
        let budget = Arc::new(Semaphore::new(WAITING_MAX));
        let first = timeout(HELLO_WITHIN, next(messages)).await;
        let first = first.map_err(|_| invalid("no hello came within 10 s".into()))??;
        match first {
            Some(AgentMessage::Hello(hello)) => {
                tracing::debug!(
                    conn = self.conn.0, cluster = %hello.cluster, worker = %hello.worker,
                    incarnation = %hello.incarnation, link = %hello.link, "hello"
                );
                self.forward(AgentMessage::Hello(hello), &budget).await?;
            }
            Some(AgentMessage::Report(_)) => {
                return Err(invalid("report came before hello".into()));
            }
            Some(AgentMessage::Beat(_)) => return Err(invalid("beat came before hello".into())),
            None => return Ok(()),
        }
        let mut window = Window::new(Instant::now());
        while let Some(message) = next(messages).await? {
            if matches!(message, AgentMessage::Hello(_)) {
                return Err(invalid("hello came twice".into()));
            }
            if let Some(end) = window.full(Instant::now()) {
                self.metrics.session_stalled();
                sleep_until(end).await;
            }
            self.forward(message, &budget).await?;
        }
        Ok(())
    }

    async fn forward(&self, message: AgentMessage, budget: &Arc<Semaphore>) -> Result<(), Refusal> {
        let permit = match Arc::clone(budget).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.metrics.session_stalled();
                Arc::clone(budget).acquire_owned().await.expect("a budget is never closed")
            }
        };
        let envelope = Envelope::new(self.conn, SessionEvent::Agent(message)).with_place(permit);
        self.events.try_send(envelope).map_err(|_| Refusal {
            reason: RefusalReason::GoAway,
            message: "the coordinator shuts down".into(),
        })
    }

    fn refuse(&self, refusal: Refusal) {
        tracing::debug!(conn = self.conn.0, reason = ?refusal.reason, why = refusal.message,
            "session refused");
        self.metrics.refused(&refusal.reason);
        if let Some(slot) = self.slot.upgrade() {
            // The slot keeps room for this one message.
            let _ = slot.try_send(Box::new(CoordinatorMessage::Refusal(refusal)));
        }
    }
}

/// Counts messages within a window of time.
#[derive(Debug)]
struct Window {
    end: Instant,
    messages: u32,
}

impl Window {
    fn new(now: Instant) -> Self {
        Self { end: now + WINDOW, messages: 0 }
    }

    /// Counts a message; gives the window's end where it has had all that it may.
    fn full(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.end {
            *self = Self::new(now);
        }
        self.messages += 1;
        (self.messages > WINDOW_MESSAGES_MAX).then_some(self.end)
    }
}

/// The next message; none where the peer has ended the session or its connection broke.
async fn next(messages: &mut Streaming<Bytes>) -> Result<Option<AgentMessage>, Refusal> {
    let bytes = match messages.message().await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(status) => return broken(&status),
    };
    let request = OpenSessionRequest::decode(bytes)
        .map_err(|error| invalid(format!("message is no OpenSessionRequest: {error}")))?;
    AgentMessage::try_from(request).map(Some).map_err(|error| invalid(error.to_string()))
}

/// A message that could not be read is refused; a connection that broke just ends.
fn broken(status: &Status) -> Result<Option<AgentMessage>, Refusal> {
    match status.code() {
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => Err(Refusal {
            reason: RefusalReason::Limit,
            message: format!("message: {}", status.message()),
        }),
        tonic::Code::Internal | tonic::Code::Unimplemented => {
            Err(invalid(format!("message: {}", status.message())))
        }
        _ => Ok(None),
    }
}

fn invalid(message: String) -> Refusal {
    Refusal { reason: RefusalReason::Invalid, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_lets_so_many_through_and_starts_again_after_its_end() {
        let start = Instant::now();
        let mut window = Window::new(start);
        for _ in 0..WINDOW_MESSAGES_MAX {
            assert_eq!(window.full(start), None);
        }
        assert_eq!(window.full(start), Some(start + WINDOW));
        assert_eq!(window.full(start + WINDOW), None);
    }
}
