//! TLS and mutual TLS from files. A file that cannot be used is named with its flag and what is
//! wrong with it, before a socket is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

/// Bytes of one file of certificates or keys.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// How long a TLS handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The files that TLS is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs clients' certificates; with it, every client needs one.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// Names the flag, the file and what is wrong.
    pub fn read(&self) -> anyhow::Result<ServerTlsConfig> {
        let cert = read_certificates("--tls-cert", &self.cert)?;
        let key = read("--tls-key", &self.key)?;
        PrivateKeyDer::from_pem_slice(&key)
            .with_context(|| format!("--tls-key {}: no private key", self.key.display()))?;
        let mut config =
            ServerTlsConfig::new().identity(Identity::from_pem(cert, key)).timeout(HANDSHAKE_MAX);
        if let Some(file) = &self.client_ca {
            let ca = read_certificates("--tls-client-ca", file)?;
            config = config.client_ca_root(Certificate::from_pem(ca));
        }
        // Whether key and certificate belong together shows only when they are put to use.
        Server::builder().tls_config(config.clone()).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            anyhow::anyhow!(
                "--tls-cert {} and --tls-key {} cannot be used together: {}",
                self.cert.display(),
                self.key.display(),
                cause.unwrap_or_else(|| error.to_string())
            )
        })?;
        Ok(config)
    }
}

fn read_certificates(flag: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    let pem = read(flag, file)?;
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        certificate.with_context(|| format!("{flag} {}: bad PEM", file.display()))?;
        count += 1;
    }
    if count == 0 {
        bail!("{flag} {}: no certificate (PEM) in it", file.display());
    }
    Ok(pem)
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
