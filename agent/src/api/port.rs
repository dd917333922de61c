//! A port: accepts connections and serves each in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::io::Errno;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connections::{Connection, ConnectionGuard, Connections};
use super::request;
use super::socket::Socket;

/// How long a worker's connection may be idle.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// How long the head of a request from another machine may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection from another machine may last.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);
/// The most bytes of a request's head.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Requests at once on one HTTP/2 connection.
const REQUESTS_PER_CONNECTION_MAX: u32 = 512;
/// How long to wait after a failed accept (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long requests of a client that has closed the connection may take if they do not wait.
const CLOSE_DELAY: Duration = Duration::from_millis(50);

/// Where connections come from.
pub(super) enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The clients of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Clients on this machine, without a time limit.
    Worker,
    /// Any client of the network: HTTP/1 only, with a time limit, and one request per connection,
    /// so that no client can hold all connections and lock out the kubelet.
    Anyone,
}

/// A port.
pub(super) struct Port {
    pub(super) router: Router,
    pub(super) connections: Arc<Connections>,
    pub(super) stopped: watch::Receiver<bool>,
    pub(super) caller: Caller,
}

impl Port {
    /// Serves until the server stops.
    pub(super) async fn accept_all(self, acceptor: Acceptor) {
        let mut connections = JoinSet::new();
        let mut stopped = self.stopped.clone();
        loop {
            tokio::select! {
                accepted = accept(&acceptor) => match accepted {
                    Ok(socket) => drop(connections.spawn(self.serve(socket))),
                    Err(error) => self.handle_accept_error(&error).await,
                },
                () = stop_requested(&mut stopped) => break,
            }
            while connections.try_join_next().is_some() {}
            tokio::select! {
                () = self.connections.settled() => {}
                () = stop_requested(&mut stopped) => break,
            }
        }
        while connections.join_next().await.is_some() {}
    }

    /// Closes an idle connection if open files are exhausted, and waits before the next attempt.
    async fn handle_accept_error(&self, error: &std::io::Error) {
        tracing::warn!(%error, "cannot accept a worker's connection");
        let files = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
        if error.raw_os_error().is_some_and(|raw| files.contains(&raw)) {
            self.connections.evict();
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    fn serve(&self, socket: Socket) -> impl Future<Output = ()> + Send + use<> {
        let (router, caller) = (self.router.clone(), self.caller);
        let guard = self.connections.register();
        let mut stopped = self.stopped.clone();
        async move {
            let connection = guard.connection();
            let service =
                service_fn(|request| request::answer(router.clone(), connection.clone(), request));
            let builder = builder(caller);
            let connection = builder.serve_connection(TokioIo::new(socket.clone()), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => log_end(ended),
                () = stop_requested(&mut stopped) => {
                    connection.as_mut().graceful_shutdown();
                    log_end(connection.await);
                }
                why = close_reason(&socket, &guard, caller) => {
                    tracing::debug!("a connection {why}");
                }
            }
        }
    }
}

fn builder(caller: Caller) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).max_buf_size(HEADER_BYTES_MAX);
    builder.http1().header_read_timeout(match caller {
        // See IDLE_MAX.
        Caller::Worker => None,
        Caller::Anyone => Some(HEAD_TIMEOUT),
    });
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .max_concurrent_streams(REQUESTS_PER_CONNECTION_MAX);
    if caller == Caller::Anyone {
        builder = builder.http1_only();
        builder.http1().keep_alive(false);
    }
    builder
}

async fn accept(acceptor: &Acceptor) -> std::io::Result<Socket> {
    match acceptor {
        Acceptor::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(stream.into())
        }
        Acceptor::Unix(listener) => Ok(listener.accept().await?.0.into()),
    }
}

/// Waits until the agent must close a connection, and returns why.
async fn close_reason(socket: &Socket, guard: &ConnectionGuard, caller: Caller) -> &'static str {
    let expired = async {
        match caller {
            Caller::Worker => guard.connection().idle_for(IDLE_MAX).await,
            Caller::Anyone => tokio::time::sleep(CONNECTION_TIME_MAX).await,
        }
    };
    tokio::select! {
        () = guard.connection().evicted() => "was closed to make room for a newer one",
        () = client_closed(socket, guard.connection()) => "was closed by its client",
        () = expired => "took too long",
    }
}

/// Waits until the client has closed the connection while a request is served. Without such a
/// request, the connection ends by itself.
async fn client_closed(socket: &Socket, connection: &Connection) {
    loop {
        let closed = socket.readable().await.is_ok_and(|ready| ready.is_read_closed());
        // Requests that it sent before may be unread until the current one is answered.
        tokio::time::sleep(CLOSE_DELAY).await;
        if closed && connection.is_busy() {
            return;
        }
    }
}

/// Waits until the server must stop.
async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    // Without a server there is nothing to serve.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a worker's connection has ended");
    }
}
