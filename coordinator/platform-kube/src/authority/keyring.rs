//! The authority's keys and their rotation, as a pure function of the keys and the time. The bundle
//! announces a successor long before it signs, and keeps each signer until it expires. So a client
//! with a bundle of the last months trusts the served certificate.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use rustls_pki_types::UnixTime;

use super::certificate::{Certificate, Signer, after};

/// Keys of the Secret.
const SIGNING: (&str, &str) = ("tls.crt", "tls.key");
const NEXT: (&str, &str) = ("next.crt", "next.key");
const BUNDLE: &str = "ca.crt";
/// The most certificates in a bundle; the last ones are left out.
const BUNDLE_MAX: usize = 32;

/// The authority: the signer, its successor, and all trusted certificates.
#[derive(Clone, Debug)]
pub(super) struct Keyring {
    pub(super) signing: Signer,
    next: Option<Signer>,
    bundle: Vec<Certificate>,
}

/// A step of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RotationStep {
    /// The signer has expired and has no successor: make a new one at once.
    Replace,
    /// A successor is created and added to the bundle.
    Announce,
    /// The successor signs from now on.
    Promote,
    /// Only the bundle changes: expired certificates leave, missing ones come back.
    PruneBundle,
}

impl Keyring {
    /// The first keys.
    pub(super) fn new(signing: Signer) -> Self {
        let bundle = vec![signing.certificate.clone()];
        Self { signing, next: None, bundle }
    }

    /// Parses the data of a Secret.
    ///
    /// # Errors
    /// Names the invalid key of the Secret and the problem.
    pub(super) fn read(data: &BTreeMap<String, ByteString>) -> Result<Self, String> {
        let text = |key: &str| match data.get(key).map(|bytes| std::str::from_utf8(&bytes.0)) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(format!("{key} is not UTF-8 text")),
        };
        let signer = |(certificate, key)| match (text(certificate)?, text(key)?) {
            (None, None) => Ok(None),
            (Some(pem), Some(pair)) => {
                let read = Signer::read(pem, pair);
                read.map(Some).map_err(|why| format!("{certificate}, {key}: {why}"))
            }
            (None, Some(_)) => Err(format!("{certificate} is missing")),
            (Some(_), None) => Err(format!("{key} is missing")),
        };
        let signing =
            signer(SIGNING)?.ok_or(format!("{} and {} are missing", SIGNING.0, SIGNING.1))?;
        let bundle = Certificate::parse_all(text(BUNDLE)?.unwrap_or_default());
        let bundle = bundle.map_err(|why| format!("{BUNDLE}: {why}"))?;
        Ok(Self { signing, next: signer(NEXT)?, bundle })
    }

    /// Writes the keys into a Secret's data, and keeps its other keys.
    pub(super) fn write(&self, data: &mut BTreeMap<String, ByteString>) {
        let mut put = |key: &str, text: String| data.insert(key.into(), ByteString(text.into()));
        put(BUNDLE, self.bundle());
        put(SIGNING.0, self.signing.certificate.pem.clone());
        put(SIGNING.1, self.signing.key.clone());
        if let Some(next) = &self.next {
            put(NEXT.0, next.certificate.pem.clone());
            put(NEXT.1, next.key.clone());
        } else {
            data.remove(NEXT.0);
            data.remove(NEXT.1);
        }
    }

    /// The trusted certificates as PEM, the signer first.
    pub(super) fn bundle(&self) -> String {
        self.bundle.iter().map(|certificate| certificate.pem.as_str()).collect()
    }

    /// The most urgent step that is due at `now`. Before the signer is valid no step is due: the
    /// clock is wrong, or was.
    pub(super) fn next_step(&self, now: UnixTime) -> Option<RotationStep> {
        let signing = &self.signing.certificate;
        if now < signing.from {
            return None;
        }
        let successor = self.next.as_ref().map(|next| &next.certificate);
        let able = successor.filter(|next| next.from <= now && now < next.to);
        match able {
            Some(next) if now >= promotion(signing, next) => return Some(RotationStep::Promote),
            None if now >= signing.to => return Some(RotationStep::Replace),
            None if successor.is_none_or(|next| now >= next.to) && now >= announcement(signing) => {
                return Some(RotationStep::Announce);
            }
            Some(_) | None => {}
        }
        (self.bundle != self.trusted_certificates(now)).then_some(RotationStep::PruneBundle)
    }

    /// The keys after a step; `made` creates a signer for the steps that need one.
    pub(super) fn after(
        mut self,
        step: RotationStep,
        now: UnixTime,
        made: impl FnOnce() -> anyhow::Result<Signer>,
    ) -> anyhow::Result<Self> {
        match step {
            RotationStep::Replace => {
                self.signing = made()?;
                self.next = None;
            }
            RotationStep::Announce => self.next = Some(made()?),
            RotationStep::Promote => {
                if let Some(next) = self.next.take() {
                    self.signing = next;
                }
            }
            RotationStep::PruneBundle => {}
        }
        self.bundle = self.trusted_certificates(now);
        Ok(self)
    }

    /// Whether the signer can sign at `now`.
    pub(super) fn is_valid(&self, now: UnixTime) -> bool {
        let signing = &self.signing.certificate;
        signing.from <= now && now < signing.to
    }

    fn trusted_certificates(&self, now: UnixTime) -> Vec<Certificate> {
        let mut trusted: Vec<Certificate> = vec![self.signing.certificate.clone()];
        let next = self.next.iter().map(|next| &next.certificate);
        for one in next.chain(&self.bundle).filter(|one| now < one.to) {
            if trusted.len() < BUNDLE_MAX && trusted.iter().all(|known| known.der != one.der) {
                trusted.push(one.clone());
            }
        }
        trusted
    }
}

/// When a signer's successor is announced: at two thirds of the signer's lifetime.
fn announcement(signing: &Certificate) -> UnixTime {
    after(signing.from, signing.seconds() * 2 / 3)
}

/// When a successor starts to sign: at five sixths of its predecessor's lifetime. If it was
/// announced late, it waits as long as usual, but not until its predecessor expires.
fn promotion(signing: &Certificate, next: &Certificate) -> UnixTime {
    let seconds = signing.seconds();
    let usual = after(signing.from, seconds * 5 / 6);
    let announced = after(next.from, seconds / 6);
    let latest = after(signing.from, seconds * 23 / 24);
    usual.max(announced).min(latest)
}
