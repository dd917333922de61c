//! TLS configurations of the ports, from files or from the platform. A connection uses the newest
//! certificate at its handshake. An error names the flag, the file and the problem, and files with
//! an error never replace a working configuration.

mod reload;
pub mod webhook_clients;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use leasehold_driver::access::certificate::CertificateNames;
use leasehold_driver::platform::ServingCertificates;
use leasehold_driver::trust::{Bundle, Trust};
use leasehold_types::pem::PemContent;
use rustls::crypto::ring::default_provider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientCertVerifierBuilder, ClientHello, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio::sync::watch;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use self::reload::ReloadedFiles;

/// The largest file of certificates or keys, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The most certificates in one file.
const CERTIFICATES_MAX: usize = 1_024;
/// Characters of a certificate's subject that are shown.
const SUBJECT_CHARS_MAX: usize = 256;
/// The ALPN names of the protocols (RFC 7301).
const ALPN_HTTP2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The newest TLS configurations of a port.
pub type Certificates = watch::Receiver<ServerConfigs>;

/// The TLS configurations of a port.
#[derive(Clone, Debug)]
pub struct ServerConfigs {
    /// TLS 1.2 and 1.3 with HTTP/2, for gRPC.
    pub config: Arc<ServerConfig>,
    /// The same for HTTP/2 and HTTP/1.1, for API servers that call the webhook: without client
    /// certificates, unless [`webhook_clients`] wants them.
    pub https: Arc<ServerConfig>,
    /// When the certificate ends, if there is one.
    pub expires_at: Option<UnixTime>,
}

/// The authorities by which clients are checked.
#[derive(Clone, Debug)]
pub enum ClientAuthorities {
    /// None: no client is asked for a certificate.
    Nobody,
    /// A client may have a certificate that one of these has signed, or none.
    Optional(RootCertStore),
    /// Every client needs a certificate that one of these has signed.
    Required(RootCertStore),
}

impl ServerConfigs {
    /// Configurations without a certificate: each handshake fails.
    #[must_use]
    pub fn nothing() -> Self {
        let config = builder().with_no_client_auth().with_cert_resolver(Arc::new(NoCertificate));
        let config = Arc::new(config);
        Self { https: Arc::clone(&config), config, expires_at: None }
    }

    /// A certificate with its chain, the certificate itself first, and its key.
    ///
    /// # Errors
    /// If they do not belong together, or cannot be used.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        clients: ClientAuthorities,
    ) -> anyhow::Result<Self> {
        let expires_at = chain.first().and_then(expires_at);
        let (same_chain, same_key) = (chain.clone(), key.clone_key());
        let mut https = builder().with_no_client_auth().with_single_cert(same_chain, same_key)?;
        https.alpn_protocols = vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()];
        let builder = match clients {
            ClientAuthorities::Nobody => builder().with_no_client_auth(),
            ClientAuthorities::Optional(roots) => {
                let verifier = verifier(roots).allow_unauthenticated().build()?;
                builder().with_client_cert_verifier(verifier)
            }
            ClientAuthorities::Required(roots) => {
                builder().with_client_cert_verifier(verifier(roots).build()?)
            }
        };
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        Ok(Self { config: Arc::new(config), https: Arc::new(https), expires_at })
    }

    /// The same certificate; for HTTPS it asks clients for one that `verifier` accepts.
    fn with_https_clients(&self, verifier: Arc<dyn ClientCertVerifier>) -> Self {
        let resolver = Arc::clone(&self.https.cert_resolver);
        let builder = builder().with_client_cert_verifier(verifier);
        let mut https = builder.with_cert_resolver(resolver);
        https.alpn_protocols.clone_from(&self.https.alpn_protocols);
        Self { https: Arc::new(https), ..self.clone() }
    }
}

fn verifier(roots: RootCertStore) -> ClientCertVerifierBuilder {
    let provider = Arc::new(default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
}

fn builder() -> ConfigBuilder<ServerConfig, WantsVerifier> {
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers for TLS 1.2 and 1.3")
}

/// When a certificate ends; `None` if it cannot be decoded.
fn expires_at(certificate: &CertificateDer<'static>) -> Option<UnixTime> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

/// The names in a certificate; none if it cannot be decoded.
pub(crate) fn names_in(certificate: &CertificateDer<'_>) -> CertificateNames {
    let mut names = CertificateNames::default();
    let Ok((_, parsed)) = parse_x509_certificate(certificate) else { return names };
    let subject = parsed.subject().to_string();
    names.subject = subject.chars().filter(|c| !c.is_control()).take(SUBJECT_CHARS_MAX).collect();
    let Ok(Some(alternatives)) = parsed.subject_alternative_name() else { return names };
    for name in &alternatives.value.general_names {
        match name {
            GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
            GeneralName::DNSName(host) => names.hosts.push((*host).to_owned()),
            _ => {}
        }
    }
    names
}

/// A resolver without a certificate.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

/// Serves with the platform's certificates. A client may have a certificate that an authority of
/// the bundle has signed. Must run within a Tokio runtime.
#[must_use]
pub fn from_platform(mut issued: ServingCertificates, mut bundle: Bundle) -> Certificates {
    let (serving, certificates) = watch::channel(ServerConfigs::nothing());
    tokio::spawn(async move {
        loop {
            let newest = issued.borrow_and_update().clone();
            let authorities = bundle.borrow_and_update().clone();
            let configs = newest.zip(authorities).map(|(newest, authorities)| {
                let clients = ClientAuthorities::Optional(roots(authorities.as_bytes())?);
                ServerConfigs::new(newest.chain.clone(), newest.key.clone_key(), clients)
            });
            match configs {
                None => {}
                Some(Ok(newest)) => drop(serving.send_replace(newest)),
                Some(Err(error)) => {
                    tracing::error!(%error, "cannot serve with the platform's new certificate");
                }
            }
            tokio::select! {
                changed = issued.changed() => if changed.is_err() { return },
                changed = bundle.changed() => if changed.is_err() { return },
                () = serving.closed() => return,
            }
        }
    });
    certificates
}

fn roots(pem: &[u8]) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

/// The TLS configuration for dialling another replica, with its newest authorities.
///
/// # Errors
/// If the authorities are not known yet, or a file of the certificates cannot be read.
pub async fn client_tls(trust: &Trust) -> anyhow::Result<ClientTlsConfig> {
    let authorities = Certificate::from_pem(trust.authorities().await?);
    let tls = ClientTlsConfig::new().ca_certificate(authorities).domain_name(trust.server_name());
    Ok(match trust.identity().await? {
        Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
        None => tls,
    })
}

/// The files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of client certificates.
    pub clients: ClientCaFile,
}

/// The file with the authorities by which clients are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCaFile {
    /// None: no client is asked for a certificate.
    None,
    /// Every client needs a certificate.
    Required(PathBuf),
    /// If the file exists, a client may have a certificate.
    Optional(PathBuf),
}

impl ClientCaFile {
    fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::None => None,
            Self::Required(file) | Self::Optional(file) => Some(file),
        }
    }

    fn read(&self) -> anyhow::Result<Option<Vec<u8>>> {
        match self {
            Self::None => Ok(None),
            Self::Optional(file) if !file.exists() => Ok(None),
            Self::Required(file) => read("--tls-client-ca", file).map(Some),
            Self::Optional(file) => {
                // An issuer without an authority of its own leaves the file empty.
                Ok(Some(read("ca.crt", file)?).filter(|text| !text.trim_ascii().is_empty()))
            }
        }
    }

    fn authorities(&self, pem: Option<&[u8]>) -> anyhow::Result<ClientAuthorities> {
        Ok(match (self, pem) {
            (Self::Required(file), Some(pem)) => {
                ClientAuthorities::Required(authorities("--tls-client-ca", file, pem)?)
            }
            (Self::Optional(file), Some(pem)) => {
                ClientAuthorities::Optional(authorities("ca.crt", file, pem)?)
            }
            (_, None) | (Self::None, _) => ClientAuthorities::Nobody,
        })
    }
}

impl TlsFiles {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// Names the flag, the file and what is wrong.
    pub fn read(&self) -> anyhow::Result<ServerConfigs> {
        self.parse(&self.contents()?)
    }

    /// Reads the files now, and again whenever they change, until the receiver is dropped. Must run
    /// within a Tokio runtime.
    ///
    /// # Errors
    /// As [`Self::read`], for the files as they are now. Later errors are logged, and the last good
    /// files stay in use.
    pub fn follow(self) -> anyhow::Result<Certificates> {
        reload::follow(self)
    }
}

impl ReloadedFiles for TlsFiles {
    type Contents = FileContents;
    type Value = ServerConfigs;

    fn contents(&self) -> anyhow::Result<FileContents> {
        Ok(FileContents {
            cert: read("--tls-cert", &self.cert)?,
            key: read("--tls-key", &self.key)?,
            client_ca: self.clients.read()?,
        })
    }

    fn parse(&self, texts: &FileContents) -> anyhow::Result<ServerConfigs> {
        let chain = certificates("--tls-cert", &self.cert, &texts.cert)?;
        let key_file = format!("--tls-key {}", self.key.display());
        PemContent::Key.check(&key_file, &texts.key).map_err(anyhow::Error::msg)?;
        let key = PrivateKeyDer::from_pem_slice(&texts.key)
            .with_context(|| format!("{key_file}: not valid PEM"))?;
        let clients = self.clients.authorities(texts.client_ca.as_deref())?;
        ServerConfigs::new(chain, key, clients).map_err(|error| {
            let (cert, key) = (self.cert.display(), self.key.display());
            anyhow!("--tls-cert {cert} and --tls-key {key} cannot be used together: {error}")
        })
    }

    fn paths(&self) -> Vec<PathBuf> {
        let all = [&self.cert, &self.key].into_iter().chain(self.clients.path());
        all.cloned().collect()
    }

    fn log_use(&self, serving: &ServerConfigs) {
        let expires_at = serving.expires_at.map(|time| time.as_secs());
        let cert = self.cert.display();
        tracing::info!(%cert, expires_at, "new certificate in force for new connections");
    }
}

/// The contents of the files.
#[derive(Clone, PartialEq, Eq)]
pub struct FileContents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

fn certificates(
    flag: &str,
    file: &Path,
    pem: &[u8],
) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let named = format!("{flag} {}", file.display());
    PemContent::Certificate.check(&named, pem).map_err(anyhow::Error::msg)?;
    let mut all = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        all.push(certificate.with_context(|| format!("{named}: not valid PEM"))?);
    }
    if all.len() > CERTIFICATES_MAX {
        bail!("{named}: more than {CERTIFICATES_MAX} certificates");
    }
    Ok(all)
}

fn authorities(flag: &str, file: &Path, pem: &[u8]) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(flag, file, pem)? {
        let added = roots.add(certificate);
        added.with_context(|| format!("{flag} {}", file.display()))?;
    }
    Ok(roots)
}

fn read(flag: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    let named = || format!("{flag} {}", file.display());
    let unreadable = || format!("cannot read {}", named());
    let metadata = std::fs::metadata(file).with_context(unreadable)?;
    if !metadata.is_file() {
        bail!("{}: not a file", named());
    }
    if metadata.len() > FILE_BYTES_MAX {
        bail!("{}: larger than {FILE_BYTES_MAX} bytes", named());
    }
    std::fs::read(file).with_context(unreadable)
}
