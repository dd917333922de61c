//! The body of a session. Its first message, the hello, must be small: nobody knows yet who sends
//! it. A long message is read once there is [room](super::message_budget) for it, and a message
//! that has begun must be complete in time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use prost::bytes::Buf;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::message_budget::{SHORT_BYTES_MAX, SessionBudget};

/// Bytes of a hello: two names, an address and a few numbers.
pub(super) const HELLO_BYTES_MAX: u32 = 16 * 1024;
/// The bytes in front of a gRPC message: one that says whether it is compressed, and its length in
/// four.
const PREFIX_BYTES: usize = 5;
/// How long the rest of a message may take.
const REST_TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes of a long message that may take another [`REST_TIMEOUT`].
const REST_BYTES: u32 = 1024 * 1024;

/// A body that fails if its first message is too long, or if the rest of a message does not come.
pub(super) struct SessionBody<B> {
    body: B,
    read: MessageReader,
    budget: SessionBudget,
    /// Runs while a long message waits until it may be read.
    waiting: Option<BoxFuture<'static, ()>>,
    /// Runs while the rest of a message is waited for.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Where in its messages a body is.
#[derive(Debug)]
struct MessageReader {
    /// The beginning of a message, until its length is known.
    prefix: Vec<u8>,
    /// Bytes of the current message, and how many of them are still to come.
    length: u32,
    left: u32,
    is_first: bool,
    /// The length of a long message that has begun and has not been asked for yet.
    long: Option<u32>,
}

impl MessageReader {
    fn new() -> Self {
        let prefix = Vec::with_capacity(PREFIX_BYTES);
        Self { prefix, length: 0, left: 0, is_first: true, long: None }
    }

    /// Whether a message has begun and is not complete.
    fn is_within(&self) -> bool {
        self.left > 0 || !self.prefix.is_empty()
    }

    fn rest_timeout(&self) -> Duration {
        REST_TIMEOUT * (1 + self.length / REST_BYTES)
    }

    /// Goes on by these bytes. Returns whether a message has ended among them.
    fn advance(&mut self, mut data: &[u8]) -> Result<bool, Status> {
        let mut has_ended = false;
        while !data.is_empty() {
            if self.left > 0 {
                let taken = data.len().min(self.left as usize);
                data = &data[taken..];
                self.left -= u32::try_from(taken).expect("at most what is left");
            } else {
                let missing = PREFIX_BYTES - self.prefix.len();
                let (prefix, rest) = data.split_at(missing.min(data.len()));
                self.prefix.extend_from_slice(prefix);
                data = rest;
                if self.prefix.len() < PREFIX_BYTES {
                    break;
                }
                self.begin()?;
            }
            if self.left == 0 {
                has_ended = true;
                self.long = None;
            }
        }
        Ok(has_ended)
    }

    /// Begins the message whose prefix is complete.
    fn begin(&mut self) -> Result<(), Status> {
        let length = self.prefix.last_chunk().expect("the prefix is complete");
        let length = u32::from_be_bytes(*length);
        self.prefix.clear();
        if self.is_first && length > HELLO_BYTES_MAX {
            return Err(Status::resource_exhausted(format!(
                "the first message has {length} bytes: a hello has at most {HELLO_BYTES_MAX}"
            )));
        }
        (self.length, self.left, self.is_first) = (length, length, false);
        self.long = (length > SHORT_BYTES_MAX).then_some(length);
        Ok(())
    }
}

impl<B> SessionBody<B> {
    pub(super) fn new(body: B, budget: SessionBudget) -> Self {
        Self { body, read: MessageReader::new(), budget, waiting: None, timer: None }
    }

    /// Waits until the message that has begun may be read.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(length) = self.read.long.take() {
            // Its sender cannot go on while it waits.
            self.timer = None;
            self.waiting = Some(Box::pin(self.budget.clone().acquire(length)));
        }
        if let Some(waiting) = &mut self.waiting {
            ready!(waiting.as_mut().poll(cx));
            self.waiting = None;
        }
        Poll::Ready(())
    }

    /// Waits for the rest of a message. The time counts only while it is asked for: the session
    /// may pause before it reads on.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if !self.read.is_within() {
            return Poll::Pending;
        }
        let within = self.read.rest_timeout();
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(within)));
        timer.as_mut().poll(cx).map(|()| {
            Status::deadline_exceeded(format!("the rest of a message did not come in {within:?}"))
        })
    }
}

impl<B> Body for SessionBody<B>
where
    B: Body<Error: From<Status>> + Unpin,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        // What was read before a long message has been given on: its sender may need it.
        ready!(self.poll_room(cx));
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.poll_late(cx).map(|late| Some(Err(late.into())));
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            match self.read.advance(data.chunk()) {
                Ok(true) => self.timer = None,
                Ok(false) => {}
                Err(status) => return Poll::Ready(Some(Err(status.into()))),
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use leasehold_types::limits::{MESSAGE_BYTES_MAX, NamespaceShare};
    use prost::bytes::Bytes;

    use super::super::message_budget::MessageBudget;
    use super::*;

    /// A body of these pieces that does not end.
    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.0
                .pop_front()
                .map_or(Poll::Pending, |piece| Poll::Ready(Some(Ok(Frame::data(piece)))))
        }
    }

    fn message(bytes: usize) -> Vec<u8> {
        let length = u32::try_from(bytes).expect("a short message").to_be_bytes();
        [&[0], &length[..], &vec![7; bytes]].concat()
    }

    #[test]
    fn messages_may_come_in_any_pieces() {
        let sent = [message(3), message(0), message(70_000), message(1)].concat();
        for piece in [1, 2, 5, 6, 4_096, sent.len()] {
            let mut read = MessageReader::new();
            for piece in sent.chunks(piece) {
                read.advance(piece).expect("short enough");
            }
            assert!(!read.is_within(), "in pieces of {piece}");
            assert!(!read.advance(&message(9)[..13]).expect("short enough"));
            assert!(read.is_within());
            assert!(read.advance(&[7]).expect("short enough"));
        }
    }

    #[test]
    fn only_the_first_message_must_be_small() {
        let long = message(HELLO_BYTES_MAX as usize + 1);
        let mut read = MessageReader::new();
        assert!(read.advance(&long).is_err());
        let mut read = MessageReader::new();
        read.advance(&message(HELLO_BYTES_MAX as usize)).expect("short enough");
        read.advance(&long).expect("it is not the first");
    }

    #[test]
    fn a_long_message_is_read_once_there_is_room_and_others_are_read_at_once() {
        let budget = MessageBudget::new(NamespaceShare::WHOLE);
        let pieces = |messages: &[usize]| {
            let sent: Vec<u8> = messages.iter().flat_map(|&bytes| message(bytes)).collect();
            sent.chunks(10_000).map(Bytes::copy_from_slice).collect()
        };
        let body = |messages: &[usize]| {
            let session = budget.session();
            (SessionBody::new(Pieces(pieces(messages)), session.clone()), session)
        };
        let read = |body: &mut SessionBody<Pieces>| {
            let mut cx = Context::from_waker(Waker::noop());
            let mut bytes = 0;
            while let Poll::Ready(Some(frame)) = Pin::new(&mut *body).poll_frame(&mut cx) {
                let frame = frame.expect("a frame");
                bytes += frame.data_ref().map_or(0, Bytes::len);
            }
            bytes
        };
        let prefix = PREFIX_BYTES;
        // Four of the longest use the budget; each begins after a hello.
        let longest = [100, MESSAGE_BYTES_MAX];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let mut waiting = [(); 4].map(|()| body(&longest));
            for (body, _) in &mut waiting {
                assert_eq!(read(body), 100 + MESSAGE_BYTES_MAX + 2 * prefix);
            }
            let (mut long, long_budget) = body(&[100, 50_000, 100]);
            assert_eq!(read(&mut long), 10_000, "what came with its beginning");
            let (mut short, _short_budget) = body(&[100, 4_096, 100, 4_096]);
            assert_eq!(read(&mut short), 2 * (100 + 4_096) + 4 * prefix);
            // The driver has handled the message of the first one.
            drop(waiting[0].1.take());
            assert_eq!(read(&mut long), 50_200 + 3 * prefix - 10_000);
            assert!(!long_budget.take().is_empty(), "its bytes count until it is handled");
        });
    }

    #[test]
    fn a_long_message_may_take_longer() {
        let mut read = MessageReader::new();
        read.advance(&message(10)).expect("short enough");
        assert_eq!(read.rest_timeout(), REST_TIMEOUT);
        read.advance(&message(16 << 20)[..100]).expect("it is not the first");
        assert_eq!(read.rest_timeout(), 17 * REST_TIMEOUT);
    }
}
