//! The sending side of a session. At most one message waits here; the core may send the next one
//! when the HTTP/2 layer has taken the last. Leadership is checked again after a grant is
//! serialised: a grant of a term that has ended is not sent, and the core's refusal follows it,
//! which names the next leader. Until the first grant, an agent is sent that it waits, which the
//! core knows nothing of.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use leasehold_coordinator_core::event::ConnId;
use leasehold_driver::clock;
use leasehold_driver::sent_queue::SentQueue;
use leasehold_driver::term_guard::TermGuard;
use leasehold_proto::coordinator::v1::OpenSessionResponse;
use leasehold_proto::map;
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use leasehold_types::message::CoordinatorMessage;
use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::delivery::SendProgress;
use super::waiting::WaitingSession;

/// Messages that fit into a session's slot: a message, then a refusal from the core, and a refusal
/// from the session itself.
pub(crate) const SLOT_MESSAGES_MAX: usize = 3;

/// The stream that the HTTP/2 layer takes a session's messages from.
#[derive(Debug)]
pub(crate) struct Outbound {
    conn: ConnId,
    slot: mpsc::Receiver<Box<CoordinatorMessage>>,
    sent: Arc<SentQueue>,
    term_guard: Arc<TermGuard>,
    last: LastMessage,
    /// Until the first grant.
    waiting: Option<WaitingSession>,
    progress: Arc<SendProgress>,
    /// Dropped with the stream, which ends the session's reader.
    _alive: oneshot::Sender<()>,
}

/// The state of the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastMessage {
    /// No message is pending: the driver knows that the last one was written.
    Settled,
    /// The current call of the layer above got it; that layer polls once more before it writes.
    Given,
    /// It was written: the next poll means that there is room again.
    Passed,
    /// It was a grant and was not sent, since its term had ended: nothing but a refusal may follow.
    Withheld,
}

/// A message as the session's stream carries it.
enum Serialised {
    Bytes(Bytes),
    /// A grant whose term has ended.
    OfEndedTerm,
}

impl Outbound {
    pub(crate) fn new(
        conn: ConnId,
        slot: mpsc::Receiver<Box<CoordinatorMessage>>,
        sent: Arc<SentQueue>,
        term_guard: Arc<TermGuard>,
        waiting: WaitingSession,
        alive: oneshot::Sender<()>,
    ) -> Self {
        let (last, waiting) = (LastMessage::Settled, Some(waiting));
        let progress = Arc::default();
        Self { conn, slot, sent, term_guard, last, waiting, progress, _alive: alive }
    }

    /// What was sent so far.
    pub(crate) fn progress(&self) -> Arc<SendProgress> {
        Arc::clone(&self.progress)
    }

    fn serialise(&self, message: CoordinatorMessage) -> Result<Serialised, Status> {
        let epoch = match &message {
            CoordinatorMessage::Grant(grant) => Some(grant.epoch),
            CoordinatorMessage::Welcome(_) | CoordinatorMessage::Refusal(_) => None,
        };
        let bytes = Bytes::from(OpenSessionResponse::from(message).encode_to_vec());
        if bytes.len() > MESSAGE_BYTES_MAX {
            let bytes = bytes.len();
            tracing::error!(
                conn = self.conn.0,
                bytes,
                "message not sent: it is larger than the limit"
            );
            return Err(Status::resource_exhausted(format!(
                "the message has {bytes} bytes, more than the limit of {MESSAGE_BYTES_MAX}"
            )));
        }
        match epoch {
            Some(epoch) if !self.term_guard.is_open(epoch, clock::now()) => {
                let conn = self.conn.0;
                tracing::debug!(conn, %epoch, "leadership ended before a grant was written");
                Ok(Serialised::OfEndedTerm)
            }
            Some(_) | None => Ok(Serialised::Bytes(bytes)),
        }
    }

    /// What the stream carries next for a message of the driver; none if it carries nothing.
    fn carry(&mut self, message: CoordinatorMessage) -> Option<Result<Bytes, Status>> {
        match message {
            CoordinatorMessage::Grant(_) => self.waiting = None,
            CoordinatorMessage::Welcome(_) | CoordinatorMessage::Refusal(_) => {
                self.waiting.iter_mut().for_each(WaitingSession::note_sent);
            }
        }
        // A refusal is the last message, even if the driver still has the session.
        let is_last = matches!(message, CoordinatorMessage::Refusal(_));
        let after_withheld = self.last == LastMessage::Withheld;
        let serialised = match self.serialise(message) {
            // The agent lacks the grant that was withheld, so this one would not follow its last.
            Ok(_) if after_withheld && !is_last => {
                Err(Status::unavailable("leadership has ended: dial again"))
            }
            serialised => serialised,
        };
        match serialised {
            Ok(Serialised::OfEndedTerm) => {
                self.last = LastMessage::Withheld;
                None
            }
            Ok(Serialised::Bytes(bytes)) => {
                self.progress.note_message(bytes.len());
                if is_last {
                    self.slot.close();
                } else {
                    self.last = LastMessage::Given;
                }
                Some(Ok(bytes))
            }
            Err(status) => {
                self.slot.close();
                Some(Err(status))
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        match self.last {
            LastMessage::Settled | LastMessage::Withheld => {}
            LastMessage::Given => {
                self.last = LastMessage::Passed;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            LastMessage::Passed => {
                self.last = LastMessage::Settled;
                self.sent.push(self.conn);
            }
        }
        loop {
            match self.slot.poll_recv(cx) {
                Poll::Pending => {
                    let Some(waiting) = &mut self.waiting else { return Poll::Pending };
                    let ahead = ready!(waiting.poll_due(cx));
                    return Poll::Ready(Some(Ok(map::waiting(ahead).encode_to_vec().into())));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(message)) => {
                    if let Some(next) = self.carry(*message) {
                        return Poll::Ready(Some(next));
                    }
                    self.sent.push(self.conn);
                }
            }
        }
    }
}

impl Stream for Outbound {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.poll_message(cx);
        self.progress.note_poll(polled.is_pending() && self.last != LastMessage::Passed);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::StreamExt;
    use leasehold_types::message::{Grant, Refusal, RefusalReason, Terms, Welcome};
    use leasehold_types::{Epoch, GrantNumber, Nonce, TermId};

    use super::*;
    use crate::grpc::waiting::Line;
    use leasehold_driver::term_guard::Term;

    /// How often an agent is sent that it waits.
    const INTERVAL: Duration = Duration::from_millis(5);

    struct Ends {
        outbound: Outbound,
        slot: mpsc::Sender<Box<CoordinatorMessage>>,
        sent: Arc<SentQueue>,
        term_guard: Arc<TermGuard>,
        _gone: oneshot::Receiver<()>,
    }

    fn ends() -> Ends {
        let (slot, slot_out) = mpsc::channel(SLOT_MESSAGES_MAX);
        let sent = Arc::<SentQueue>::default();
        let (alive, gone) = oneshot::channel();
        let term_guard = Arc::new(TermGuard::default());
        let waiting = WaitingSession::new(Arc::<Line>::default().join(), Some(INTERVAL));
        let outbound =
            Outbound::new(ConnId(1), slot_out, sent.clone(), term_guard.clone(), waiting, alive);
        Ends { outbound, slot, sent, term_guard, _gone: gone }
    }

    fn grant(epoch: u64) -> Box<CoordinatorMessage> {
        let second = Duration::from_secs(1);
        let terms =
            Terms { ttl: second * 10, beat: second, reserve: second * 11, drain_deadline: second };
        Box::new(CoordinatorMessage::Grant(Grant {
            snapshot: true,
            ..Grant::renewal(Epoch(epoch), GrantNumber(1), Nonce(1), terms)
        }))
    }

    fn refusal() -> Box<CoordinatorMessage> {
        let reason = RefusalReason::NotLeader(Some("127.0.0.1:7400".to_owned()));
        let message = "this replica does not lead".to_owned();
        Box::new(CoordinatorMessage::Refusal(Refusal { reason, message }))
    }

    fn poll(outbound: &mut Outbound) -> Poll<Option<Result<Bytes, Status>>> {
        let waker = futures_util::task::noop_waker();
        outbound.poll_next_unpin(&mut Context::from_waker(&waker))
    }

    #[tokio::test]
    async fn a_grant_is_withheld_once_leadership_has_ended_and_only_a_refusal_may_follow() {
        let mut ends = ends();
        let future = clock::now() + Duration::from_secs(60);
        ends.term_guard.set(Some(Term { epoch: Epoch(7), until: future }));
        ends.slot.try_send(grant(7)).expect("room");
        assert!(matches!(poll(&mut ends.outbound), Poll::Ready(Some(Ok(_)))));

        for term_guard in [None, Some((7, clock::now())), Some((8, future))] {
            let mut ends = self::ends();
            let term = term_guard.map(|(epoch, until)| Term { epoch: Epoch(epoch), until });
            ends.term_guard.set(term);
            ends.slot.try_send(grant(7)).expect("room");
            assert!(poll(&mut ends.outbound).is_pending(), "a grant was written under {term:?}");
            assert_eq!(ends.sent.take(), [ConnId(1)], "the request for the next message");
            ends.slot.try_send(refusal()).expect("room");
            assert!(matches!(poll(&mut ends.outbound), Poll::Ready(Some(Ok(_)))));
            assert!(matches!(poll(&mut ends.outbound), Poll::Ready(None)), "a refusal is the last");
        }
    }

    /// The leader may get its term renewed after a grant was withheld. The agent lacks that grant,
    /// so it must not get the next one as if nothing were missing.
    #[tokio::test]
    async fn no_grant_follows_one_that_was_withheld() {
        let mut ends = ends();
        ends.slot.try_send(grant(7)).expect("room");
        assert!(poll(&mut ends.outbound).is_pending());
        let until = clock::now() + Duration::from_secs(60);
        ends.term_guard.set(Some(Term { epoch: Epoch(7), until }));
        ends.slot.try_send(grant(7)).expect("room");
        let Poll::Ready(Some(Err(status))) = poll(&mut ends.outbound) else {
            panic!("a grant was written after one that was not");
        };
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(ends.slot.try_send(grant(7)).is_err(), "the session has not ended");
    }

    #[tokio::test]
    async fn the_next_message_is_requested_only_when_the_last_was_written() {
        let mut ends = ends();
        let until = clock::now() + Duration::from_secs(60);
        ends.term_guard.set(Some(Term { epoch: Epoch(7), until }));
        ends.slot.try_send(grant(7)).expect("room");
        assert!(matches!(poll(&mut ends.outbound), Poll::Ready(Some(Ok(_)))));
        assert!(ends.sent.take().is_empty(), "requested before the next poll of the layer above");
        assert!(poll(&mut ends.outbound).is_pending());
        assert!(ends.sent.take().is_empty(), "requested within the call that took the message");
        assert!(poll(&mut ends.outbound).is_pending());
        assert_eq!(ends.sent.take(), [ConnId(1)], "the request for the next message");
        assert!(poll(&mut ends.outbound).is_pending());
        assert!(ends.sent.take().is_empty(), "requested twice");
    }

    #[tokio::test]
    async fn a_stream_ends_after_the_messages_given_so_far() {
        let mut ends = ends();
        let until = clock::now() + Duration::from_secs(60);
        ends.term_guard.set(Some(Term { epoch: Epoch(7), until }));
        ends.slot.try_send(grant(7)).expect("room");
        drop(ends.slot);
        assert!(matches!(ends.outbound.next().await, Some(Ok(_))));
        assert!(ends.outbound.next().await.is_none());
    }

    fn welcome() -> Box<CoordinatorMessage> {
        let CoordinatorMessage::Grant(grant) = *grant(7) else { unreachable!("it is a grant") };
        let (epoch, terms) = (grant.epoch, grant.terms);
        Box::new(CoordinatorMessage::Welcome(Welcome {
            epoch,
            term: TermId(0),
            cell: None,
            answers_goodbye: false,
            protocol: 1,
            terms,
        }))
    }

    #[tokio::test]
    async fn an_agent_is_sent_that_it_waits_until_its_first_grant() {
        let mut ends = ends();
        let until = clock::now() + Duration::from_secs(60);
        ends.term_guard.set(Some(Term { epoch: Epoch(7), until }));
        let waits = |response: Option<Result<Bytes, Status>>| {
            let bytes = response.expect("it goes on").expect("a message");
            let response = OpenSessionResponse::decode(bytes).expect("it is valid");
            map::waits_behind(&response).is_some()
        };
        for _ in 0..2 {
            assert!(waits(ends.outbound.next().await));
            assert!(ends.sent.take().is_empty(), "the core has sent nothing");
        }
        ends.slot.try_send(welcome()).expect("room");
        assert!(!waits(ends.outbound.next().await), "the welcome");
        assert!(waits(ends.outbound.next().await), "its snapshot is still to come");
        ends.slot.try_send(grant(7)).expect("room");
        assert!(!waits(ends.outbound.next().await), "the snapshot");
        tokio::time::sleep(INTERVAL * 5).await;
        for _ in 0..3 {
            assert!(poll(&mut ends.outbound).is_pending(), "it is served");
        }
    }
}
