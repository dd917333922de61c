//! The server of the worker API: HTTP/1, HTTP/2 and gRPC on one port and on a Unix socket. Health
//! and metrics have a port of their own, which other machines may use.
//!
//! Every `valid_for_ms` and `release_within_ms` in an answer counts from when the worker *sent* the
//! request, or opened the watch: a worker reads its clock before the request and adds to that.

mod browser_check;
mod connections;
mod grpc;
mod health;
mod http;
mod port;
mod request;
mod socket;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::{Router, middleware};
use leasehold_types::port_in_use;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::{Config, Socket};
use crate::file_limit::FileLimit;
use crate::worker::api::WorkerApi;
use connections::Connections;
use port::{Acceptor, Caller, Port};

/// Connections that wait to be accepted. With the default of 128, clients that connect at once wait
/// a second for their next try.
const BACKLOG: i32 = 1024;
/// The most bytes of a request's body.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// How long answers in flight may take when the agent exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The bound listeners; no connection is accepted yet.
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
        let failed = |flag: &str, address: SocketAddr, error: std::io::Error| match error.kind() {
            ErrorKind::AddrInUse => anyhow!(port_in_use(flag, address, "agent")),
            _ => anyhow!("cannot listen on {flag} {address}: {error}"),
        };
        let tcp = TcpListener::bind(config.listen).await;
        let tcp = tcp.map_err(|error| failed("--listen", config.listen, error))?;
        rustix::net::listen(&tcp, BACKLOG)
            .map_err(|error| failed("--listen", config.listen, error.into()))?;
        let address = tcp.local_addr().context("the port has no address")?;
        let unix = match &config.socket {
            None => None,
            Some(socket) => Some((bind_unix(socket).await?, socket.path.clone())),
        };
        let health = config.health_listen.map(|address| {
            health::bind(address).map_err(|error| failed("--health-listen", address, error))
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
        let limit = FileLimit::of_this_process();
        limit.log(self.health.is_some());
        let connections = Connections::new(limit.worker_connections(self.health.is_some()));
        let router = router(api).merge(grpc::reflection_router());
        let on_port = if anywhere {
            router.clone()
        } else {
            router.clone().layer(middleware::from_fn(browser_check::check))
        };
        let mut tasks = JoinSet::new();
        if let Some(listener) = self.health {
            let (router, stopped) = (http::health_router(api.clone()), stopped.clone());
            let connections = Connections::new(limit.health_connections());
            let port = Port { router, connections, stopped, caller: Caller::Anyone };
            tasks.spawn(port.accept_all(Acceptor::Tcp(listener)));
        }
        let caller = Caller::Worker;
        let port = Port {
            router: on_port,
            connections: connections.clone(),
            stopped: stopped.clone(),
            caller,
        };
        tasks.spawn(port.accept_all(Acceptor::Tcp(self.tcp)));
        let socket = self.unix.map(|(listener, path)| {
            let port = Port { router, connections, stopped, caller };
            tasks.spawn(port.accept_all(Acceptor::Unix(listener)));
            path
        });
        Server { stop, tasks, socket }
    }
}

/// The routes of the worker's port, without those that describe them.
pub(crate) fn router(api: &WorkerApi) -> Router {
    http::router(api.clone()).merge(grpc::router(api.clone()))
}

/// The server, as long as it runs.
#[derive(Debug)]
pub(crate) struct Server {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    socket: Option<PathBuf>,
}

impl Server {
    /// Finishes the answers in flight, accepts no further requests, and stops.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await;
        if let Some(path) = self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Binds a Unix socket. Replaces a socket on which no process listens any longer.
async fn bind_unix(socket: &Socket) -> anyhow::Result<UnixListener> {
    let path = &socket.path;
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("--socket {shown}")),
        Ok(found) if !found.file_type().is_socket() => {
            bail!("--socket {shown} exists and is not a socket: remove it, or give another path");
        }
        Ok(_) if tokio::net::UnixStream::connect(path).await.is_ok() => {
            bail!("--socket {shown} is in use by another process: give another path");
        }
        Ok(_) => std::fs::remove_file(path).with_context(|| format!("--socket {shown}"))?,
    }
    // The umask restricts access from the moment of the bind.
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777 & !socket.mode));
    let listener = UnixListener::bind(path);
    rustix::process::umask(mask);
    listener.with_context(|| format!("cannot listen on --socket {shown}"))
}
