//! What the hostile client is told of its target, and how it connects to it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// The addresses that the client has: those of loopback from 127.0.1.0 on.
const SOURCES: usize = 16;
/// How long a connection may take to come about.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// The coordinators, and what the client has of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    /// The gRPC ports of both replicas.
    pub(crate) grpc: Vec<SocketAddr>,
    /// Their ports for probes.
    pub(crate) http: Vec<SocketAddr>,
    /// Their ports for webhooks.
    pub(crate) webhook: Vec<SocketAddr>,
    /// The authority of their certificates, as PEM.
    pub(crate) authority: String,
    /// The name in their certificates.
    pub(crate) server_name: String,
    /// Workers whose pods the client has created, with their tokens.
    pub(crate) own: Vec<OwnWorker>,
    /// Workers of others: cluster and name.
    pub(crate) others: Vec<(String, String)>,
    /// Connections that say nothing or half of a handshake.
    pub(crate) connections: usize,
    /// How long it attacks.
    pub(crate) seconds: u64,
}

/// A worker of the client's own namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OwnWorker {
    pub(crate) cluster: String,
    pub(crate) worker: String,
    pub(crate) token: String,
}

/// The protocol that a client offers in its handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// The target with what it takes to connect.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) target: Target,
    name: ServerName<'static>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Network {
    pub(crate) fn new(target: Target) -> Result<Arc<Self>> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(target.authority.as_bytes()) {
            roots.add(certificate?)?;
        }
        let config = |protocol: &[u8]| {
            let config = ClientConfig::builder().with_root_certificates(roots.clone());
            let mut config = config.with_no_client_auth();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        let (http1, http2) = (config(b"http/1.1"), config(b"h2"));
        let name = ServerName::try_from(target.server_name.clone())?;
        Ok(Arc::new(Self { target, name, http1, http2 }))
    }

    /// A connection from one of the client's addresses.
    pub(crate) async fn tcp(&self, index: usize, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((source(index), 0)))?;
        timeout(CONNECT_WITHIN, socket.connect(to)).await?
    }

    /// The same, after a whole handshake.
    pub(crate) async fn tls(
        &self,
        index: usize,
        to: SocketAddr,
        protocol: Protocol,
    ) -> io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(self.config(protocol));
        let stream = self.tcp(index, to).await?;
        timeout(CONNECT_WITHIN, connector.connect(self.name.clone(), stream)).await?
    }

    /// The first half of a handshake's first message.
    pub(crate) fn half_handshake(&self) -> Result<Vec<u8>> {
        let config = self.config(Protocol::Http2);
        let mut hello = Vec::new();
        ClientConnection::new(config, self.name.clone())?.write_tls(&mut hello)?;
        hello.truncate(hello.len() / 2);
        Ok(hello)
    }

    /// A connection for gRPC.
    pub(crate) async fn channel(&self, index: usize) -> Result<Channel> {
        let to = self.target.grpc[index % self.target.grpc.len()];
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.target.authority))
            .domain_name(&self.target.server_name);
        let endpoint = Endpoint::from_shared(format!("https://{to}"))?.tls_config(tls)?;
        let endpoint = endpoint.local_address(Some(source(index)));
        Ok(timeout(CONNECT_WITHIN, endpoint.connect()).await??)
    }

    fn config(&self, protocol: Protocol) -> Arc<ClientConfig> {
        Arc::clone(match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        })
    }
}

fn source(index: usize) -> IpAddr {
    IpAddr::from([127, 0, 1, u8::try_from(index % SOURCES).expect("few sources")])
}
