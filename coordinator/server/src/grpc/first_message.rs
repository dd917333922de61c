//! The body of a session. Its first message, the hello, must be small: nobody knows yet who sends
//! it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use prost::bytes::Buf;
use tonic::Status;

/// Bytes of a hello: two names, an address and a few numbers.
pub(super) const HELLO_BYTES_MAX: u32 = 16 * 1024;
/// The bytes in front of a gRPC message: one that says whether it is compressed, and its length in
/// four.
const PREFIX_BYTES: usize = 5;

/// A body that fails if its first message says that it is too long.
#[derive(Debug)]
pub(super) struct FirstMessageLimit<B> {
    body: B,
    /// The beginning of the first message, until its length is known.
    prefix: Option<Vec<u8>>,
}

impl<B> FirstMessageLimit<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body, prefix: Some(Vec::with_capacity(PREFIX_BYTES)) }
    }

    fn check(&mut self, data: &[u8]) -> Result<(), Status> {
        let Some(prefix) = &mut self.prefix else { return Ok(()) };
        let missing = PREFIX_BYTES - prefix.len();
        prefix.extend_from_slice(&data[..missing.min(data.len())]);
        let Some(length) = prefix.last_chunk().filter(|_| prefix.len() == PREFIX_BYTES) else {
            return Ok(());
        };
        let length = u32::from_be_bytes(*length);
        self.prefix = None;
        match length <= HELLO_BYTES_MAX {
            true => Ok(()),
            false => Err(Status::resource_exhausted(format!(
                "the first message has {length} bytes: a hello has at most {HELLO_BYTES_MAX}"
            ))),
        }
    }
}

impl<B> Body for FirstMessageLimit<B>
where
    B: Body<Error: From<Status>> + Unpin,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(status) = self.check(data.chunk())
        {
            return Poll::Ready(Some(Err(status.into())));
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
