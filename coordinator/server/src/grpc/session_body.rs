//! The body of a session. Its first message, the hello, must be small: nobody knows yet who sends
//! it. A message that has begun must be complete in time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use prost::bytes::Buf;
use tokio::time::{Sleep, sleep};
use tonic::Status;

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
#[derive(Debug)]
pub(super) struct SessionBody<B> {
    body: B,
    read: MessageReader,
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
}

impl MessageReader {
    fn new() -> Self {
        Self { prefix: Vec::with_capacity(PREFIX_BYTES), length: 0, left: 0, is_first: true }
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
            has_ended |= self.left == 0;
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
        Ok(())
    }
}

impl<B> SessionBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body, read: MessageReader::new(), timer: None }
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
    use super::*;

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
    fn a_long_message_may_take_longer() {
        let mut read = MessageReader::new();
        read.advance(&message(10)).expect("short enough");
        assert_eq!(read.rest_timeout(), REST_TIMEOUT);
        read.advance(&message(16 << 20)[..100]).expect("it is not the first");
        assert_eq!(read.rest_timeout(), 17 * REST_TIMEOUT);
    }
}
