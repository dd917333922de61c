//! Binds the ports before anything else starts, so that their addresses are known.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::anyhow;
use leasehold_types::port_in_use;
use tokio::net::{TcpListener, TcpSocket};

/// Connections that may wait to be accepted: after a failover all agents dial at once. The system
/// may allow fewer (net.core.somaxconn).
const BACKLOG: u32 = 16_384;

/// The bound sockets of both ports.
#[derive(Debug)]
pub struct Sockets {
    pub(crate) grpc: TcpListener,
    pub(crate) http: TcpListener,
}

impl Sockets {
    /// Binds both ports. Must run within a Tokio runtime.
    ///
    /// # Errors
    /// Names the flag and the address that cannot be bound.
    pub fn bind(listen: SocketAddr, http_listen: SocketAddr) -> anyhow::Result<Self> {
        let grpc = bind("--listen", listen)?;
        let http = bind("--http-listen", http_listen)?;
        Ok(Self { grpc, http })
    }

    /// The address of the gRPC port.
    ///
    /// # Errors
    /// If the system cannot return it.
    pub fn grpc_addr(&self) -> std::io::Result<SocketAddr> {
        self.grpc.local_addr()
    }

    /// The address of the HTTP port.
    ///
    /// # Errors
    /// If the system cannot return it.
    pub fn http_addr(&self) -> std::io::Result<SocketAddr> {
        self.http.local_addr()
    }
}

pub(crate) fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listen = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow!(port_in_use(flag, address, "coordinator")),
        _ => anyhow!("cannot listen on {flag} {address}: {error}"),
    })
}
