//! The body of the messages to a session's agent. What encodes them takes one buffer for all of
//! them, and uses it again once nothing else refers to it: each session would keep a buffer as long
//! as its longest message, which lists all streams of a worker. So a long message is held here
//! until the next one has been encoded, which then gets a buffer of its own length.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body as HttpBody, Frame, SizeHint};
use prost::bytes::Bytes;
use tonic::Status;
use tonic::body::Body;

/// Bytes of a message whose buffer is not used again. Renewals are far shorter.
const LONG_BYTES: usize = 4 * 1024;

/// A body that holds the last message if it is long.
#[derive(Debug)]
pub(super) struct SentBody {
    body: Body,
    held: Option<Bytes>,
}

impl SentBody {
    pub(super) fn new(body: Body) -> Self {
        Self { body, held: None }
    }
}

impl HttpBody for SentBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let message = match &frame {
            Some(Ok(frame)) => frame.data_ref(),
            Some(Err(_)) | None => None,
        };
        self.held = message.filter(|message| message.len() >= LONG_BYTES).cloned();
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
    use std::task::Waker;

    use leasehold_proto::raw_codec::RawCodec;
    use tokio::sync::mpsc;
    use tonic::codec::{EncodeBody, SingleMessageCompressionOverride};

    use super::*;

    fn next(body: &mut SentBody) -> Bytes {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(body).poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().expect("a message"),
            other => panic!("a message expected: {other:?}"),
        }
    }

    #[test]
    fn the_buffer_of_a_long_message_is_not_used_for_the_next_one() {
        let (sender, mut messages) = mpsc::unbounded_channel();
        let messages = futures_util::stream::poll_fn(move |cx| messages.poll_recv(cx));
        let uncompressed = SingleMessageCompressionOverride::default();
        let encoded = EncodeBody::new_server(RawCodec, messages, None, uncompressed, None);
        let mut body = SentBody::new(Body::new(encoded));
        let mut sent = |bytes: usize| {
            sender.send(Ok(Bytes::from(vec![7; bytes]))).expect("the body takes it");
            // The message is written and dropped; where it was is what counts.
            next(&mut body).as_ptr_range()
        };
        let long = sent(2 * LONG_BYTES);
        assert!(!long.contains(&sent(10).start));
    }
}
