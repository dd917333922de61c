//! What keys prove of tokens: real signatures, and tokens that are wrong in one way each.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold_injection::TOKEN_SECONDS;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, KeyPair as _,
};
use serde_json::{Value, json};

use super::identity::{Identity, identity_of};
use super::identity_tests::merge;
use super::key_set::*;

pub(super) const AUDIENCE: &str = "leasehold.dev";
/// The time of the tests, in seconds since 1970.
pub(super) const NOW_SECS: u64 = 1_800_000_000;
const ISSUER: &str = "https://kubernetes.default.svc";
/// A token of [`claims`] and the key that it is signed with, both made by OpenSSL.
const RS256_TOKEN: &str = include_str!("../../testdata/rs256_token.json");

/// A key of the API server, by the id `ec`.
pub(super) struct TestKey {
    pair: EcdsaKeyPair,
    algorithm: &'static str,
    curve: &'static str,
}

impl TestKey {
    pub(super) fn p256() -> Self {
        Self::generate(&ECDSA_P256_SHA256_FIXED_SIGNING, "ES256", "P-256")
    }

    fn p384() -> Self {
        Self::generate(&ECDSA_P384_SHA384_FIXED_SIGNING, "ES384", "P-384")
    }

    fn generate(
        signing: &'static EcdsaSigningAlgorithm,
        algorithm: &'static str,
        curve: &'static str,
    ) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(signing, &random).expect("a new key");
        let pair = EcdsaKeyPair::from_pkcs8(signing, document.as_ref(), &random);
        Self { pair: pair.expect("the same key"), algorithm, curve }
    }

    /// A set of this key only.
    pub(super) fn key_set(&self) -> KeySet {
        key_set(&json!([self.published(json!({}))]))
    }

    /// The key as the API server publishes it, with a patch.
    fn published(&self, patch: Value) -> Value {
        let point = &self.pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let mut key = json!({
            "use": "sig", "kty": "EC", "kid": "ec", "crv": self.curve, "alg": self.algorithm,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        });
        merge(&mut key, patch);
        key
    }

    /// A token of [`claims`] with a patch, signed by this key.
    pub(super) fn token(&self, patch: Value) -> String {
        let mut claims = claims();
        merge(&mut claims, patch);
        self.signed(&json!({ "alg": self.algorithm, "kid": "ec" }), &claims)
    }

    /// A token of this header and these claims, signed by this key.
    pub(super) fn signed(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", encoded(header), encoded(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(signature.expect("a signature"));
        format!("{signed}.{signature}")
    }
}

/// The claims of the token of pod `w-0`, as Kubernetes 1.32 makes them: issued for an hour.
fn claims() -> Value {
    json!({
        "aud": [AUDIENCE],
        "exp": NOW_SECS + 3_000,
        "iat": NOW_SECS - 600,
        "iss": ISSUER,
        "jti": "c7d1b0f0-6d0e-4b52-9f0e-3a4d5c1e2f10",
        "kubernetes.io": {
            "namespace": "ci",
            "node": { "name": "node-1", "uid": "node-uid" },
            "pod": { "name": "w-0", "uid": "uid-1" },
            "serviceaccount": { "name": "worker", "uid": "account-uid" },
        },
        "nbf": NOW_SECS - 600,
        "sub": "system:serviceaccount:ci:worker",
    })
}

/// What the API server's review of that token says in the fields that decide.
fn reviewed() -> Identity {
    let status = json!({
        "authenticated": true,
        "audiences": [AUDIENCE],
        "user": {
            "username": "system:serviceaccount:ci:worker",
            "uid": "account-uid",
            "groups": [
                "system:serviceaccounts", "system:serviceaccounts:ci", "system:authenticated",
            ],
            "extra": {
                "authentication.kubernetes.io/pod-name": ["w-0"],
                "authentication.kubernetes.io/pod-uid": ["uid-1"],
            },
        },
    });
    identity_of(serde_json::from_value(status).expect("a status"), AUDIENCE).expect("a user")
}

fn key_set(keys: &Value) -> KeySet {
    let metadata = json!({ "issuer": ISSUER, "jwks_uri": "https://192.0.2.1/openid/v1/jwks" });
    let metadata = serde_json::from_value(metadata).expect("metadata");
    KeySet::new(metadata, &serde_json::from_value(json!({ "keys": keys })).expect("keys"))
}

fn encoded(part: &Value) -> String {
    URL_SAFE_NO_PAD.encode(part.to_string())
}

/// The token with a patch of its claims and the signature that it had.
fn altered(token: &str, patch: Value) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    let claims = URL_SAFE_NO_PAD.decode(parts[1]).expect("base64");
    let mut claims: Value = serde_json::from_slice(&claims).expect("JSON");
    merge(&mut claims, patch);
    format!("{}.{}.{}", parts[0], encoded(&claims), parts[2])
}

fn verify(keys: &KeySet, token: &str) -> Result<Identity, Unverified> {
    keys.verify(token, AUDIENCE, NOW_SECS)
}

#[test]
fn a_signed_token_of_a_pod_proves_what_its_review_says() {
    for key in [TestKey::p256(), TestKey::p384()] {
        let (keys, token) = (key.key_set(), key.token(json!({})));
        assert_eq!(verify(&keys, &token), Ok(reviewed()), "{}", key.algorithm);
        let other_pod = altered(&token, json!({ "kubernetes.io": { "pod": { "name": "w-1" } } }));
        assert_eq!(verify(&keys, &other_pod), Err(Unverified::WrongSignature), "{other_pod}");
    }
}

#[test]
fn a_token_signed_by_an_rsa_key_is_verified() {
    let fixture: Value = serde_json::from_str(RS256_TOKEN).expect("JSON");
    let token = fixture["token"].as_str().expect("a token");
    let keys = key_set(&fixture["keys"]);
    assert_eq!(verify(&keys, token), Ok(reviewed()));
    let later = altered(token, json!({ "exp": NOW_SECS + 3_001 }));
    assert_eq!(verify(&keys, &later), Err(Unverified::WrongSignature));
    // The same text under an elliptic key of that id.
    let keys = key_set(&json!([TestKey::p256().published(json!({ "kid": "rsa" }))]));
    assert_eq!(verify(&keys, token), Err(Unverified::OtherAlgorithm));
}

#[test]
fn a_token_chooses_neither_its_algorithm_nor_its_key() {
    let key = TestKey::p256();
    let signed = |header: Value| key.signed(&header, &claims());
    let unsigned = |header: Value| format!("{}.{}.", encoded(&header), encoded(&claims()));
    let good = key.token(json!({}));
    for (token, wanted) in [
        (unsigned(json!({ "alg": "none", "kid": "ec" })), Unverified::OtherAlgorithm),
        (signed(json!({ "alg": "none", "kid": "ec" })), Unverified::OtherAlgorithm),
        (signed(json!({ "alg": "RS256", "kid": "ec" })), Unverified::OtherAlgorithm),
        (signed(json!({ "alg": "HS256", "kid": "ec" })), Unverified::OtherAlgorithm),
        (signed(json!({ "alg": "ES384", "kid": "ec" })), Unverified::OtherAlgorithm),
        (unsigned(json!({ "alg": "ES256", "kid": "ec" })), Unverified::WrongSignature),
        (TestKey::p256().token(json!({})), Unverified::WrongSignature),
        (signed(json!({ "alg": "ES256", "kid": "later" })), Unverified::UnknownKey),
        (unsigned(json!({ "alg": "none" })), Unverified::Malformed),
        (signed(json!({ "alg": "ES256" })), Unverified::Malformed),
        (signed(json!({ "alg": "ES256", "kid": "ec", "crit": ["b64"] })), Unverified::Malformed),
        (format!("{good}.e30"), Unverified::WrongSignature),
        (format!("{good}="), Unverified::Malformed),
        ("opaque".to_owned(), Unverified::Malformed),
        (String::new(), Unverified::Malformed),
    ] {
        assert_eq!(verify(&key.key_set(), &token), Err(wanted), "{token}");
    }
}

#[test]
fn a_signed_token_with_other_claims_is_not_verified() {
    let key = TestKey::p256();
    let last = NOW_SECS - 600 + ISSUED_FOR_SECS_MAX;
    for (patch, wanted) in [
        (json!({ "exp": NOW_SECS }), Unverified::Expired),
        (json!({ "exp": last + 1 }), Unverified::ValidForTooLong),
        // Issued for a day, of which ten minutes are left.
        (json!({ "exp": NOW_SECS + 600, "nbf": NOW_SECS - 80_000 }), Unverified::ValidForTooLong),
        (json!({ "exp": null }), Unverified::Malformed),
        (json!({ "exp": "never" }), Unverified::Malformed),
        (json!({ "nbf": NOW_SECS + 6 }), Unverified::NotYetValid),
        (json!({ "nbf": null }), Unverified::Malformed),
        (json!({ "aud": ["https://kubernetes.default.svc"] }), Unverified::OtherAudience),
        (json!({ "aud": [] }), Unverified::OtherAudience),
        (json!({ "iss": "https://kubernetes.default.svc/" }), Unverified::OtherIssuer),
        (json!({ "sub": "system:serviceaccount:ci:other" }), Unverified::OtherSubject),
        (json!({ "kubernetes.io": { "namespace": "cd" } }), Unverified::OtherSubject),
        (json!({ "kubernetes.io": { "pod": null } }), Unverified::NoPod),
        (json!({ "kubernetes.io": { "serviceaccount": null } }), Unverified::NoPod),
        (json!({ "kubernetes.io": null }), Unverified::NoPod),
        (
            json!({ "kubernetes.io": { "secret": { "name": "s", "uid": "uid-2" } } }),
            Unverified::BoundToSecret,
        ),
    ] {
        let token = key.token(patch.clone());
        assert_eq!(verify(&key.key_set(), &token), Err(wanted), "{patch}");
    }
    for patch in [
        json!({ "exp": NOW_SECS + 1 }),
        json!({ "exp": last }),
        json!({ "nbf": NOW_SECS + 5 }),
        json!({ "aud": ["other", AUDIENCE] }),
    ] {
        let token = key.token(patch.clone());
        assert_eq!(verify(&key.key_set(), &token), Ok(reviewed()), "{patch}");
    }
}

#[test]
fn the_token_that_an_injected_agent_asks_for_is_verified() {
    let key = TestKey::p256();
    let token = key.token(json!({ "nbf": NOW_SECS, "exp": NOW_SECS + TOKEN_SECONDS }));
    assert_eq!(verify(&key.key_set(), &token), Ok(reviewed()));
}

#[test]
fn a_published_key_of_another_kind_is_known_and_verifies_nothing() {
    let key = TestKey::p256();
    let token = key.token(json!({}));
    for patch in [
        json!({ "use": "enc" }),
        json!({ "alg": "ES384" }),
        json!({ "crv": "P-521" }),
        json!({ "kty": "OKP", "crv": "Ed25519" }),
        json!({ "kty": "of a later RFC" }),
        json!({ "kty": null }),
        json!({ "x": "AQAB" }),
        json!({ "y": null }),
    ] {
        let keys = key_set(&json!([key.published(patch.clone())]));
        assert_eq!(verify(&keys, &token), Err(Unverified::OtherAlgorithm), "{patch}");
    }
    let beside = key_set(&json!([{ "kid": "kindless" }, key.published(json!({}))]));
    assert_eq!(verify(&beside, &token), Ok(reviewed()));
    let nameless = key_set(&json!([key.published(json!({ "kid": null }))]));
    assert_eq!(verify(&nameless, &token), Err(Unverified::UnknownKey));
}
