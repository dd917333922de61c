//! The worker API's server: HTTP/1, HTTP/2 and gRPC on one port, and the same on a Unix socket. On
//! a port of its own, health and metrics, which others than this machine may ask for.
//!
//! Every `valid_for_ms` and `release_within_ms` that it answers counts from when the worker
//! *asked*, for a watch from when the watch was asked for: a worker takes its clock's reading
//! before the request and adds to that.

mod grpc;
mod guard;
mod health;
mod http;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::middleware;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::config::{Config, Socket};
use crate::worker::api::WorkerApi;

/// Connections of workers at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
/// Connections of kubelets and scrapers at once.
const HEALTH_CONNECTIONS_MAX: usize = 64;
/// How long the head of a request from another machine may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long all of a connection from another machine may take.
const VISIT_MAX: Duration = Duration::from_secs(30);
/// Bytes of one request's head.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Requests at once on one HTTP/2 connection.
const REQUESTS_PER_CONNECTION_MAX: u32 = 512;
/// How long answers that are on their way may take when the agent ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long to wait when the system has no connection to give (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where the worker API listens; nothing is answered yet.
#[derive(Debug)]
pub(crate) struct Listeners {
    tcp: TcpListener,
    address: SocketAddr,
    unix: Option<(UnixListener, PathBuf)>,
    health: Option<TcpListener>,
}

impl Listeners {
    /// Binds the port and the socket.
    pub(crate) async fn bind(config: &Config) -> anyhow::Result<Self> {
        let tcp = TcpListener::bind(config.listen)
            .await
            .with_context(|| format!("--listen {}: the port cannot be used", config.listen))?;
        let address = tcp.local_addr().context("the port has no address")?;
        let unix = match &config.socket {
            None => None,
            Some(socket) => Some((bind_unix(socket).await?, socket.path.clone())),
        };
        let health = config.health_listen.map(|address| {
            health::bind(address)
                .with_context(|| format!("--health-listen {address}: the port cannot be used"))
        });
        Ok(Self { tcp, address, unix, health: health.transpose()? })
    }

    /// The port's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the server is stopped.
    pub(crate) fn serve(self, api: &WorkerApi, anywhere: bool) -> Server {
        let (stop, stopped) = watch::channel(false);
        let visited = Arc::new(AtomicBool::new(false));
        let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let router = http::router(api.clone()).merge(grpc::router(api.clone()));
        let on_port = match anywhere {
            true => router.clone(),
            false => router.clone().layer(middleware::from_fn(guard::check)),
        };
        let mut tasks = JoinSet::new();
        if let Some(listener) = self.health {
            let (router, stopped) = (http::health_router(api.clone()), stopped.clone());
            let limit = Arc::new(Semaphore::new(HEALTH_CONNECTIONS_MAX));
            let caller = Caller::Anyone;
            let port = Port { router, limit, stopped, visited: visited.clone(), caller };
            tasks.spawn(port.accept_all(Acceptor::Tcp(listener)));
        }
        let caller = Caller::Worker;
        let port = Port {
            router: on_port,
            limit: limit.clone(),
            stopped: stopped.clone(),
            visited: visited.clone(),
            caller,
        };
        tasks.spawn(port.accept_all(Acceptor::Tcp(self.tcp)));
        let socket = self.unix.map(|(listener, path)| {
            let port = Port { router, limit, stopped, visited: visited.clone(), caller };
            tasks.spawn(port.accept_all(Acceptor::Unix(listener)));
            path
        });
        Server { stop, tasks, socket, visited }
    }
}

/// The server, as long as it runs.
#[derive(Debug)]
pub(crate) struct Server {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    socket: Option<PathBuf>,
    visited: Arc<AtomicBool>,
}

impl Server {
    /// Whether anybody has ever connected: a kubelet that looks whether it lives, or a worker.
    pub(crate) fn was_visited(&self) -> bool {
        self.visited.load(Relaxed)
    }

    /// Lets answers that are on their way out, takes no more requests, and ends.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(FAREWELL, all).await;
        if let Some(path) = self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Binds a Unix socket, in the place of one that nobody listens on any more.
async fn bind_unix(socket: &Socket) -> anyhow::Result<UnixListener> {
    let path = &socket.path;
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("--socket {shown}")),
        Ok(found) if !found.file_type().is_socket() => {
            bail!("--socket {shown}: a file that is no socket is there");
        }
        Ok(_) if tokio::net::UnixStream::connect(path).await.is_ok() => {
            bail!("--socket {shown} is in use by another process");
        }
        Ok(_) => std::fs::remove_file(path).with_context(|| format!("--socket {shown}"))?,
    }
    // The mask makes the socket closed to others from its first moment on.
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777 & !socket.mode));
    let listener = UnixListener::bind(path);
    rustix::process::umask(mask);
    listener.with_context(|| format!("--socket {shown} cannot be used"))
}

enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Who may come to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// Whom this machine lets in: a worker may take its time.
    Worker,
    /// Whoever reaches it: HTTP/1 only, promptly, and one request a connection, so that nobody
    /// can sit on all of them and keep the kubelet out.
    Anyone,
}

struct Port {
    router: Router,
    limit: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
    /// Somebody has come.
    visited: Arc<AtomicBool>,
    caller: Caller,
}

impl Port {
    async fn accept_all(self, acceptor: Acceptor) {
        let mut connections = JoinSet::new();
        let mut stopped = self.stopped.clone();
        loop {
            let permit = self.limit.clone().acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            tokio::select! {
                accepted = self.accept(&acceptor, permit, &mut connections) => {
                    if let Err(error) = accepted {
                        tracing::warn!(%error, "a worker's connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
                () = wanted(&mut stopped) => break,
            }
            while connections.try_join_next().is_some() {}
        }
        while connections.join_next().await.is_some() {}
    }

    async fn accept(
        &self,
        acceptor: &Acceptor,
        permit: OwnedSemaphorePermit,
        connections: &mut JoinSet<()>,
    ) -> std::io::Result<()> {
        match acceptor {
            Acceptor::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                connections.spawn(self.converse(stream, permit));
            }
            Acceptor::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                connections.spawn(self.converse(stream, permit));
            }
        }
        Ok(())
    }

    fn converse<S>(
        &self,
        stream: S,
        permit: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> + Send + use<S>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.visited.store(true, Relaxed);
        let service = TowerToHyperService::new(self.router.clone());
        let mut stopped = self.stopped.clone();
        let caller = self.caller;
        async move {
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).max_buf_size(HEADER_BYTES_MAX);
            builder.http1().header_read_timeout(match caller {
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
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => say_end(ended),
                () = wanted(&mut stopped) => {
                    connection.as_mut().graceful_shutdown();
                    say_end(connection.await);
                }
                () = outstayed(caller) => tracing::debug!("a connection takes too long"),
            }
            drop(permit);
        }
    }
}

/// Waits until one who came so is to go.
async fn outstayed(caller: Caller) {
    match caller {
        Caller::Worker => std::future::pending().await,
        Caller::Anyone => tokio::time::sleep(VISIT_MAX).await,
    }
}

/// Waits until the server is to stop.
async fn wanted(stopped: &mut watch::Receiver<bool>) {
    // Without a server there is nobody left to serve for.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn say_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a worker's connection has ended");
    }
}
