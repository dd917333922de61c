//! Certificates that the authority creates and parses. Any client may have written the input, so
//! invalid input is rejected with a reason.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use x509_parser::parse_x509_certificate;

/// The start of the year 9999, the last year that a certificate can name.
const LAST_SECOND: u64 = 253_370_764_800;

/// A time `seconds` later.
pub(super) fn after(time: UnixTime, seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(time.as_secs().saturating_add(seconds)))
}

/// A certificate of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    /// Its PEM, in lines of 64 characters.
    pub(super) pem: String,
    pub(super) der: CertificateDer<'static>,
    /// From when it is valid.
    pub(super) from: UnixTime,
    /// To when.
    pub(super) to: UnixTime,
}

impl Certificate {
    /// All certificates of a PEM text.
    ///
    /// # Errors
    /// Names the invalid certificate and the problem.
    pub(super) fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let sections = (1..).zip(CertificateDer::pem_slice_iter(text.as_bytes()));
        let parse = |(number, section): (usize, Result<CertificateDer<'static>, _>)| {
            let der = section.map_err(|error| format!("certificate {number} is not PEM: {error}"));
            Self::parse(der?).map_err(|why| format!("certificate {number} {why}"))
        };
        sections.map(parse).collect()
    }

    fn parse(der: CertificateDer<'static>) -> Result<Self, String> {
        let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
        let pem = pem::encode_config(&Pem::new("CERTIFICATE", der.as_ref()), lines);
        let (_, parsed) =
            parse_x509_certificate(&der).map_err(|_| "is not an X.509 certificate")?;
        if !parsed.is_ca() {
            return Err("is not a CA certificate: basicConstraints has no CA:TRUE".into());
        }
        // rcgen takes only names with one attribute in each part.
        if parsed.subject().iter().any(|part| part.iter().count() != 1) {
            return Err("has an unsupported subject: each RDN must have one attribute".into());
        }
        let time = |seconds: i64| {
            let seconds = u64::try_from(seconds).unwrap_or_default();
            UnixTime::since_unix_epoch(Duration::from_secs(seconds))
        };
        let validity = parsed.validity();
        let (from, to) =
            (time(validity.not_before.timestamp()), time(validity.not_after.timestamp()));
        Ok(Self { pem, der, from, to })
    }

    /// For how long it is valid, in seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.to.as_secs().saturating_sub(self.from.as_secs())
    }
}

/// A certificate of an authority, with the key that signs.
#[derive(Clone)]
pub(super) struct Signer {
    pub(super) certificate: Certificate,
    /// The key's PEM.
    pub(super) key: String,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { certificate, key: _ } = self;
        f.debug_struct("Signer").field("certificate", certificate).finish_non_exhaustive()
    }
}

impl Signer {
    /// A new authority, valid from `from` for `seconds`.
    pub(super) fn generate(from: UnixTime, seconds: u64) -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        // Each authority has its own name, so that clients can tell them apart.
        let name = format!("Leasehold {:08x}", fastrand::u32(..));
        params.distinguished_name = distinguished_name(&name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_validity(&mut params, from, after(from, seconds));
        let pem = params.self_signed(&key)?.pem();
        Self::read(&pem, &key.serialize_pem()).map_err(anyhow::Error::msg)
    }

    /// An authority from the PEM of its certificate, the first of the text, and of its key.
    ///
    /// # Errors
    /// Names the problem of the certificate or the key.
    pub(super) fn read(certificate: &str, key: &str) -> Result<Self, String> {
        let all = Certificate::parse_all(certificate)?;
        let Some(certificate) = all.into_iter().next() else {
            return Err("no PEM certificate found".into());
        };
        let pkcs8 = PrivatePkcs8KeyDer::from_pem_slice(key.as_bytes());
        let pkcs8 = pkcs8.map_err(|error| format!("the key is not PKCS#8 PEM: {error}"))?;
        let pair = KeyPair::try_from(&pkcs8);
        let pair = pair.map_err(|error| format!("cannot read the PKCS#8 key: {error}"))?;
        let signer = Self { certificate, key: key.to_owned() };
        let (_, parsed) = parse_x509_certificate(&signer.certificate.der)
            .map_err(|_| "cannot parse the certificate")?;
        if parsed.public_key().subject_public_key.data.as_ref() != pair.public_key_raw() {
            return Err("the key does not match the certificate".into());
        }
        let issuer = Issuer::from_ca_cert_der(&signer.certificate.der, pair);
        issuer.map_err(|error| format!("the certificate cannot sign: {error}"))?;
        Ok(signer)
    }

    /// Signs a replica's certificate for these names, valid to `to`, with a new key. Replicas are
    /// servers, and clients of each other.
    pub(super) fn sign(&self, names: &Names, to: UnixTime) -> anyhow::Result<Signed> {
        let issuer =
            Issuer::from_ca_cert_der(&self.certificate.der, KeyPair::from_pem(&self.key)?)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.hosts.clone())?;
        let addresses = names.addresses.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names.extend(addresses);
        params.distinguished_name = distinguished_name("leasehold-coordinator");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        // As old as its authority, so that clients whose clocks are late accept it.
        set_validity(&mut params, self.certificate.from, to);
        let certificate = params.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        Ok(Signed { certificate: certificate.der().clone(), key })
    }
}

/// The names and addresses in a server's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) hosts: Vec<String>,
    pub(super) addresses: Vec<IpAddr>,
}

/// A server's certificate and key.
pub(super) struct Signed {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
}

fn distinguished_name(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

fn set_validity(params: &mut CertificateParams, from: UnixTime, to: UnixTime) {
    let date = |time: UnixTime| {
        let seconds = time.as_secs().min(LAST_SECOND);
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    (params.not_before, params.not_after) = (date(from), date(to));
}
