//! The certificates and keys of a test's Kubernetes. They last as long as the test's folder.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::kubeconfig::{self, Speaker};

/// The file of the authority's own certificate.
pub(super) const AUTHORITY: &str = "ca.crt";

/// A certificate authority whose certificates lie in a folder.
#[derive(Debug)]
pub(super) struct Pki {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Whom a certificate is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    /// The user's name, for the API server.
    pub(super) name: &'a str,
    /// The user's group, for the API server.
    pub(super) group: Option<&'a str>,
    /// Where the holder serves.
    pub(super) hosts: &'a [&'a str],
    /// The addresses that the holder serves at.
    pub(super) addresses: &'a [IpAddr],
}

impl<'a> Subject<'a> {
    /// Someone who serves nothing.
    pub(super) fn user(name: &'a str, group: Option<&'a str>) -> Self {
        Self { name, group, hosts: &[], addresses: &[] }
    }
}

impl Pki {
    /// A new authority, and a key pair that signs the service accounts' tokens.
    pub(super) fn create(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).expect("a folder for the certificates");
        let mut params =
            CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test-ca");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let authority = params.self_signed(&key).expect("an authority").pem();
        let pki = Self { folder: folder.to_owned(), issuer: Issuer::new(params, key) };
        pki.write(AUTHORITY, &authority);
        let tokens = KeyPair::generate().expect("a key");
        pki.write("tokens.key", &tokens.serialize_pem());
        pki.write("tokens.pub", &tokens.public_key_pem());
        pki
    }

    /// The path of a file that was written here.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// Writes `FILE.crt` and `FILE.key`.
    pub(super) fn issue(&self, file: &str, subject: Subject<'_>) {
        let (certificate, key) = self.sign(subject);
        self.write(&format!("{file}.crt"), &certificate);
        self.write(&format!("{file}.key"), &key);
    }

    /// Writes a certificate and a kubeconfig for its holder, and says where that lies.
    pub(super) fn kubeconfig(&self, file: &str, url: &str, subject: Subject<'_>) -> PathBuf {
        self.issue(file, subject);
        let path = self.path(&format!("{file}.kubeconfig"));
        let (certificate, key) =
            (&self.path(&format!("{file}.crt")), &self.path(&format!("{file}.key")));
        let speaker = Speaker::Certificate { certificate, key };
        kubeconfig::write(&path, url, &self.path(AUTHORITY), speaker);
        path
    }

    fn sign(&self, subject: Subject<'_>) -> (String, String) {
        let hosts: Vec<String> = subject.hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("valid host names");
        let addresses = subject.addresses.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names.extend(addresses);
        params.distinguished_name.push(DnType::CommonName, subject.name);
        if let Some(group) = subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path(file), text).expect("the folder takes files");
    }
}
