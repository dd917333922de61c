//! The rotation of the authority's keys, step by step; times are days since the first key.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::{ServerName, UnixTime};

use super::certificate::{Certificate, Names, Signer};
use super::keyring::{Keyring, RotationStep};

const DAY: u64 = 24 * 3600;
/// An arbitrary start: `day` counts from here.
const START: u64 = 1_800_000_000;
/// How long each signer lasts.
const LIFE: u64 = 360;

fn day(day: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(START + day * DAY))
}

fn signer(from: u64) -> Signer {
    Signer::generate(day(from), LIFE * DAY).expect("a signer")
}

fn fresh() -> Keyring {
    Keyring::new(signer(0))
}

/// Takes the steps that are due on a day, and returns them.
fn pass(keyring: &mut Keyring, on: u64) -> Vec<RotationStep> {
    let mut steps = Vec::new();
    while let Some(step) = keyring.next_step(day(on)) {
        steps.push(step);
        assert!(steps.len() < 5, "the steps do not end: {steps:?}");
        let after = keyring.clone().after(step, day(on), || Ok(signer(on)));
        *keyring = after.expect("a step");
    }
    steps
}

fn trusted_certificates(keyring: &Keyring) -> usize {
    Certificate::parse_all(&keyring.bundle()).expect("a bundle").len()
}

/// Whether a client with `bundle` accepts a certificate that `keyring` signs on this day.
fn is_taken(keyring: &Keyring, bundle: &str, on: u64) -> bool {
    let names = Names { hosts: vec!["coordinator.test.svc".into()], addresses: Vec::new() };
    let to = UnixTime::since_unix_epoch(Duration::from_secs(START + (on + 1) * DAY));
    let to = to.min(keyring.signing.certificate.to);
    let signed = keyring.signing.sign(&names, to).expect("a certificate");
    let mut roots = RootCertStore::empty();
    for certificate in Certificate::parse_all(bundle).expect("a bundle") {
        roots.add(certificate.der).expect("an authority");
    }
    let provider = rustls::crypto::ring::default_provider().into();
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
    let name = ServerName::try_from("coordinator.test.svc").expect("a name");
    let verifier = verifier.build().expect("a verifier");
    verifier.verify_server_cert(&signed.certificate, &[], &name, &[], day(on)).is_ok()
}

#[test]
fn clients_with_a_bundle_of_the_last_weeks_trust_every_rotation() {
    let mut keyring = fresh();
    let mut bundles: Vec<String> = Vec::new();
    let mut seen = Vec::new();
    for on in 0..3 * LIFE {
        seen.extend(pass(&mut keyring, on).into_iter().map(|step| (on, step)));
        bundles.push(keyring.bundle());
        let oldest = usize::try_from(on.saturating_sub(50)).expect("few days");
        for bundle in [&bundles[oldest], bundles.last().expect("today's")] {
            assert!(is_taken(&keyring, bundle, on), "on day {on}");
        }
        assert!((1..=2).contains(&trusted_certificates(&keyring)), "on day {on}");
    }
    use RotationStep::{Announce, Promote, PruneBundle};
    let first = [(240, Announce), (300, Promote), (360, PruneBundle)];
    let second = [(480, Announce), (540, Promote), (600, PruneBundle)];
    assert_eq!(seen[..6], [first, second].concat(), "{seen:?}");
}

#[test]
fn no_step_is_due_for_new_keys_or_before_their_validity() {
    let mut keyring = fresh();
    assert_eq!(pass(&mut keyring, 0), []);
    assert_eq!(pass(&mut keyring, 239), []);
    let mut late = Keyring::new(signer(1_000));
    assert_eq!(pass(&mut late, 0), []);
    assert!(!late.is_valid(day(0)));
}

#[test]
fn a_late_successor_still_waits_until_clients_know_it() {
    let mut keyring = fresh();
    assert_eq!(pass(&mut keyring, 310), [RotationStep::Announce]);
    assert_eq!(pass(&mut keyring, 344), []);
    // Its predecessor expires soon.
    assert_eq!(pass(&mut keyring, 345), [RotationStep::Promote]);
}

#[test]
fn replaces_expired_keys_at_once() {
    let mut keyring = fresh();
    assert_eq!(pass(&mut keyring, LIFE), [RotationStep::Replace]);
    assert_eq!(trusted_certificates(&keyring), 1);
    assert!(is_taken(&keyring, &keyring.bundle(), LIFE));
    // An announced successor signs.
    let mut keyring = fresh();
    assert_eq!(pass(&mut keyring, 240), [RotationStep::Announce]);
    let announced = keyring.bundle();
    assert_eq!(pass(&mut keyring, LIFE + 10), [RotationStep::Promote]);
    assert!(is_taken(&keyring, &announced, LIFE + 10));
}

#[test]
fn reads_back_the_secret_and_keeps_foreign_authorities() {
    let mut keyring = fresh();
    pass(&mut keyring, 240);
    let mut data = BTreeMap::from([("other".to_owned(), ByteString(b"kept".into()))]);
    keyring.write(&mut data);
    let again = Keyring::read(&data).expect("good data");
    assert_eq!((again.bundle(), again.next_step(day(241))), (keyring.bundle(), None));
    // A user adds an authority and removes ours.
    let theirs = signer(0).certificate.pem;
    data.insert("ca.crt".into(), ByteString(theirs.clone().into()));
    let mut restored = Keyring::read(&data).expect("good data");
    assert_eq!(pass(&mut restored, 241), [RotationStep::PruneBundle]);
    assert!(
        restored.bundle().contains(&theirs) && restored.bundle().starts_with(&keyring.bundle())
    );
    pass(&mut restored, 300);
    restored.write(&mut data);
    assert!(!data.contains_key("next.key") && data.contains_key("other"), "{:?}", data.keys());
}

#[test]
fn an_invalid_secret_names_the_key_and_the_problem() {
    let mut whole = BTreeMap::new();
    let mut keyring = fresh();
    pass(&mut keyring, 240);
    keyring.write(&mut whole);
    let other = signer(0);
    let made = rcgen::generate_simple_self_signed(["leaf".to_owned()]).expect("a certificate");
    for (key, value, named) in [
        ("tls.key", None, "tls.key is missing"),
        ("tls.crt", None, "tls.crt is missing"),
        ("tls.crt", Some(String::new()), "no PEM certificate"),
        ("tls.crt", Some("garbage".into()), "no PEM certificate"),
        ("tls.crt", Some(made.cert.pem()), "CA:TRUE"),
        ("tls.key", Some(other.key), "does not match"),
        ("tls.key", Some("garbage".into()), "PKCS#8"),
        ("next.key", None, "next.key is missing"),
        (
            "ca.crt",
            Some("-----BEGIN CERTIFICATE-----\n".into()),
            "ca.crt: certificate 1 is not PEM",
        ),
    ] {
        let mut data = whole.clone();
        data.remove(key);
        if let Some(value) = value {
            data.insert(key.into(), ByteString(value.into()));
        }
        let why = Keyring::read(&data).expect_err(named);
        assert!(why.contains(named), "{named:?} in {why:?}");
    }
    assert!(Keyring::read(&BTreeMap::new()).is_err());
    let not_text = BTreeMap::from([("ca.crt".to_owned(), ByteString(vec![0xff]))]);
    assert!(Keyring::read(&not_text).is_err());
}
