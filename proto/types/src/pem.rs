//! Files of certificates and keys (PEM), as flags name them: whether one has what its flag expects.

/// What a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PemContent {
    /// Certificates.
    Certificate,
    /// A private key.
    Key,
}

/// Files are read by their lines; a word of more bytes than any has is not shown.
const LABEL_BYTES_MAX: usize = 64;

impl PemContent {
    const fn name(self) -> &'static str {
        match self {
            Self::Certificate => "a certificate",
            Self::Key => "a private key",
        }
    }

    fn is_in(self, label: &str) -> bool {
        match self {
            Self::Certificate => label == "CERTIFICATE",
            // Also of an older format: EC PRIVATE KEY, RSA PRIVATE KEY.
            Self::Key => label.ends_with("PRIVATE KEY"),
        }
    }

    /// Checks what the file of a flag has: `file` is both, as in `--tls-ca ca.pem`.
    ///
    /// # Errors
    /// Says what is expected, and what is there.
    pub fn check(self, file: &str, text: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(text);
        let labels: Vec<&str> = text.lines().filter_map(label).collect();
        if labels.iter().any(|label| self.is_in(label)) {
            return Ok(());
        }
        let found = match labels.first() {
            _ if text.trim().is_empty() => "the file is empty".to_owned(),
            None => "the file has no line -----BEGIN …-----".to_owned(),
            Some(_) if labels.iter().any(|label| Self::Certificate.is_in(label)) => {
                "the file has a certificate".to_owned()
            }
            Some(_) if labels.iter().any(|label| Self::Key.is_in(label)) => {
                "the file has a private key".to_owned()
            }
            Some(label) => format!("the file has {label:?}"),
        };
        Err(format!("{file}: expected {} (PEM), but {found}", self.name()))
    }
}

/// What a block of PEM has that begins with this line.
fn label(line: &str) -> Option<&str> {
    let label = line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----")?;
    (label.len() <= LABEL_BYTES_MAX).then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_file_what_is_expected_and_what_is_there() {
        let block = |label: &str| format!("-----BEGIN {label}-----\nAA==\n-----END {label}-----\n");
        let [certificate, key] = ["CERTIFICATE", "EC PRIVATE KEY"].map(block);
        let check = |content: PemContent, text: &str| content.check("--flag f", text.as_bytes());
        assert_eq!(check(PemContent::Certificate, &certificate), Ok(()));
        assert_eq!(check(PemContent::Key, &format!("{certificate}{key}")), Ok(()));
        for (content, text, why) in [
            (PemContent::Certificate, " \n", "a certificate (PEM), but the file is empty"),
            (PemContent::Certificate, "DER", "a certificate (PEM), but the file has no line"),
            (PemContent::Certificate, &key, "a certificate (PEM), but the file has a private key"),
            (PemContent::Key, &certificate, "a private key (PEM), but the file has a certificate"),
            (PemContent::Key, &block("PUBLIC KEY"), "but the file has \"PUBLIC KEY\""),
        ] {
            let error = check(content, text).expect_err(why);
            assert!(error.starts_with("--flag f: expected ") && error.contains(why), "{error}");
        }
    }
}
