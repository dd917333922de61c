//! The token that proves which pod this agent runs in. It is read from its file for every
//! connection, because the kubelet renews it.

use std::path::Path;

use anyhow::{Context, bail};
use tonic::metadata::{Ascii, MetadataValue};

/// The value of the `authorization` header for the token in a file.
///
/// # Errors
/// If the file cannot be read or contains no token. The error names the file, never its content.
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
    // Sensitive values stay out of logs and of the HTTP/2 header compression table.
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_the_token_again_each_time_and_names_an_invalid_file() {
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
