//! A token that the API server has not made, and that its own key has signed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::SigningKey as _;
use serde_json::Value;
use tests::kube::Cluster;

/// The token with other claims, signed by the API server's own key, or `None` if that is not ours.
pub(crate) fn forged(
    cluster: &Cluster,
    token: &str,
    alter: impl FnOnce(&mut Value),
) -> Option<String> {
    let Cluster::Own(plane) = cluster else { return None };
    let key = std::fs::read_to_string(plane.folder().join("pki/tokens.key")).expect("a key");
    let key = rcgen::KeyPair::from_pem(&key).expect("a key");
    // The header names the key: without its name the coordinator would not look further.
    let (header, rest) = token.split_once('.').expect("three parts");
    let (claims, _) = rest.split_once('.').expect("three parts");
    let claims = URL_SAFE_NO_PAD.decode(claims).expect("base64");
    let mut claims: Value = serde_json::from_slice(&claims).expect("JSON");
    alter(&mut claims);
    let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = raw(&key.sign(text.as_bytes()).expect("a signature"));
    Some(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// An ECDSA signature as JWTs have it (RFC 7518, 3.4): both numbers in 32 bytes, without ASN.1.
fn raw(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut raw = Vec::new();
    for _ in 0..2 {
        let length = usize::from(rest[1]);
        let number = &rest[2..2 + length];
        let number = &number[number.len().saturating_sub(32)..];
        raw.extend(std::iter::repeat_n(0, 32 - number.len()));
        raw.extend(number);
        rest = &rest[2 + length..];
    }
    raw
}
