//! Whom a replica trusts when it dials another one: a server with a certificate for the Service's
//! name, signed by the authority in force. The authority is looked up for every dial, since it
//! changes while replicas run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use tokio::sync::watch;

/// The newest authorities as PEM, the one that signs first; none until they are known.
pub type Bundle = watch::Receiver<Option<Arc<str>>>;

/// The file of the authorities beside a certificate from elsewhere, as cert-manager names it.
const AUTHORITY_FILE: &str = "ca.crt";

/// Whom to trust.
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
    /// Trusts what the newest bundle's authorities have signed for `server_name`.
    #[must_use]
    pub fn in_bundle(bundle: Bundle, server_name: String) -> Self {
        Self { source: Source::Bundle(bundle), server_name }
    }

    /// Trusts what the authorities in the file `ca.crt` beside the certificate have signed for
    /// `server_name`.
    #[must_use]
    pub fn beside(certificate: &Path, server_name: String) -> Self {
        Self { source: Source::File(certificate.with_file_name(AUTHORITY_FILE)), server_name }
    }

    /// The authorities for one dial, as PEM.
    ///
    /// # Errors
    /// Where the authorities are not known yet, or their file cannot be read.
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
