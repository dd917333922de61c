//! Which certificates a replica accepts when it dials another one: those for the Service's name
//! that the current authority has signed. It shows its own, which is such a certificate, too. All
//! are read for every dial, because they change while replicas run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use pem::Pem;
use tokio::sync::watch;

use crate::platform::ServingCertificates;

/// The newest authorities as PEM, the one that signs first; `None` until they are known.
pub type Bundle = watch::Receiver<Option<Arc<str>>>;

/// The file with the authorities of an external certificate, named as cert-manager does.
const AUTHORITY_FILE: &str = "ca.crt";

/// The authorities to trust, the server name to expect, and the certificate to show.
#[derive(Clone, Debug)]
pub struct Trust {
    source: Source,
    own: OwnCertificate,
    server_name: String,
}

#[derive(Clone, Debug)]
enum Source {
    Bundle(Bundle),
    File(PathBuf),
}

/// Where a replica's own certificate is.
#[derive(Clone, Debug)]
enum OwnCertificate {
    None,
    Issued(ServingCertificates),
    Files { certificate: PathBuf, key: PathBuf },
}

impl Trust {
    /// Trusts certificates for `server_name` that the newest bundle's authorities have signed.
    #[must_use]
    pub fn in_bundle(bundle: Bundle, server_name: String) -> Self {
        Self { source: Source::Bundle(bundle), own: OwnCertificate::None, server_name }
    }

    /// The same, and shows the newest of these certificates.
    #[must_use]
    pub fn showing(self, issued: ServingCertificates) -> Self {
        Self { own: OwnCertificate::Issued(issued), ..self }
    }

    /// Trusts certificates for `server_name` that the authorities in the file `ca.crt` beside the
    /// certificate have signed, and shows that certificate.
    #[must_use]
    pub fn beside(certificate: PathBuf, key: PathBuf, server_name: String) -> Self {
        let source = Source::File(authority_beside(&certificate));
        Self { source, own: OwnCertificate::Files { certificate, key }, server_name }
    }

    /// The authorities for one dial, as PEM.
    ///
    /// # Errors
    /// If the authorities are not known yet, or their file cannot be read.
    pub async fn authorities(&self) -> anyhow::Result<Vec<u8>> {
        match &self.source {
            Source::Bundle(bundle) => match &*bundle.borrow() {
                Some(bundle) => Ok(bundle.as_bytes().to_vec()),
                None => bail!("the certificate authority is not known yet"),
            },
            Source::File(file) => read(file).await,
        }
    }

    /// The certificate to show in one dial, with its chain, and its key, as PEM; `None` if there is
    /// none yet.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub async fn identity(&self) -> anyhow::Result<Option<(Vec<u8>, Vec<u8>)>> {
        match &self.own {
            OwnCertificate::None => Ok(None),
            OwnCertificate::Issued(issued) => Ok(issued.borrow().as_ref().map(|issued| {
                let chain = issued
                    .chain
                    .iter()
                    .map(|certificate| Pem::new("CERTIFICATE", certificate.as_ref()));
                let chain = pem::encode_many(&chain.collect::<Vec<_>>());
                let key = pem::encode(&Pem::new("PRIVATE KEY", issued.key.secret_der()));
                (chain.into_bytes(), key.into_bytes())
            })),
            OwnCertificate::Files { certificate, key } => {
                Ok(Some((read(certificate).await?, read(key).await?)))
            }
        }
    }

    /// The name that the other replica's certificate must be for.
    #[must_use]
    pub fn server_name(&self) -> &str {
        &self.server_name
    }
}

/// The file with the authorities of an external certificate.
#[must_use]
pub fn authority_beside(certificate: &Path) -> PathBuf {
    certificate.with_file_name(AUTHORITY_FILE)
}

async fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    tokio::fs::read(file).await.with_context(|| format!("cannot read {}", file.display()))
}
