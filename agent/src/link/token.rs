//! The token that proves which pod this agent is in. It is read from its file for every connection:
//! the kubelet, which mounts it there, renews it.

use std::path::Path;

use anyhow::{Context, bail};
use tonic::metadata::{Ascii, MetadataValue};

/// The value of the `authorization` header for the token in a file.
///
/// # Errors
/// Where the file cannot be read or holds no token, with its name; never with what it holds.
pub(crate) async fn bearer(path: &Path) -> anyhow::Result<MetadataValue<Ascii>> {
    let shown = path.display();
    let text = tokio::fs::read_to_string(path).await;
    let text = text.with_context(|| format!("cannot read --token-file {shown}"))?;
    let token = text.trim();
    if token.is_empty() {
        bail!("--token-file {shown} is empty: it must hold a token");
    }
    let Ok(mut value) = format!("Bearer {token}").parse::<MetadataValue<Ascii>>() else {
        bail!("--token-file {shown} does not hold a token: expected one line of plain text");
    };
    // Kept out of logs, and out of the tables of HTTP/2's header compression.
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_token_is_read_anew_and_what_is_none_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let missing = bearer(&path).await.expect_err("there is no file").to_string();
        assert!(missing.contains("cannot read --token-file"), "{missing}");
        for (text, value) in [("abc.def\n", "Bearer abc.def"), ("ghi", "Bearer ghi")] {
            std::fs::write(&path, text).expect("a file");
            assert_eq!(bearer(&path).await.expect("a token").to_str().expect("text"), value);
        }
        for (text, word) in [("\n", "empty"), ("two\nlines", "does not hold a token")] {
            std::fs::write(&path, text).expect("a file");
            let error = bearer(&path).await.expect_err(word).to_string();
            assert!(error.contains(word) && !error.contains("lines"), "{error}");
        }
    }
}
