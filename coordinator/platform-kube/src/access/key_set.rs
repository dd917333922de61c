//! What the API server's own keys prove of a token, without a call; pure.
//!
//! **Invariant**: an identity comes only of a token that a key of the set has signed, by the one
//! algorithm of that key. A token does not choose its algorithm.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::identity::{Identity, KubernetesClaims};

/// The longest time for which a token may have been issued, in seconds: agents have such tokens.
/// Only a review notices that the service account was deleted; without one the token's own end is
/// the limit. A token that was issued for longer is reviewed, also in its last hour.
pub(super) const ISSUED_FOR_SECS_MAX: u64 = 3_600;
/// How far ahead the API server's clock may be, in seconds.
const CLOCKS_APART_SECS: u64 = 5;
/// Begins a point of an elliptic curve that has both coordinates (SEC 1, 2.3.3).
const UNCOMPRESSED_POINT: u8 = 4;

/// The API server's metadata as an OpenID provider.
#[derive(Debug, Deserialize)]
pub(super) struct IssuerMetadata {
    issuer: String,
}

/// A JSON Web Key Set (RFC 7517).
#[derive(Debug, Deserialize)]
pub(super) struct JsonWebKeySet {
    keys: Vec<JsonWebKey>,
}

#[derive(Debug, Deserialize)]
struct JsonWebKey {
    /// A key without it is not used, and leaves the others as they are (RFC 7517, 5).
    kty: Option<String>,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The keys that the API server signs tokens with, and the issuer that it names in them.
#[derive(Debug)]
pub(super) struct KeySet {
    issuer: String,
    /// The keys by id; `None` for a key of another kind than those of [`PublicKey`].
    keys: HashMap<String, Option<PublicKey>>,
}

#[derive(Debug)]
enum PublicKey {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    P256(UnparsedPublicKey<Vec<u8>>),
    P384(UnparsedPublicKey<Vec<u8>>),
}

/// Why the keys do not prove a token. The API server may accept it nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unverified {
    /// There are no keys, or they are too old.
    #[error("the API server's keys are not known")]
    NoKeys,
    /// Its signature is not verified, since too many from its address were wrong of late.
    #[error("too many signatures from its address were wrong")]
    TooManyWrong,
    /// It has another form, or names no key.
    #[error("it is not a JSON Web Token of a service account with a key id")]
    Malformed,
    /// The set has no such key.
    #[error("it names a key that the API server did not publish")]
    UnknownKey,
    /// Its algorithm is not that of the key, or the key is of a kind that is not used here.
    #[error("its algorithm is not that of a supported key")]
    OtherAlgorithm,
    /// The key has not signed this.
    #[error("its signature is wrong")]
    WrongSignature,
    /// It has another issuer.
    #[error("it is of another issuer")]
    OtherIssuer,
    /// It is meant for others.
    #[error("it is for another audience")]
    OtherAudience,
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// Its time has not come, or the clocks are too far apart.
    #[error("it is not valid yet")]
    NotYetValid,
    /// It was issued for longer than [`ISSUED_FOR_SECS_MAX`].
    #[error("it was issued for more than an hour")]
    ValidForTooLong,
    /// It is bound to no pod.
    #[error("it is not bound to a pod")]
    NoPod,
    /// It is bound to a Secret, which only a review looks up.
    #[error("it is bound to a Secret")]
    BoundToSecret,
    /// Its subject is not the service account that it names.
    #[error("its subject is not its service account")]
    OtherSubject,
}

/// The protected header of a JSON Web Signature (RFC 7515).
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a verifier must understand. None is understood here.
    crit: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct SignedClaims {
    iss: String,
    sub: String,
    aud: Vec<String>,
    /// In seconds since 1970, as `nbf`.
    exp: u64,
    /// When the token was issued: the API server writes the same time as in `iat`.
    nbf: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<KubernetesClaims>,
}

impl KeySet {
    /// The keys that the API server has published.
    pub(super) fn new(metadata: IssuerMetadata, published: &JsonWebKeySet) -> Self {
        let keys = published.keys.iter().filter_map(|key| {
            let id = key.kid.clone().filter(|id| !id.is_empty())?;
            Some((id, PublicKey::read(key)))
        });
        Self { issuer: metadata.issuer, keys: keys.collect() }
    }

    /// The identity that a token for `audience` proves at `now_secs`, in seconds since 1970: that
    /// of a pod. The caller checks that the pod exists.
    ///
    /// # Errors
    /// Why it proves none.
    pub(super) fn verify(
        &self,
        token: &str,
        audience: &str,
        now_secs: u64,
    ) -> Result<Identity, Unverified> {
        let (signed, signature) = token.rsplit_once('.').ok_or(Unverified::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(Unverified::Malformed)?;
        let header: Header = json_part(header)?;
        let id = header.kid.filter(|_| header.crit.is_none()).ok_or(Unverified::Malformed)?;
        let key = self.keys.get(&id).ok_or(Unverified::UnknownKey)?.as_ref();
        let key = key.filter(|key| key.algorithm() == header.alg);
        let key = key.ok_or(Unverified::OtherAlgorithm)?;
        let signature = part(signature)?;
        if !key.has_signed(signed.as_bytes(), &signature) {
            return Err(Unverified::WrongSignature);
        }
        let claims: SignedClaims = json_part(payload)?;
        if claims.iss != self.issuer {
            return Err(Unverified::OtherIssuer);
        }
        claims.identity(audience, now_secs)
    }
}

impl SignedClaims {
    fn identity(self, audience: &str, now_secs: u64) -> Result<Identity, Unverified> {
        if !self.aud.iter().any(|given| given == audience) {
            return Err(Unverified::OtherAudience);
        }
        if now_secs >= self.exp {
            return Err(Unverified::Expired);
        }
        if self.nbf.saturating_sub(now_secs) > CLOCKS_APART_SECS {
            return Err(Unverified::NotYetValid);
        }
        if self.exp.saturating_sub(self.nbf) > ISSUED_FOR_SECS_MAX {
            return Err(Unverified::ValidForTooLong);
        }
        let KubernetesClaims { namespace, serviceaccount, pod, secret } =
            self.kubernetes.ok_or(Unverified::NoPod)?;
        if secret.is_some() {
            return Err(Unverified::BoundToSecret);
        }
        let (Some(account), Some(pod)) = (serviceaccount, pod) else {
            return Err(Unverified::NoPod);
        };
        let identity = Identity::of_pod(&namespace, account, pod);
        if identity.username == self.sub { Ok(identity) } else { Err(Unverified::OtherSubject) }
    }
}

impl PublicKey {
    /// The key, if it is for signatures of a kind that is verified here.
    fn read(key: &JsonWebKey) -> Option<Self> {
        if key.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let number = |field: &Option<String>| URL_SAFE_NO_PAD.decode(field.as_deref()?).ok();
        let point = |length: usize| {
            let (x, y) = (number(&key.x)?, number(&key.y)?);
            let is_whole = x.len() == length && y.len() == length;
            is_whole.then(|| [&[UNCOMPRESSED_POINT][..], &x[..], &y[..]].concat())
        };
        let public = match (key.kty.as_deref()?, key.crv.as_deref()) {
            ("RSA", _) => {
                Self::Rsa(RsaPublicKeyComponents { n: number(&key.n)?, e: number(&key.e)? })
            }
            ("EC", Some("P-256")) => {
                Self::P256(UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point(32)?))
            }
            ("EC", Some("P-384")) => {
                Self::P384(UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point(48)?))
            }
            _ => return None,
        };
        let agrees = key.alg.as_deref().is_none_or(|algorithm| algorithm == public.algorithm());
        agrees.then_some(public)
    }

    /// The name of the algorithm of its signatures (RFC 7518, 3.1).
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::P384(_) => "ES384",
        }
    }

    fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::Rsa(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature),
            Self::P256(key) | Self::P384(key) => key.verify(message, signature),
        };
        verified.is_ok()
    }
}

/// The bytes of a part of a token.
fn part(text: &str) -> Result<Vec<u8>, Unverified> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| Unverified::Malformed)
}

/// The JSON in a part of a token.
fn json_part<T: DeserializeOwned>(text: &str) -> Result<T, Unverified> {
    serde_json::from_slice(&part(text)?).map_err(|_| Unverified::Malformed)
}
