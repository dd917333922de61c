//! Where etcd is and how a replica proves itself there.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

use crate::etcd_error::EtcdError;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two pings of a connection with a call. etcd ends one with pings more often than
/// every 5 s, or without a call.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long the answer to a ping may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The address of a member of etcd: `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberUrl(Uri);

/// The members of etcd, and how a replica proves itself there.
#[derive(Clone, Debug)]
pub struct EtcdConnection {
    /// The members: at least one. They are tried in turn.
    pub members: Vec<MemberUrl>,
    /// The files for TLS; `None` for plain text.
    pub tls: Option<EtcdTls>,
    /// The user, if passwords prove users.
    pub user: Option<EtcdUser>,
}

/// The files for TLS, read for every new connection.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The authorities (PEM) that must have signed the certificates of the members.
    pub authorities: PathBuf,
    /// The certificate chain and the private key (PEM) that this replica shows.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Clone, Debug)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The file with the password; a newline at its end is no part of the password.
    pub password_file: PathBuf,
}

impl MemberUrl {
    /// Whether connections to it have TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }
}

impl FromStr for MemberUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = text.trim().parse::<Uri>().ok().filter(|url| {
            matches!(url.scheme_str(), Some("http" | "https"))
                && url.host().is_some_and(|host| !host.is_empty())
                && url.port_u16().is_some_and(|port| port != 0)
                && url.authority().is_some_and(|authority| !authority.as_str().contains('@'))
                && matches!(url.path(), "" | "/")
                && url.query().is_none()
        });
        url.map(Self).ok_or_else(|| {
            "expected https://HOST:PORT or http://HOST:PORT, for example https://10.0.0.1:2379"
                .to_owned()
        })
    }
}

impl fmt::Display for MemberUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

impl EtcdUser {
    /// The password that the file has now.
    pub(crate) async fn password(&self) -> Result<String, EtcdError> {
        let bytes = read("--etcd-password-file", &self.password_file).await?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
            Err(_) => Err(EtcdError::Files(format!(
                "--etcd-password-file {}: is not UTF-8: write the password as text",
                self.password_file.display()
            ))),
        }
    }
}

/// A channel to a member. It connects with its first call.
pub(crate) async fn channel(url: &MemberUrl, tls: Option<&EtcdTls>) -> Result<Channel, EtcdError> {
    let endpoint = Endpoint::from(url.0.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let endpoint = match tls.filter(|_| url.is_tls()) {
        None => endpoint,
        Some(tls) => endpoint.tls_config(tls_config(tls).await?).map_err(|error| {
            EtcdError::Files(format!(
                "--etcd-ca, --etcd-cert or --etcd-key cannot be used: {error}"
            ))
        })?,
    };
    Ok(endpoint.connect_lazy())
}

/// A token as it is shown in metadata.
pub(crate) fn token_value(token: &str) -> Result<AsciiMetadataValue, EtcdError> {
    let mut value: AsciiMetadataValue = token.parse().map_err(|_| {
        EtcdError::Invalid("etcd gave a token that is not printable text".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

async fn tls_config(tls: &EtcdTls) -> Result<ClientTlsConfig, EtcdError> {
    let authorities = Certificate::from_pem(read("--etcd-ca", &tls.authorities).await?);
    let config = ClientTlsConfig::new().ca_certificate(authorities);
    let Some((certificate, key)) = &tls.identity else { return Ok(config) };
    let certificate = read("--etcd-cert", certificate).await?;
    let key = read("--etcd-key", key).await?;
    Ok(config.identity(Identity::from_pem(certificate, key)))
}

async fn read(flag: &str, path: &Path) -> Result<Vec<u8>, EtcdError> {
    tokio::fs::read(path).await.map_err(|error| {
        EtcdError::Files(format!("{flag} {}: cannot be read ({error})", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_members_name_a_scheme_a_host_and_a_port_and_nothing_else() {
        for (text, shown, is_tls) in [
            ("https://10.0.0.1:2379", "https://10.0.0.1:2379", true),
            (" http://etcd-0.example:2379/", "http://etcd-0.example:2379", false),
            ("https://[::1]:2379", "https://[::1]:2379", true),
        ] {
            let url: MemberUrl = text.parse().expect("an address");
            assert_eq!((url.to_string().as_str(), url.is_tls()), (shown, is_tls));
        }
        for text in [
            "",
            "10.0.0.1:2379",
            "ftp://10.0.0.1:2379",
            "https://10.0.0.1",
            "https://10.0.0.1:0",
            "https://:2379",
            "https://10.0.0.1:2379/v3",
            "https://10.0.0.1:2379?a",
            "https://user:password@10.0.0.1:2379",
        ] {
            text.parse::<MemberUrl>().expect_err(text);
        }
    }
}
