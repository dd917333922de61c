//! The one watch loop of the workspace: it lists and watches, retries with backoff without end, and
//! logs the first failure of each outage. [`WatchCache`](super::WatchCache) builds a cache on it.
//! Pods, the authority's Secret and the desired state keep their own state on it, since they need
//! every event in its order, and a cache shows only the newest value of each object.

use std::fmt::Debug;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::{Stream, StreamExt, stream};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

use crate::api_call::{ApiError, error_with_causes};

/// How long a watch lasts, in seconds, before the API server ends it and it starts again. A watch
/// on a dead connection is ended by this side soon after that.
const WATCH_SECONDS: u32 = 40;
/// The backoff after a failure: first delay and longest delay.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// The watch's resource version is too old: the objects are listed again. This is not a failure.
const GONE: u16 = 410;

/// A failed list or watch. The next poll of the stream waits until the retry.
#[derive(Debug)]
pub struct RetriedError {
    /// The error of the list or the watch.
    pub error: watcher::Error,
    /// The error and its causes in one line.
    pub message: String,
    /// The time until the retry.
    pub retry_in: Duration,
}

impl RetriedError {
    /// Whether the API server forbids the list, so that nothing was ever read.
    pub fn is_forbidden_list(&self) -> bool {
        self.is_forbidden() && matches!(self.error, watcher::Error::InitialListFailed(_))
    }

    /// Whether the API server forbids the list, or the watch after it.
    pub fn is_forbidden(&self) -> bool {
        match &self.error {
            watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
                ApiError::from(error).is_forbidden()
            }
            _ => false,
        }
    }
}

/// Lists and watches without end: events in their order, and an error for each failure. It logs
/// the first failure of an outage, and its end. `name` names the objects in logs.
pub fn events<K>(
    name: impl Into<String>,
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, RetriedError>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let namespace = api.namespace().map(str::to_owned);
    let retries = Retries::new(name.into(), namespace);
    let start = (watcher(api, config.timeout(WATCH_SECONDS)).boxed(), retries);
    stream::unfold(start, |(mut watch, mut retries)| async move {
        retries.wait().await;
        loop {
            let event = match watch.next().await? {
                Ok(event) => {
                    // A list that has started may still fail.
                    if !matches!(event, Event::Init) {
                        retries.succeeded();
                    }
                    Ok(event)
                }
                Err(watcher::Error::WatchError(status)) if status.code == GONE => {
                    tracing::debug!(
                        name = retries.name,
                        namespace = retries.namespace,
                        "relisting"
                    );
                    retries.retry_at = Some(Instant::now() + RETRY_FIRST);
                    retries.wait().await;
                    continue;
                }
                Err(error) => Err(retries.failed(error)),
            };
            return Some((event, (watch, retries)));
        }
    })
}

/// The failures of one watch since it last succeeded.
struct Retries {
    name: String,
    namespace: Option<String>,
    delays: ExponentialBackoff,
    /// When to poll the watch again.
    retry_at: Option<Instant>,
    /// Whether the outage is logged.
    is_failing: bool,
}

impl Retries {
    fn new(name: String, namespace: Option<String>) -> Self {
        Self { name, namespace, delays: backoff(), retry_at: None, is_failing: false }
    }

    async fn wait(&mut self) {
        if let Some(retry_at) = self.retry_at.take() {
            sleep_until(retry_at).await;
        }
    }

    fn succeeded(&mut self) {
        self.delays = backoff();
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(name = self.name, namespace = self.namespace, "watching again");
        }
    }

    fn failed(&mut self, error: watcher::Error) -> RetriedError {
        let retry_in = self.delays.next().unwrap_or(RETRY_MAX);
        self.retry_at = Some(Instant::now() + retry_in);
        let message = error_with_causes(&error);
        let Self { name, namespace, .. } = self;
        if self.is_failing {
            tracing::debug!(name, namespace, why = message, "still cannot watch");
        } else {
            self.is_failing = true;
            let hint = hint(&error);
            tracing::warn!(name, namespace, why = message, hint, "cannot watch: retrying");
        }
        RetriedError { error, message, retry_in }
    }
}

fn backoff() -> ExponentialBackoff {
    let builder = ExponentialBuilder::new().with_min_delay(RETRY_FIRST).with_max_delay(RETRY_MAX);
    builder.with_jitter().without_max_times().build()
}

/// What to check after a failure.
fn hint(error: &watcher::Error) -> Option<&'static str> {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return None;
    };
    let error = ApiError::from(error);
    (error.is_forbidden() || error.is_not_found())
        .then_some("check that the CRDs and the RBAC rules of this version are applied")
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server that rejects the first two lists, then answers with no objects.
    fn server() -> Client {
        let calls = Arc::new(AtomicUsize::new(0));
        let answer = move |_: Request<Body>| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            async move {
                let (status, body) = match call {
                    0 | 1 => (403, json!({ "status": "Failure", "code": 403, "message": "no" })),
                    _ => (200, json!({ "metadata": { "resourceVersion": "7" }, "items": [] })),
                };
                let body = Body::from(body.to_string().into_bytes());
                let response = Response::builder().status(status).body(body).expect("a response");
                Ok::<_, std::convert::Infallible>(response)
            }
        };
        Client::new(tower::service_fn(answer), "ns")
    }

    #[tokio::test]
    async fn retries_a_failed_list_with_growing_delays() {
        let api: Api<ConfigMap> = Api::all(server());
        let mut events = pin!(events("ConfigMap", api, watcher::Config::default()));
        let (mut delays, started) = (Vec::new(), Instant::now());
        loop {
            match events.next().await.expect("the stream does not end") {
                Err(failed) => delays.push(failed.retry_in.as_millis()),
                Ok(Event::Init) => {}
                Ok(event) => {
                    assert!(matches!(event, Event::InitDone), "{event:?}");
                    break;
                }
            }
        }
        // Jitter adds up to the delay itself.
        assert_eq!(delays.len(), 2);
        assert!((200..=400).contains(&delays[0]) && (400..=800).contains(&delays[1]), "{delays:?}");
        assert!(started.elapsed() >= Duration::from_millis(600), "each retry waits for its delay");
    }
}
