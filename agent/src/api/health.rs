//! The port for health and metrics, which other machines may use.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// The backlog of connections to accept.
const BACKLOG: i32 = 128;

/// Binds the port. `[::]` means all IPv6 and IPv4 addresses; all IPv4 addresses if this machine has
/// no IPv6.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener> {
    let every = address.is_ipv6() && address.ip().is_unspecified();
    let listener = match listen(address) {
        Err(error) if every && lacks_ipv6(&error) => {
            tracing::info!(%error, "this machine has no IPv6: health is served on IPv4 only");
            listen((Ipv4Addr::UNSPECIFIED, address.port()).into())?
        }
        listener => listener?,
    };
    tracing::info!(address = %listener.local_addr()?, "health and metrics are served");
    Ok(listener)
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // The default depends on the system.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Whether a socket failed because IPv6 is missing or disabled in the kernel.
fn lacks_ipv6(error: &Error) -> bool {
    let unknown = error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error());
    unknown || error.kind() == ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_addresses_include_ipv4_and_a_port_in_use_is_not_missing_ipv6() {
        let every = "[::]:0".parse().expect("an address");
        let listener = bind(every).expect("it listens");
        let port = listener.local_addr().expect("it is bound").port();
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
        let taken = listen((Ipv4Addr::UNSPECIFIED, port).into()).expect_err("it is in use");
        assert!(!lacks_ipv6(&taken), "{taken}");
        assert!(lacks_ipv6(&Error::from_raw_os_error(97)), "EAFNOSUPPORT");
    }
}
