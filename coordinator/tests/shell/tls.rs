//! TLS and mutual TLS with real certificates, files that are replaced, and files that are no good.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_coordinator::run::Options;
use leasehold_coordinator_core::event::Event;
use leasehold_proto::coordinator::v1::RefusalReason;
use leasehold_server::tls::{ClientCaFile, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::agent::Agent;
use crate::http::get;
use crate::replica::{LONG, PATIENCE, Replica, desired, options, until};

/// An authority, and what it has signed, as files and as PEM.
pub(crate) struct Pki {
    folder: TempDir,
    pub(crate) ca: String,
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
    signed_until(by, name, 2040)
}

fn signed_until(by: &Issuer, name: &str, year: i32) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let certificate = params.signed_by(&key, by).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}

impl Pki {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn files(&self, cert: &str, key: &str, client_ca: Option<&str>) -> TlsFiles {
        let clients = match client_ca {
            Some(name) => ClientCaFile::Required(self.file(name)),
            None => ClientCaFile::None,
        };
        TlsFiles { cert: self.file(cert), key: self.file(key), clients }
    }

    pub(crate) async fn replica(&self, client_ca: Option<&str>) -> Replica {
        let tls = self.files("cert.pem", "key.pem", client_ca).follow().expect("good files");
        Replica::start(Options { tls: Some(tls), ..options() }).await
    }

    pub(crate) async fn connect(
        &self,
        replica: &Replica,
        identity: Option<&(String, String)>,
    ) -> Result<Channel, tonic::transport::Error> {
        connect(replica, &self.ca, identity).await
    }
}

/// Connects, trusting `ca` alone.
async fn connect(
    replica: &Replica,
    ca: &str,
    identity: Option<&(String, String)>,
) -> Result<Channel, tonic::transport::Error> {
    let port = replica.grpc.port();
    let mut tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("localhost");
    if let Some((cert, key)) = identity {
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}"));
    endpoint.expect("an address").tls_config(tls).expect("TLS").connect().await
}

/// A folder as the kubelet mounts one: links into a version, which a rename replaces as a whole.
struct Mount {
    folder: TempDir,
    versions: u32,
}

impl Mount {
    fn new() -> Self {
        let mut mount = Self { folder: TempDir::new().expect("a folder"), versions: 0 };
        mount.swap("", "");
        for file in ["tls.crt", "tls.key"] {
            let link = mount.folder.path().join(file);
            symlink(Path::new("..data").join(file), link).expect("a link");
        }
        mount
    }

    fn swap(&mut self, cert: &str, key: &str) {
        self.versions += 1;
        let (root, version) = (self.folder.path(), format!("..{}", self.versions));
        std::fs::create_dir(root.join(&version)).expect("a folder");
        std::fs::write(root.join(&version).join("tls.crt"), cert).expect("a file");
        std::fs::write(root.join(&version).join("tls.key"), key).expect("a file");
        symlink(&version, root.join("..data_tmp")).expect("a link");
        std::fs::rename(root.join("..data_tmp"), root.join("..data")).expect("a rename");
        let _ = std::fs::remove_dir_all(root.join(format!("..{}", self.versions - 1)));
    }

    fn files(&self) -> TlsFiles {
        let file = |name| self.folder.path().join(name);
        let clients = ClientCaFile::None;
        TlsFiles { cert: file("tls.crt"), key: file("tls.key"), clients }
    }
}

/// The Unix time at which the certificate that is served ends, as the metrics say.
async fn expiry(replica: &Replica) -> u64 {
    let (_, text) = get(replica.http, "/metrics").await;
    let name = "leasehold_certificate_expiry_timestamp_seconds ";
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.expect("a gauge").parse::<f64>().expect("a number") as u64
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

#[tokio::test]
async fn new_connections_get_the_certificate_that_replaces_one_and_sessions_go_on() {
    let (first, second) = (authority(), authority());
    let mut mount = Mount::new();
    let (cert, key) = signed(&first, "localhost");
    mount.swap(&cert, &key);
    let tls = mount.files().follow().expect("good files");
    let replica = Replica::start(Options { tls: Some(tls), ..options() }).await;
    replica.send(Event::Desired(Arc::new(desired()))).await;
    replica.elect(1, LONG).await;
    let channel = connect(&replica, &first.pem(), None).await.expect("a connection");
    let mut agent = Agent::over(channel).await.expect("a session");
    agent.say_hello("crawl", "w-0").await;
    agent.welcome().await;
    agent.report(1).await;
    let mut grant = agent.grant().await;
    let before = expiry(&replica).await;

    // A broken certificate, then a key of another one: the old files stay in use.
    mount.swap("garbage", &key);
    connect(&replica, &first.pem(), None).await.expect("the old certificate");
    let (cert, key) = signed_until(&second, "localhost", 2030);
    mount.swap(&cert, &signed(&first, "localhost").1);
    connect(&replica, &first.pem(), None).await.expect("the old certificate");

    mount.swap(&cert, &key);
    until(async || connect(&replica, &second.pem(), None).await.ok()).await;
    assert!(
        connect(&replica, &first.pem(), None).await.is_err(),
        "the old certificate is still served"
    );
    assert!(expiry(&replica).await < before, "the new one ends sooner");
    agent.beat(&grant).await;
    let nonce = agent.sent();
    while grant.nonce < nonce {
        grant = agent.grant().await;
    }
    assert!(replica.stop().await);
}

#[tokio::test]
async fn peers_that_stall_in_their_handshakes_delay_no_other_peer() {
    let pki = Pki::new();
    let replica = pki.replica(None).await;
    let mut stalled = Vec::new();
    for _ in 0..32 {
        let mut stream = TcpStream::connect(replica.grpc).await.expect("a connection");
        // The beginning of a record that never ends.
        stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).await.expect("room");
        stalled.push(stream);
    }
    let channel = pki.connect(&replica, None).await.expect("a connection");
    assert!(is_answered(channel).await);
    for stream in &mut stalled {
        let ended = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        // A reset is as good an end as any.
        let _ = ended.expect("a handshake has its time");
    }
}

#[test]
fn a_file_that_is_no_good_is_named_with_its_flag() {
    let pki = Pki::new();
    for (cert, key, client_ca, named) in [
        ("missing.pem", "key.pem", None, ["--tls-cert", "missing.pem", "No such file"]),
        ("empty.pem", "key.pem", None, ["--tls-cert", "empty.pem", "expected a certificate"]),
        ("nonsense.pem", "key.pem", None, ["--tls-cert", "nonsense.pem", "not valid PEM"]),
        ("key.pem", "key.pem", None, ["--tls-cert", "key.pem", "expected a certificate"]),
        ("cert.pem", "missing.pem", None, ["--tls-key", "missing.pem", "No such file"]),
        ("cert.pem", "cert.pem", None, ["--tls-key", "cert.pem", "expected a private key"]),
        ("cert.pem", "other-key.pem", None, ["--tls-cert", "other-key.pem", "together"]),
        ("cert.pem", ".", None, ["--tls-key", ".", "not a file"]),
        (
            "cert.pem",
            "key.pem",
            Some("empty.pem"),
            ["--tls-client-ca", "empty.pem", "expected a certificate"],
        ),
    ] {
        let error = pki.files(cert, key, client_ca).read().expect_err(named[2]);
        let text = format!("{error:#}");
        for part in named {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        assert!(!text.contains('\n'), "{text:?}");
    }
}
