//! The agent's address. A connection made here belongs to one process of the agent's: it never
//! reconnects by itself, so its user notices that the process has changed.

use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint};

use crate::error::Error;

const DEFAULT: &str = "http://127.0.0.1:7411";
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// An agent's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    /// The socket's path.
    Unix(PathBuf),
}

impl Address {
    /// The address that the environment names, or the default one.
    pub(crate) fn from_environment() -> Result<Self, Error> {
        let named = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        match (named("LEASEHOLD_ADDR"), named("LEASEHOLD_SOCKET")) {
            (Some(address), _) => Self::parse(&address),
            (None, Some(path)) => Ok(Self::Unix(path.into())),
            (None, None) => Self::parse(DEFAULT),
        }
    }

    /// Reads `http://HOST:PORT` or `unix:PATH`.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let host = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let whole = host.filter(|host| !host.is_empty() && !host.contains('/'));
        let host = whole.ok_or_else(|| Error::Address(text.into()))?;
        let port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        Ok(Self::Tcp(if port { host.into() } else { format!("{host}:80") }))
    }

    /// A connection to the process that listens there now.
    pub(crate) async fn connect(&self) -> Result<Channel, Error> {
        let connecting = async {
            match self {
                Self::Tcp(host) => {
                    let socket = TcpStream::connect(host).await.map_err(Error::lost)?;
                    socket.set_nodelay(true).map_err(Error::lost)?;
                    channel(&format!("http://{host}"), socket).await
                }
                Self::Unix(path) => {
                    let socket = UnixStream::connect(path).await.map_err(Error::lost)?;
                    channel("http://localhost", socket).await
                }
            }
        };
        tokio::time::timeout(CONNECT, connecting).await.map_err(Error::lost)?
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => write!(f, "http://{host}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

async fn channel<S>(origin: &str, socket: S) -> Result<Channel, Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let once = Mutex::new(Some(TokioIo::new(socket)));
    let connector = tower::service_fn(move |_| {
        let socket = once.lock().expect("the lock is not poisoned").take();
        std::future::ready(socket.ok_or(std::io::Error::from(std::io::ErrorKind::NotConnected)))
    });
    let endpoint = Endpoint::from_shared(origin.to_owned()).map_err(Error::lost)?;
    endpoint.connect_with_connector(connector).await.map_err(Error::lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let tcp = |host: &str| Ok(Address::Tcp(host.into()));
        assert_eq!(Address::parse("http://127.0.0.1:7411"), tcp("127.0.0.1:7411"));
        assert_eq!(Address::parse("http://[::1]:7411/"), tcp("[::1]:7411"));
        assert_eq!(Address::parse("http://localhost"), tcp("localhost:80"));
        assert_eq!(Address::parse("unix:/run/a.sock"), Ok(Address::Unix("/run/a.sock".into())));
        for text in ["", "127.0.0.1:7411", "https://a:1", "http://", "http://a/b", "unix:"] {
            assert!(Address::parse(text).is_err(), "{text:?}");
        }
    }
}
