//! Reads the keys that the API server signs tokens with, so that a token of a pod is verified
//! without a call. Without the right to read them, every token is reviewed by a call.

use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
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
/// The interval between two reads. While the keys can be read, a key that the API server withdraws
/// is used for this long at most.
const READ_EVERY: Duration = Duration::from_secs(300);
/// The shortest interval while there are keys. It holds after a failure, and when a token names an
/// unknown key: anybody can send such a token.
const READ_EVERY_MIN: Duration = Duration::from_secs(10);
/// The first interval while there are no keys; each of the next ones is twice as long.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The number of these intervals. After them the others hold.
const READ_AGAIN_TIMES: usize = 4;
/// How long the keys are used after they were read: as long as the tokens that they verify are
/// valid. An API server that is away makes no later tokens. Those that it made after the last read
/// expire up to [`READ_EVERY`] later than the keys, and are reviewed in that time.
const USED_FOR: Duration = Duration::from_secs(3_600);
/// The most wrong signatures of one address, and of all, that are found a minute. Each check takes
/// the time of a thread that serves sessions. More tokens are left to reviews, of which few are
/// made at a time.
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
    /// Whether the API server refused the last read.
    is_refused: bool,
    /// The next ones of [`delays_without_keys`].
    delays: ExponentialBackoff,
}

impl IssuerKeys {
    /// Starts reading the keys on the current runtime; until they are read, no token is verified.
    pub(super) fn start(client: Client) -> Self {
        let (sender, last_read) = watch::channel(None);
        let read_now = Arc::<Notify>::default();
        tokio::spawn(KeyReader::new(client, sender, Arc::clone(&read_now)).run());
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
    fn new(
        client: Client,
        last_read: watch::Sender<Option<Arc<ConfirmedKeys>>>,
        read_now: Arc<Notify>,
    ) -> Self {
        let delays = delays_without_keys();
        Self { client, last_read, read_now, succeeded: None, is_refused: false, delays }
    }

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
        let shortest = pause.min(READ_EVERY_MIN);
        sleep(shortest).await;
        tokio::select! {
            () = sleep(pause - shortest) => {}
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
                self.is_refused = false;
                self.delays = delays_without_keys();
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
                // The right is missing, or the API server has no key set. Once is not enough: an
                // API server refuses everybody for a moment after its start.
                let is_refused = error.is_forbidden() || error.is_not_found();
                let was_refused = mem::replace(&mut self.is_refused, is_refused);
                let is_refused_again = is_refused && was_refused;
                if is_refused_again {
                    self.last_read.send_replace(None);
                }
                self.pause_after_failure(is_refused_again)
            }
        }
    }

    fn pause_after_failure(&mut self, is_refused_again: bool) -> Duration {
        if self.last_read.borrow().is_some() {
            return READ_EVERY_MIN;
        }
        // A right that is missing for longer is not given soon.
        let longest = if is_refused_again { READ_EVERY } else { READ_EVERY_MIN };
        self.delays.next().unwrap_or(longest)
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

/// The delays between reads while there are no keys.
fn delays_without_keys() -> ExponentialBackoff {
    let builder = ExponentialBuilder::new().with_min_delay(READ_AGAIN_AFTER);
    builder.with_max_delay(READ_EVERY_MIN).with_max_times(READ_AGAIN_TIMES).build()
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

    /// Reads the keys from an API server that answers with these errors; returns the pauses, and
    /// whether there are keys then.
    async fn refused_reads(codes: &[u16], keys: Option<KeySet>) -> (Vec<Duration>, bool) {
        let confirmed = keys.map(|keys| Arc::new(ConfirmedKeys { keys, read_at: Moment(0) }));
        let (last_read, kept) = watch::channel(confirmed);
        let mut reader = KeyReader::new(refused_client(503), last_read, Arc::default());
        let mut pauses = Vec::new();
        for code in codes {
            reader.client = refused_client(*code);
            pauses.push(reader.read().await);
        }
        let are_kept = kept.borrow().is_some();
        (pauses, are_kept)
    }

    #[tokio::test]
    async fn the_last_keys_are_kept_until_the_api_server_refuses_them_twice_together() {
        for (codes, are_kept) in [
            (vec![503, 429, 503], true),
            (vec![403], true),
            (vec![404], true),
            (vec![403, 503, 404], true),
            (vec![403, 403], false),
            (vec![503, 404, 403], false),
        ] {
            let (pauses, kept) = refused_reads(&codes, Some(TestKey::p256().key_set())).await;
            assert_eq!(kept, are_kept, "{codes:?}");
            let is_retried = |pause: &Duration| *pause <= READ_EVERY_MIN;
            assert!(pauses.iter().all(is_retried), "{codes:?}: {pauses:?}");
        }
    }

    #[tokio::test]
    async fn the_first_keys_are_asked_for_again_soon_and_a_missing_right_rarely() {
        for (code, longest) in [(403, READ_EVERY), (404, READ_EVERY), (503, READ_EVERY_MIN)] {
            let codes = [code; READ_AGAIN_TIMES + 1];
            let (pauses, _) = refused_reads(&codes, None).await;
            assert!(pauses.is_sorted(), "{code}: {pauses:?}");
            assert_eq!(pauses.first(), Some(&READ_AGAIN_AFTER), "{code}");
            assert_eq!(pauses.last(), Some(&longest), "{code}");
        }
        let (pauses, _) = refused_reads(&[503, 503, 503, 503, 503, 403], None).await;
        assert_eq!(pauses.last(), Some(&READ_EVERY_MIN), "as an API server that has just started");
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
