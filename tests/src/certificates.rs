//! Certificates of an authority of the test's own.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};

/// A certificate authority of a test.
pub type Authority = CertifiedIssuer<'static, KeyPair>;

/// A new authority.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// A certificate for loopback and, if given, a URI; its key.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn signed(authority: &Authority, subject: &str, uri: Option<&str>) -> (String, String) {
    let uri = uri.map(|uri| SanType::URI(uri.try_into().expect("ASCII")));
    sign(authority, subject, uri)
}

/// A certificate for loopback and this host; its key.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn signed_for(authority: &Authority, host: &str) -> (String, String) {
    sign(authority, host, Some(SanType::DnsName(host.try_into().expect("ASCII"))))
}

fn sign(authority: &Authority, subject: &str, name: Option<SanType>) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(hosts).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, subject);
    params.subject_alt_names.extend(name);
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}
