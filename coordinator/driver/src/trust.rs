//! Which certificates a replica accepts when it dials another one: those for the Service's name
//! that the current authority has signed. The authority is read for every dial, because it changes
//! while replicas run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use tokio::sync::watch;

/// The newest authorities as PEM, the one that signs first; `None` until they are known.
pub type Bundle = watch::Receiver<Option<Arc<str>>>;

/// The file with the authorities of an external certificate, named as cert-manager does.
const AUTHORITY_FILE: &str = "ca.crt";

/// The authorities to trust, and the server name to expect.
#[derive(Clone, Debug)]
pub struct Trust {
    source: Source,
    server_name: String,
}

#[derive(Clone, Debug)]
enum Source {
    Bundle(Bundle),
    File(PathBuf),
}

impl Trust {
    /// Trusts certificates for `server_name` that the newest bundle's authorities have signed.
    #[must_use]
    pub fn in_bundle(bundle: Bundle, server_name: String) -> Self {
        Self { source: Source::Bundle(bundle), server_name }
    }

    /// Trusts certificates for `server_name` that the authorities in the file `ca.crt` beside the
    /// certificate have signed.
    #[must_use]
    pub fn beside(certificate: &Path, server_name: String) -> Self {
        Self { source: Source::File(certificate.with_file_name(AUTHORITY_FILE)), server_name }
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
            Source::File(file) => {
                let read = tokio::fs::read(file).await;
                read.with_context(|| format!("cannot read {}", file.display()))
            }
        }
    }

    /// The name that the other replica's certificate must be for.
    #[must_use]
    pub fn server_name(&self) -> &str {
        &self.server_name
    }
}
