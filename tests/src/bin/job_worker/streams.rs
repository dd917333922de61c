//! The streams and shares of pipelines that a worker owns. It owns each for as long as its lease is
//! surely valid, by its own clock and from when it asked, and records both ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_demo::clock::now_ns;
use leasehold_demo::journal::Event;
use leasehold_demo::work::quote;
use serde::Deserialize;
use tests::http::call;

use super::{RETRY, Shared};

/// How long the agent may keep the question for a change.
const CHANGE_WAIT_MS: u32 = 500;

/// Before a pipeline's name, where a share of it stands among the streams.
const SHARES_OF: &str = "shares of ";

/// A stream of a set.
type Key = (String, String);

/// The streams of one worker.
pub(super) struct Streams {
    address: SocketAddr,
    shared: Arc<Shared>,
    owned: BTreeMap<Key, Owned>,
    count: Arc<AtomicUsize>,
}

struct Owned {
    token: String,
    until_ns: Option<u64>,
    load_milli: Option<u64>,
}

#[derive(Deserialize)]
struct Lease {
    version: u64,
    streams: Vec<Held>,
    bindings: Vec<Binding>,
}

/// A share of a pipeline.
#[derive(Deserialize)]
struct Binding {
    pipeline: String,
    node: String,
    index: u32,
    token: String,
    state: String,
    valid_for_ms: Option<u64>,
    documents_per_second: f64,
}

#[derive(Deserialize)]
struct Held {
    set: String,
    stream: String,
    token: String,
    state: String,
    valid_for_ms: Option<u64>,
    #[serde(skip)]
    load_milli: Option<u64>,
}

impl Binding {
    /// The share as a stream of its pipeline, as journals have it.
    fn into_held(self) -> Held {
        Held {
            set: format!("{SHARES_OF}{}", self.pipeline),
            stream: format!("{}/{}", self.node, self.index),
            token: self.token,
            state: self.state,
            valid_for_ms: self.valid_for_ms,
            // A rate has at most three decimal places.
            load_milli: Some((self.documents_per_second * 1e3).round() as u64),
        }
    }
}

impl Streams {
    /// None yet; how many there are is asked to `count`.
    pub(super) fn new(address: SocketAddr, shared: Arc<Shared>, count: Arc<AtomicUsize>) -> Self {
        Self { address, shared, owned: BTreeMap::new(), count }
    }

    /// Owns granted streams until it is killed.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut version = 0;
        loop {
            let asked_ns = now_ns();
            let path = format!("/v1/lease?after_version={version}&wait_ms={CHANGE_WAIT_MS}");
            let left = self.owned.values().filter_map(|owned| owned.until_ns).min();
            let left = left.map(|until_ns| Duration::from_nanos(until_ns.saturating_sub(asked_ns)));
            let asked = call(self.address, "GET", &path, "");
            let answer = tokio::time::timeout(left.unwrap_or(Duration::from_secs(10)), asked).await;
            let lease = match answer {
                Ok(Ok((200, body))) => serde_json::from_str::<Lease>(&body).ok(),
                _ => None,
            };
            match lease {
                Some(lease) => {
                    version = lease.version;
                    let shares = lease.bindings.into_iter().map(Binding::into_held);
                    self.follow(lease.streams.into_iter().chain(shares), asked_ns).await?;
                }
                None => tokio::time::sleep(RETRY.min(left.unwrap_or(RETRY))).await,
            }
            self.expire().await?;
        }
    }

    async fn follow(
        &mut self,
        streams: impl Iterator<Item = Held>,
        asked_ns: u64,
    ) -> anyhow::Result<()> {
        let until_ns = |ms: u64| asked_ns + ms * 1_000_000;
        let (held, revoked): (Vec<_>, Vec<_>) = streams.partition(|stream| stream.state == "held");
        let mut may: BTreeMap<Key, Owned> = BTreeMap::new();
        for stream in held {
            let until_ns = stream.valid_for_ms.map(until_ns);
            let owned = Owned { token: stream.token, until_ns, load_milli: stream.load_milli };
            may.insert((stream.set, stream.stream), owned);
        }
        let is_over =
            |key: &&Key| may.get(*key).is_none_or(|lease| lease.token != self.owned[*key].token);
        let over: Vec<Key> = self.owned.keys().filter(is_over).cloned().collect();
        for key in over {
            self.stop(&key, "revoked").await?;
        }
        for (key, owned) in may {
            if !self.owned.contains_key(&key) {
                let (set, stream) = key.clone();
                let (token, load_milli) = (owned.token.clone(), owned.load_milli);
                self.shared.write(Event::OwnStart { set, stream, token, load_milli }).await?;
            }
            self.owned.insert(key, owned);
        }
        self.count.store(self.owned.len(), Ordering::Relaxed);
        for stream in revoked {
            let path = match stream.set.strip_prefix(SHARES_OF) {
                // The stream is the node and the share's number, as in the path.
                Some(pipeline) => format!("/v1/bindings/{}/{}", quote(pipeline), stream.stream),
                None => format!("/v1/streams/{}/{}", quote(&stream.set), quote(&stream.stream)),
            };
            let path = format!("{path}?token={}", stream.token);
            // A release that was lost is sent again after the next answer.
            let _ = call(self.address, "DELETE", &path, "").await;
        }
        Ok(())
    }

    async fn expire(&mut self) -> anyhow::Result<()> {
        let now_ns = now_ns();
        let is_over = |owned: &Owned| owned.until_ns.is_some_and(|until_ns| until_ns <= now_ns);
        let over = self.owned.iter().filter(|(_, owned)| is_over(owned));
        let over: Vec<Key> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            self.stop(&key, "expired").await?;
        }
        Ok(())
    }

    async fn stop(&mut self, key: &Key, why: &str) -> anyhow::Result<()> {
        let Some(Owned { token, until_ns, .. }) = self.owned.remove(key) else { return Ok(()) };
        self.count.store(self.owned.len(), Ordering::Relaxed);
        let ((set, stream), why) = (key.clone(), why.to_owned());
        self.shared.write(Event::OwnEnd { set, stream, token, why, until_ns }).await
    }
}
