//! A connection's socket that detects that the client has closed it even while earlier bytes are
//! unread: a client may send its next request before it has the answer.

use std::io::{ErrorKind, IoSlice, Result};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

/// The socket. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Socket(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls the same method on either kind.
macro_rules! each {
    ($socket:expr, $stream:ident => $call:expr) => {
        match &*$socket.0 {
            Kind::Tcp($stream) => $call,
            Kind::Unix($stream) => $call,
        }
    };
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self(Arc::new(Kind::Tcp(stream)))
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self(Arc::new(Kind::Unix(stream)))
    }
}

impl Socket {
    /// Waits until the socket is readable or closed for reading.
    pub(super) async fn readable(&self) -> Result<Ready> {
        each!(self, stream => stream.ready(Interest::READABLE).await)
    }

    /// Retries an operation until it does not block.
    fn poll(
        ready: impl Fn(&mut Context<'_>) -> Poll<Result<()>>,
        cx: &mut Context<'_>,
        mut act: impl FnMut() -> Result<usize>,
    ) -> Poll<Result<usize>> {
        loop {
            ready!(ready(cx))?;
            match act() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let ready = |cx: &mut Context<'_>| each!(self, stream => stream.poll_read_ready(cx));
        let act = || {
            let free = buf.initialize_unfilled();
            each!(self, stream => stream.try_read(free))
        };
        let read = ready!(Self::poll(ready, cx, act))?;
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let ready = |cx: &mut Context<'_>| each!(self, stream => stream.poll_write_ready(cx));
        Self::poll(ready, cx, || each!(self, stream => stream.try_write(bytes)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let ready = |cx: &mut Context<'_>| each!(self, stream => stream.poll_write_ready(cx));
        Self::poll(ready, cx, || each!(self, stream => stream.try_write_vectored(parts)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        let done = each!(self, stream => SockRef::from(stream).shutdown(Shutdown::Write));
        Poll::Ready(match done {
            // The other end has closed it already.
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
            done => done,
        })
    }
}
