//! The port for health and metrics, on which others than this machine may knock.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Binds the port. `[::]` is every address of both kinds; where this machine has no IPv6, every
/// address of IPv4.
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
        // Whatever the system's default is.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Whether a socket failed because the kernel was built or started without IPv6, or has it off.
fn lacks_ipv6(error: &Error) -> bool {
    let unknown = error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error());
    unknown || error.kind() == ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_address_is_one_of_ipv4_too_and_a_port_in_use_is_no_lack_of_ipv6() {
        let every = "[::]:0".parse().expect("an address");
        let listener = bind(every).expect("it listens");
        let port = listener.local_addr().expect("it is bound").port();
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("it is reached");
        let taken = listen((Ipv4Addr::UNSPECIFIED, port).into()).expect_err("it is in use");
        assert!(!lacks_ipv6(&taken), "{taken}");
        assert!(lacks_ipv6(&Error::from_raw_os_error(97)), "EAFNOSUPPORT");
    }
}
