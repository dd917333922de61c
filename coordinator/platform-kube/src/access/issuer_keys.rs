//! Reads the keys that the API server signs tokens with, so that a token of a pod is verified
//! without a call. Without the right to read them, every token is reviewed by a call.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use kube::Client;
use leasehold_driver::clock;
use leasehold_driver::log_limit::PeerLogLimit;
use leasehold_types::Moment;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::identity::Identity;
use super::key_set::{IssuerMetadata, JsonWebKeySet, KeySet, Unverified};
use crate::api_call::{ApiError, CALL_TIMEOUT, call, call_together};

const METADATA_PATH: &str = "/.well-known/openid-configuration";
const KEYS_PATH: &str = "/openid/v1/jwks";
/// Kubernetes' own role for reading both. By default all service accounts have it.
const ROLE: &str = "system:service-account-issuer-discovery";
/// The interval between two reads. While the API server answers, a key that it withdraws is used
/// for this long at most.
const READ_EVERY: Duration = Duration::from_secs(300);
/// The shortest interval, which holds after a failure, and when a token names an unknown key:
/// anybody can send such a token.
const READ_EVERY_MIN: Duration = Duration::from_secs(10);
/// How long the keys are used after they were read. It is as long as the tokens that they verify
/// are valid: an API server that is away makes no later tokens, and agents with earlier ones can
/// connect all the time.
const USED_FOR: Duration = Duration::from_secs(3_600);
/// The most wrong signatures of one address, and of all, that are found a minute. Each check takes
/// up to a millisecond of a thread that serves sessions. More tokens are left to reviews, of which
/// few are made at a time.
const WRONG_SIGNATURES_MAX: usize = 10;
const WRONG_SIGNATURES_TOTAL_MAX: usize = 1_000;

/// The API server's keys, as last read.
#[derive(Debug)]
pub(super) struct IssuerKeys {
    last_read: watch::Receiver<Option<Arc<ConfirmedKeys>>>,
    read_now: Arc<Notify>,
    /// The wrong signatures by address, counted as lines of a log are.
    wrong_signatures: PeerLogLimit,
}

/// Keys that the API server has published at some time.
#[derive(Debug)]
struct ConfirmedKeys {
    keys: KeySet,
    /// When they were asked for.
    read_at: Moment,
}

/// Reads the keys again and again.
struct KeyReader {
    client: Client,
    last_read: watch::Sender<Option<Arc<ConfirmedKeys>>>,
    read_now: Arc<Notify>,
    /// Whether the last read succeeded; `None` before the first one.
    succeeded: Option<bool>,
}

impl IssuerKeys {
    /// Starts reading the keys on the current runtime; until they are read, no token is verified.
    pub(super) fn start(client: Client) -> Self {
        let (sender, last_read) = watch::channel(None);
        let read_now = Arc::<Notify>::default();
        let reader = KeyReader {
            client,
            last_read: sender,
            read_now: Arc::clone(&read_now),
            succeeded: None,
        };
        tokio::spawn(reader.run());
        Self::new(last_read, read_now)
    }

    fn new(last_read: watch::Receiver<Option<Arc<ConfirmedKeys>>>, read_now: Arc<Notify>) -> Self {
        let wrong_signatures = PeerLogLimit::new(WRONG_SIGNATURES_MAX, WRONG_SIGNATURES_TOTAL_MAX);
        Self { last_read, read_now, wrong_signatures }
    }

    /// The identity that a token for `audience`, shown from the address `peer`, proves now.
    ///
    /// # Errors
    /// Why it proves none. Only a review can reject the token.
    pub(super) fn verify(
        &self,
        token: &str,
        audience: &str,
        peer: Option<IpAddr>,
    ) -> Result<Identity, Unverified> {
        self.verify_at(token, audience, peer, clock::now(), clock::time_of_day().as_secs())
    }

    fn verify_at(
        &self,
        token: &str,
        audience: &str,
        peer: Option<IpAddr>,
        now: Moment,
        now_secs: u64,
    ) -> Result<Identity, Unverified> {
        let last_read = self.last_read.borrow().clone();
        let confirmed = last_read.filter(|confirmed| now.since(confirmed.read_at) < USED_FOR);
        let confirmed = confirmed.ok_or(Unverified::NoKeys)?;
        if !self.wrong_signatures.has_room(&peer) {
            return Err(Unverified::TooManyWrong);
        }
        let verified = confirmed.keys.verify(token, audience, now_secs);
        match verified {
            Err(Unverified::UnknownKey) => self.read_now.notify_one(),
            Err(Unverified::WrongSignature) => _ = self.wrong_signatures.allows(peer),
            Ok(_) | Err(_) => {}
        }
        verified
    }
}

impl KeyReader {
    async fn run(mut self) {
        loop {
            let pause = self.read().await;
            tokio::select! {
                () = self.last_read.closed() => return,
                () = self.wait(pause) => {}
            }
        }
    }

    /// Waits until the next read is due.
    async fn wait(&self, pause: Duration) {
        sleep(READ_EVERY_MIN).await;
        tokio::select! {
            () = sleep(pause.saturating_sub(READ_EVERY_MIN)) => {}
            () = self.read_now.notified() => {}
        }
    }

    /// Reads the keys, and returns how long they need no other read.
    async fn read(&mut self) -> Duration {
        let read_at = clock::now();
        match self.fetch().await {
            Ok(keys) => {
                self.last_read.send_replace(Some(Arc::new(ConfirmedKeys { keys, read_at })));
                if self.succeeded.replace(true) != Some(true) {
                    tracing::info!("tokens of agents are verified by the API server's keys");
                }
                READ_EVERY
            }
            Err(error) => {
                if self.succeeded.replace(false) != Some(false) {
                    tracing::info!(
                        %error,
                        role = ROLE,
                        "cannot read the API server's keys: without keys each token of an agent \
                         is reviewed by a call; the role gives the right to read them"
                    );
                }
                // This needs a right, or the API server has no key set: neither changes soon.
                if error.is_forbidden() || error.is_not_found() {
                    self.last_read.send_replace(None);
                    return READ_EVERY;
                }
                READ_EVERY_MIN
            }
        }
    }

    async fn fetch(&self) -> Result<KeySet, ApiError> {
        let both = async {
            let metadata: IssuerMetadata = self.get(METADATA_PATH).await?;
            let published: JsonWebKeySet = self.get(KEYS_PATH).await?;
            Ok::<_, ApiError>(KeySet::new(metadata, &published))
        };
        call_together(CALL_TIMEOUT, both).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let request = Request::get(path).body(Vec::new()).expect("a path of this file");
        call(CALL_TIMEOUT, self.client.request(request)).await
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::Response;
    use futures_util::FutureExt;
    use kube::client::Body;
    use serde_json::json;

    use super::super::key_set_tests::{AUDIENCE, NOW_SECS, TestKey};
    use super::*;

    fn keys_read_at(keys: KeySet, read_at: Moment) -> IssuerKeys {
        let confirmed = Arc::new(ConfirmedKeys { keys, read_at });
        IssuerKeys::new(watch::channel(Some(confirmed)).1, Arc::default())
    }

    /// A client of an API server that answers everything with this error.
    fn refused_client(code: u16) -> Client {
        let answer = move |_: Request<Body>| {
            let status = json!({ "kind": "Status", "status": "Failure", "code": code });
            let body = Body::from(status.to_string().into_bytes());
            let response = Response::builder().status(code).body(body).expect("an answer");
            async move { Ok::<_, Infallible>(response) }
        };
        Client::new(tower::service_fn(answer), "ns")
    }

    #[tokio::test]
    async fn the_last_keys_are_kept_unless_the_api_server_refuses_to_show_them() {
        for (code, are_kept) in [(503, true), (429, true), (403, false), (404, false)] {
            let keys = TestKey::p256().key_set();
            let confirmed = Arc::new(ConfirmedKeys { keys, read_at: Moment(0) });
            let (last_read, kept) = watch::channel(Some(confirmed));
            let client = refused_client(code);
            let mut reader =
                KeyReader { client, last_read, read_now: Arc::default(), succeeded: Some(true) };
            reader.read().await;
            assert_eq!(kept.borrow().is_some(), are_kept, "{code}");
        }
    }

    #[test]
    fn keys_that_the_api_server_does_not_confirm_are_used_for_an_hour() {
        let key = TestKey::p256();
        let token = key.token(json!({}));
        let read_at = Moment(0) + Duration::from_secs(100);
        let keys = keys_read_at(key.key_set(), read_at);
        let verify = |after: u64| {
            keys.verify_at(&token, AUDIENCE, None, read_at + Duration::from_secs(after), NOW_SECS)
        };
        assert!(verify(3_599).is_ok());
        assert_eq!(verify(3_600), Err(Unverified::NoKeys));
    }

    #[test]
    fn only_an_unknown_key_has_the_keys_read_again() {
        let key = TestKey::p256();
        let keys = keys_read_at(key.key_set(), Moment(0));
        let verify = |token: &str| keys.verify_at(token, AUDIENCE, None, Moment(0), NOW_SECS);
        let asked_for = || keys.read_now.notified().now_or_never().is_some();
        let tokens = [key.token(json!({})), key.token(json!({ "aud": ["other"] })), "a.b.c".into()];
        assert_eq!(tokens.map(|token| verify(&token).is_ok()), [true, false, false]);
        assert!(!asked_for());
        let later = key.signed(&json!({ "alg": "ES256", "kid": "later" }), &json!({}));
        for _ in 0..2 {
            assert_eq!(verify(&later), Err(Unverified::UnknownKey));
        }
        assert!(asked_for());
        assert!(!asked_for(), "both have the keys read once");
    }

    #[test]
    fn an_address_with_many_wrong_signatures_has_no_more_verified() {
        let key = TestKey::p256();
        let (good, wrong) = (key.token(json!({})), TestKey::p256().token(json!({})));
        let late = key.token(json!({ "exp": NOW_SECS }));
        let keys = keys_read_at(key.key_set(), Moment(0));
        let verify = |token: &str, last: u8| {
            let peer = Some(IpAddr::from([192, 0, 2, last]));
            keys.verify_at(token, AUDIENCE, peer, Moment(0), NOW_SECS)
        };
        for _ in 0..WRONG_SIGNATURES_MAX {
            assert!(verify(&good, 1).is_ok(), "only wrong signatures count");
            assert_eq!(verify(&late, 1), Err(Unverified::Expired));
            assert_eq!(verify(&wrong, 1), Err(Unverified::WrongSignature));
        }
        for token in [&wrong, &good] {
            assert_eq!(verify(token, 1), Err(Unverified::TooManyWrong));
        }
        assert!(verify(&good, 2).is_ok(), "another address has its own");
    }
}
