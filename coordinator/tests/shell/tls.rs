//! TLS and mutual TLS with real certificates, and files that are no good.

use std::path::PathBuf;

use leasehold_coordinator::run::Options;
use leasehold_coordinator::tls::TlsFiles;
use leasehold_proto::coordinator::v1::RefusalReason;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::agent::Agent;
use crate::replica::{PATIENCE, Replica, options};

/// An authority, and what it has signed, as files and as PEM.
struct Pki {
    folder: TempDir,
    ca: String,
    client: (String, String),
    /// Signed by another authority.
    stranger: (String, String),
}

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Issuer {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

fn signed(by: &Issuer, name: &str) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, by).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}

impl Pki {
    fn new() -> Self {
        let (ours, theirs) = (authority(), authority());
        let (cert, key) = signed(&ours, "localhost");
        let folder = TempDir::new().expect("a folder");
        let pki = Self {
            folder,
            ca: ours.pem(),
            client: signed(&ours, "agent"),
            stranger: signed(&theirs, "agent"),
        };
        for (file, text) in [
            ("cert.pem", cert.as_str()),
            ("key.pem", key.as_str()),
            ("ca.pem", pki.ca.as_str()),
            ("other-key.pem", pki.client.1.as_str()),
            ("empty.pem", ""),
            ("nonsense.pem", "-----BEGIN CERTIFICATE-----\nüü\n-----END CERTIFICATE-----\n"),
        ] {
            std::fs::write(pki.file(file), text).expect("a file");
        }
        pki
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self, cert: &str, key: &str, client_ca: Option<&str>) -> TlsFiles {
        let client_ca = client_ca.map(|name| self.file(name));
        TlsFiles { cert: self.file(cert), key: self.file(key), client_ca }
    }

    async fn replica(&self, client_ca: Option<&str>) -> Replica {
        let tls = self.files("cert.pem", "key.pem", client_ca).read().expect("good files");
        Replica::start(Options { tls: Some(tls), ..options() }).await
    }

    async fn connect(
        &self,
        replica: &Replica,
        identity: Option<&(String, String)>,
    ) -> Result<Channel, tonic::transport::Error> {
        let port = replica.grpc.port();
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .domain_name("localhost");
        if let Some((cert, key)) = identity {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}"));
        endpoint.expect("an address").tls_config(tls).expect("TLS").connect().await
    }
}

/// A replica without a role refuses a hello, which is an answer.
async fn is_answered(channel: Channel) -> bool {
    let Ok(mut agent) = Agent::over(channel).await else { return false };
    agent.say_hello("crawl", "w-0").await;
    match agent.next().await {
        Ok(Some(_)) => true,
        Ok(None) | Err(_) => false,
    }
}

#[tokio::test]
async fn agents_are_served_over_tls_and_plaintext_gets_nothing() {
    let pki = Pki::new();
    let replica = pki.replica(None).await;
    let mut plain = TcpStream::connect(replica.grpc).await.expect("a connection");
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("a write");
    let mut answer = Vec::new();
    // A reset is as good an end as any.
    let _ = timeout(PATIENCE, plain.read_to_end(&mut answer)).await.expect("an end");
    assert_eq!(answer, b"");
    let channel = pki.connect(&replica, None).await.expect("a connection");
    let mut agent = Agent::over(channel).await.expect("a session");
    agent.say_hello("crawl", "w-0").await;
    assert_eq!(agent.refusal().await.0, RefusalReason::NotLeader);
}

#[tokio::test]
async fn with_mutual_tls_only_clients_of_the_authority_are_served() {
    let pki = Pki::new();
    let replica = pki.replica(Some("ca.pem")).await;
    for identity in [None, Some(&pki.stranger)] {
        // With TLS 1.3 the client may learn of it only when it speaks.
        let served = match pki.connect(&replica, identity).await {
            Ok(channel) => is_answered(channel).await,
            Err(_) => false,
        };
        assert!(!served, "a client without a certificate of the authority is served");
    }
    let channel = pki.connect(&replica, Some(&pki.client)).await.expect("a connection");
    assert!(is_answered(channel).await);
}

#[test]
fn a_file_that_is_no_good_is_named_with_its_flag() {
    let pki = Pki::new();
    for (cert, key, client_ca, named) in [
        ("missing.pem", "key.pem", None, ["--tls-cert", "missing.pem", "No such file"]),
        ("empty.pem", "key.pem", None, ["--tls-cert", "empty.pem", "no certificate"]),
        ("nonsense.pem", "key.pem", None, ["--tls-cert", "nonsense.pem", "bad PEM"]),
        ("key.pem", "key.pem", None, ["--tls-cert", "key.pem", "no certificate"]),
        ("cert.pem", "missing.pem", None, ["--tls-key", "missing.pem", "No such file"]),
        ("cert.pem", "cert.pem", None, ["--tls-key", "cert.pem", "no private key"]),
        ("cert.pem", "other-key.pem", None, ["--tls-cert", "other-key.pem", "together"]),
        ("cert.pem", ".", None, ["--tls-key", ".", "not a file"]),
        ("cert.pem", "key.pem", Some("empty.pem"), ["--tls-client-ca", "empty.pem", "no cert"]),
    ] {
        let error = pki.files(cert, key, client_ca).read().expect_err(named[2]);
        let text = format!("{error:#}");
        for part in named {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        assert!(!text.contains('\n'), "{text:?}");
    }
}
