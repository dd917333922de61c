//! Kubeconfigs: where an API server is, whom to trust, and as whom to speak.

use std::path::Path;

use serde_json::json;

/// As whom to speak to the API server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Speaker<'a> {
    /// The holder of a client certificate, by the files of certificate and key.
    Certificate { certificate: &'a Path, key: &'a Path },
    /// The bearer of a token.
    Token(&'a str),
}

/// Writes a kubeconfig into `file`; `authority` is the file of the trusted certificate.
pub(super) fn write(file: &Path, url: &str, authority: &Path, speaker: Speaker<'_>) {
    let user = match speaker {
        Speaker::Certificate { certificate, key } => {
            json!({ "client-certificate": certificate, "client-key": key })
        }
        Speaker::Token(token) => json!({ "token": token }),
    };
    // Every JSON text is YAML, too.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "tests",
            "cluster": { "server": url, "certificate-authority": authority },
        }],
        "users": [{ "name": "tests", "user": user }],
        "contexts": [{ "name": "tests", "context": { "cluster": "tests", "user": "tests" } }],
        "current-context": "tests",
    });
    std::fs::write(file, config.to_string()).expect("the kubeconfig is written");
}
