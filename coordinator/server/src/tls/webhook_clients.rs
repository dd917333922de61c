//! Who may call the webhooks: a client whose certificate an authority of the administrator's has
//! signed, if one is configured. Others end in the handshake, before they have sent a request.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::watch;
use x509_parser::parse_x509_certificate;

use super::reload::{self, ReloadedFiles};
use super::{Certificates, authorities, names_in, read, verifier};

const FLAG: &str = "--webhook-client-ca";

/// By which certificate API servers are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookClients {
    /// The file with the authorities that sign it.
    pub authorities: PathBuf,
    /// Its common name, or a DNS name in it; any if it is `None`.
    pub name: Option<String>,
}

impl ReloadedFiles for WebhookClients {
    type Contents = Vec<u8>;
    type Value = Arc<dyn ClientCertVerifier>;

    fn contents(&self) -> anyhow::Result<Vec<u8>> {
        read(FLAG, &self.authorities)
    }

    fn parse(&self, contents: &Vec<u8>) -> anyhow::Result<Self::Value> {
        let roots = authorities(FLAG, &self.authorities, contents)?;
        let signed = verifier(roots).build()?;
        Ok(Arc::new(NamedClient { signed, name: self.name.clone() }))
    }

    fn paths(&self) -> Vec<PathBuf> {
        vec![self.authorities.clone()]
    }

    fn log_use(&self, _: &Self::Value) {
        let file = self.authorities.display();
        tracing::info!(%file, "new authorities of the webhooks' clients in force");
    }
}

/// The certificates of a port whose HTTPS clients must be `clients`; the newest of both. Must run
/// within a Tokio runtime.
///
/// # Errors
/// Names the file and what is wrong with it as it is now. Later errors are logged, and the last
/// good file stays in use.
pub fn require(
    mut certificates: Certificates,
    clients: WebhookClients,
) -> anyhow::Result<Certificates> {
    let mut verifiers = reload::follow(clients)?;
    let checked = |certificates: &mut Certificates, verifiers: &mut Verifiers| {
        let verifier = Arc::clone(&verifiers.borrow_and_update());
        certificates.borrow_and_update().with_https_clients(verifier)
    };
    let (serving, newest) = watch::channel(checked(&mut certificates, &mut verifiers));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                changed = certificates.changed() => if changed.is_err() { return },
                changed = verifiers.changed() => if changed.is_err() { return },
                () = serving.closed() => return,
            }
            serving.send_replace(checked(&mut certificates, &mut verifiers));
        }
    });
    Ok(newest)
}

type Verifiers = watch::Receiver<Arc<dyn ClientCertVerifier>>;

/// Accepts the certificates of one name.
struct NamedClient {
    /// Checks who has signed them.
    signed: Arc<dyn ClientCertVerifier>,
    name: Option<String>,
}

/// The certificate is of another client.
#[derive(Debug)]
struct OtherName(String);

impl fmt::Display for OtherName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the certificate is not of {}, which --webhook-client-name says", self.0)
    }
}

impl std::error::Error for OtherName {}

impl fmt::Debug for NamedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Whether this is the certificate's common name or one of its DNS names.
fn has_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok((_, parsed)) = parse_x509_certificate(certificate) else { return false };
    let mut common_names = parsed.subject().iter_common_name();
    common_names.any(|common| common.as_str().is_ok_and(|common| common == name))
        || names_in(certificate).hosts.iter().any(|host| host == name)
}

impl ClientCertVerifier for NamedClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(certificate, intermediates, now)?;
        match &self.name {
            Some(name) if !has_name(certificate, name) => {
                let other = OtherError(Arc::new(OtherName(name.clone())));
                Err(CertificateError::Other(other).into())
            }
            _ => Ok(verified),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    use super::*;

    #[test]
    fn only_clients_of_the_authority_and_the_name_are_accepted() {
        let issuer = |name: &str| {
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::new([]).expect("parameters");
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            (params.self_signed(&key).expect("a certificate").pem(), Issuer::new(params, key))
        };
        let ((authority, ours), (_, theirs)) = (issuer("ours"), issuer("theirs"));
        let client = |issuer: &Issuer<'_, KeyPair>, common: &str, hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
            let mut params = CertificateParams::new(hosts).expect("parameters");
            params.distinguished_name.push(DnType::CommonName, common);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().expect("a key");
            params.signed_by(&key, issuer).expect("a certificate").der().clone()
        };
        let accepts = |name: Option<&str>, certificate: &CertificateDer<'_>| {
            let name = name.map(str::to_owned);
            let clients = WebhookClients { authorities: "ca.pem".into(), name };
            let verifier = clients.parse(&authority.clone().into_bytes()).expect("authorities");
            verifier.verify_client_cert(certificate, &[], UnixTime::now()).is_ok()
        };
        let api_server = client(&ours, "kube-apiserver", &["api.example"]);
        for name in [None, Some("kube-apiserver"), Some("api.example")] {
            assert!(accepts(name, &api_server), "{name:?}");
        }
        assert!(!accepts(Some("kube"), &api_server), "another name");
        assert!(!accepts(Some("kube-apiserver"), &client(&ours, "other", &[])), "another client");
        assert!(!accepts(None, &client(&theirs, "kube-apiserver", &[])), "another authority");
    }
}
