//! TLS configurations of the ports, from files or from the platform. A connection uses the newest
//! certificate at its handshake. An error names the flag, the file and the problem, and files with
//! an error never replace a working configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use leasehold_driver::platform::ServingCertificates;
use leasehold_driver::trust::Trust;
use leasehold_driver::watcher::Watcher;
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tonic::transport::{Certificate, ClientTlsConfig};

/// The largest file of certificates or keys, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The most certificates in one file.
const CERTIFICATES_MAX: usize = 1_024;
/// How often files are read without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Certificate and key are replaced one after the other: an error is logged only if it lasts this
/// long.
const ERROR_GRACE: Duration = Duration::from_secs(1);
/// The most rounds of watching files whose links keep changing.
const ROUNDS_MAX: usize = 4;
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
    /// The same for HTTP/2 and HTTP/1.1 without client certificates, for API servers that call the
    /// webhook.
    pub https: Arc<ServerConfig>,
    /// When the certificate ends, if there is one.
    pub expires_at: Option<UnixTime>,
}

impl ServerConfigs {
    /// Configurations without a certificate: each handshake fails.
    #[must_use]
    pub fn nothing() -> Self {
        let config = builder().with_no_client_auth().with_cert_resolver(Arc::new(NoCertificate));
        let config = Arc::new(config);
        Self { https: Arc::clone(&config), config, expires_at: None }
    }

    /// A certificate with its chain, the certificate itself first, and its key. With `clients`,
    /// every client needs a certificate that one of these has signed.
    ///
    /// # Errors
    /// If they do not belong together, or cannot be used.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        clients: Option<RootCertStore>,
    ) -> anyhow::Result<Self> {
        let expires_at = chain.first().and_then(expires_at);
        let (same_chain, same_key) = (chain.clone(), key.clone_key());
        let mut https = builder().with_no_client_auth().with_single_cert(same_chain, same_key)?;
        https.alpn_protocols = vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()];
        let builder = match clients {
            None => builder().with_no_client_auth(),
            Some(roots) => {
                let provider = Arc::new(default_provider());
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder().with_client_cert_verifier(verifier.build()?)
            }
        };
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        Ok(Self { config: Arc::new(config), https: Arc::new(https), expires_at })
    }
}

fn builder() -> ConfigBuilder<ServerConfig, WantsVerifier> {
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers for TLS 1.2 and 1.3")
}

/// When a certificate ends; `None` if it cannot be decoded.
fn expires_at(certificate: &CertificateDer<'static>) -> Option<UnixTime> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

/// A resolver without a certificate.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

/// Serves with the platform's certificates. Must run within a Tokio runtime.
#[must_use]
pub fn from_platform(mut issued: ServingCertificates) -> Certificates {
    let (serving, certificates) = watch::channel(ServerConfigs::nothing());
    tokio::spawn(async move {
        loop {
            let newest = issued.borrow_and_update().clone();
            match newest.map(|it| ServerConfigs::new(it.chain.clone(), it.key.clone_key(), None)) {
                None => {}
                Some(Ok(newest)) => drop(serving.send_replace(newest)),
                Some(Err(error)) => {
                    tracing::error!(%error, "cannot serve with the platform's new certificate");
                }
            }
            tokio::select! {
                changed = issued.changed() => if changed.is_err() { return },
                () = serving.closed() => return,
            }
        }
    });
    certificates
}

/// The TLS configuration for dialling another replica, with its newest authorities.
///
/// # Errors
/// If the authorities are not known yet, or their file cannot be read.
pub async fn client_tls(trust: &Trust) -> anyhow::Result<ClientTlsConfig> {
    let authorities = Certificate::from_pem(trust.authorities().await?);
    Ok(ClientTlsConfig::new().ca_certificate(authorities).domain_name(trust.server_name()))
}

/// The files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of client certificates; with it, every client needs a certificate.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// Names the flag, the file and what is wrong.
    pub fn read(&self) -> anyhow::Result<ServerConfigs> {
        self.serving(&self.texts()?)
    }

    /// Reads the files now, and again whenever they change, until the receiver is dropped. Must run
    /// within a Tokio runtime.
    ///
    /// # Errors
    /// As [`Self::read`], for the files as they are now. Later errors are logged, and the last good
    /// files stay in use.
    pub fn follow(self) -> anyhow::Result<Certificates> {
        let texts = self.texts()?;
        let (serving, certificates) = watch::channel(self.serving(&texts)?);
        let (watcher, wakes) = Watcher::new();
        let follower = FileReloader { files: Arc::new(self), texts, serving, error: None };
        tokio::spawn(follower.run(watcher, wakes));
        Ok(certificates)
    }

    fn texts(&self) -> anyhow::Result<FileContents> {
        let client_ca = self.client_ca.as_ref();
        Ok(FileContents {
            cert: read("--tls-cert", &self.cert)?,
            key: read("--tls-key", &self.key)?,
            client_ca: client_ca.map(|file| read("--tls-client-ca", file)).transpose()?,
        })
    }

    fn serving(&self, texts: &FileContents) -> anyhow::Result<ServerConfigs> {
        let chain = certificates("--tls-cert", &self.cert, &texts.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&texts.key).with_context(|| {
            format!("--tls-key {}: expected a private key (PEM)", self.key.display())
        })?;
        let clients = match (&self.client_ca, &texts.client_ca) {
            (Some(file), Some(text)) => Some(authorities(file, text)?),
            _ => None,
        };
        ServerConfigs::new(chain, key, clients).map_err(|error| {
            let (cert, key) = (self.cert.display(), self.key.display());
            anyhow!("--tls-cert {cert} and --tls-key {key} cannot be used together: {error}")
        })
    }

    fn paths(&self) -> Vec<PathBuf> {
        let all = [&self.cert, &self.key].into_iter().chain(&self.client_ca);
        all.filter_map(|path| std::path::absolute(path).ok()).collect()
    }
}

/// The contents of the files.
#[derive(Clone, PartialEq, Eq)]
struct FileContents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

fn certificates(
    flag: &str,
    file: &Path,
    pem: &[u8],
) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let named = || format!("{flag} {}", file.display());
    let mut all = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        all.push(certificate.with_context(|| format!("{}: not valid PEM", named()))?);
    }
    match all.len() {
        0 => bail!("{}: expected a certificate (PEM)", named()),
        1..=CERTIFICATES_MAX => Ok(all),
        _ => bail!("{}: more than {CERTIFICATES_MAX} certificates", named()),
    }
}

fn authorities(file: &Path, pem: &[u8]) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("--tls-client-ca", file, pem)? {
        let added = roots.add(certificate);
        added.with_context(|| format!("--tls-client-ca {}", file.display()))?;
    }
    Ok(roots)
}

fn read(flag: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    let named = || format!("{flag} {}", file.display());
    let metadata = std::fs::metadata(file).with_context(named)?;
    if !metadata.is_file() {
        bail!("{}: not a file", named());
    }
    if metadata.len() > FILE_BYTES_MAX {
        bail!("{}: larger than {FILE_BYTES_MAX} bytes", named());
    }
    std::fs::read(file).with_context(named)
}

/// Reads the files again when they change.
struct FileReloader {
    files: Arc<TlsFiles>,
    /// The contents in use.
    texts: FileContents,
    serving: watch::Sender<ServerConfigs>,
    error: Option<ReloadError>,
}

/// The problem of the files as they are now.
struct ReloadError {
    problem: String,
    since: Instant,
    is_logged: bool,
}

impl FileReloader {
    async fn run(mut self, mut watcher: Watcher, mut wakes: mpsc::Receiver<()>) {
        let mut is_notified = true;
        loop {
            let files = Arc::clone(&self.files);
            let check = tokio::task::spawn_blocking(move || {
                let paths = files.paths();
                let mut texts = files.texts();
                for _ in 0..ROUNDS_MAX {
                    if !watcher.watch(&[], &paths) {
                        break;
                    }
                    texts = files.texts();
                }
                (watcher, texts)
            });
            // Fails only if the runtime shuts down, which also ends this task.
            let Ok((back, texts)) = check.await else { return };
            watcher = back;
            let next_check = self.take(texts);
            tokio::select! {
                () = self.serving.closed() => return,
                woken = wakes.recv(), if is_notified => is_notified = woken.is_some(),
                () = sleep(next_check) => {}
            }
        }
    }

    /// Uses the files if they are valid. Returns when to check again.
    fn take(&mut self, texts: anyhow::Result<FileContents>) -> Duration {
        let read = texts.and_then(|texts| {
            let is_new = texts != self.texts;
            let serving = is_new.then(|| self.files.serving(&texts)).transpose()?;
            Ok((texts, serving))
        });
        match read {
            Ok((texts, Some(serving))) => {
                let expires_at = serving.expires_at.map(|time| time.as_secs());
                tracing::info!(
                    cert = %self.files.cert.display(), expires_at,
                    "new certificate in force for new connections"
                );
                self.texts = texts;
                self.serving.send_replace(serving);
                self.error = None;
                POLL_INTERVAL
            }
            Ok((_, None)) => {
                if self.error.take().is_some_and(|error| error.is_logged) {
                    tracing::info!("the TLS files are valid again");
                }
                POLL_INTERVAL
            }
            Err(error) => self.note_error(format!("{error:#}")),
        }
    }

    fn note_error(&mut self, problem: String) -> Duration {
        let now = Instant::now();
        let known = self.error.take().filter(|known| known.problem == problem);
        let mut error = known.unwrap_or(ReloadError { problem, since: now, is_logged: false });
        let is_old = now.duration_since(error.since) >= ERROR_GRACE;
        if is_old && !error.is_logged {
            error.is_logged = true;
            let problem = &error.problem;
            tracing::warn!(%problem, "cannot use the new TLS files: the old ones stay in use");
        }
        let next_check = if error.is_logged { POLL_INTERVAL } else { ERROR_GRACE };
        self.error = Some(error);
        next_check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(name: &str) -> FileContents {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        FileContents { cert: cert.into(), key: key.into(), client_ca: None }
    }

    #[test]
    fn invalid_files_are_logged_only_if_they_stay_invalid_and_replace_nothing() {
        let files = TlsFiles { cert: "c.pem".into(), key: "k.pem".into(), client_ca: None };
        let old = texts("old");
        let first = files.serving(&old).expect("good");
        let (serving, certificates) = watch::channel(first.clone());
        let is_first = || Arc::ptr_eq(&certificates.borrow().config, &first.config);
        let files = Arc::new(files);
        let mut follower = FileReloader { files, texts: old.clone(), serving, error: None };
        let is_logged = |follower: &FileReloader| follower.error.as_ref().map(|it| it.is_logged);
        // A new certificate whose key has not been written yet.
        let new = texts("new");
        let half = FileContents { key: old.key.clone(), ..new.clone() };
        for _ in 0..3 {
            assert_eq!(follower.take(Ok(half.clone())), ERROR_GRACE);
        }
        assert_eq!((is_logged(&follower), is_first()), (Some(false), true));
        follower.error.as_mut().expect("an error").since -= ERROR_GRACE;
        assert_eq!(follower.take(Ok(half.clone())), POLL_INTERVAL);
        assert_eq!((is_logged(&follower), is_first()), (Some(true), true));
        // The old files again.
        follower.take(Ok(old));
        assert_eq!((is_logged(&follower), is_first()), (None, true));
        // The new certificate and its key.
        follower.take(Ok(half));
        assert_eq!(follower.take(Ok(new)), POLL_INTERVAL);
        assert_eq!((is_logged(&follower), is_first()), (None, false));
    }
}
