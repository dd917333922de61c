//! The calls of a Travis worker's remote controller.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::Method;
use hyper::header::HeaderValue;
use leasehold_types::duration;
use serde::Deserialize;

use super::pool::{Figures, PoolOrder};
use crate::config::{TravisAdapter, TravisAuth};
use crate::http_client::{ANSWER_BYTES_MAX, Answer, Call, CallError};

/// The time limit of a poll.
const POLL_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of an order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that the worker reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) figures: Figures,
    /// How long its process has run; none if the value is invalid.
    pub(crate) uptime: Option<Duration>,
}

/// The result of an order.
#[derive(Debug)]
pub(super) enum OrderResult {
    /// It was carried out.
    Done,
    /// It was not sent, or was refused.
    NotDone(anyhow::Error),
    /// The result is unknown.
    Unknown(anyhow::Error),
}

/// The used fields of the answer to `GET /worker`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Worker {
    pool_size: i64,
    expected_pool_size: i64,
    #[serde(default)]
    uptime: String,
    /// Null if there are none.
    #[serde(default)]
    processors: Option<Vec<Processor>>,
}

#[derive(Deserialize)]
struct Processor {
    status: String,
}

/// Polls the worker; none if the connection is refused.
pub(super) async fn poll(adapter: &TravisAdapter) -> anyhow::Result<Option<Info>> {
    match send(adapter, Method::GET, "/worker", None, POLL_TIMEOUT).await? {
        Err(CallError::Refused) => Ok(None),
        Err(failure) => Err(failure).with_context(|| adapter.url.to_string()),
        Ok(answer) if answer.status == 200 => read(&answer.body).map(Some),
        Ok(answer) => Err(refusal(adapter, answer.status)),
    }
}

/// Sends an order.
pub(super) async fn order(adapter: &TravisAdapter, order: PoolOrder) -> OrderResult {
    let pause = match order {
        PoolOrder::Size(size) => {
            return send_order(adapter, Method::PATCH, format!(r#"{{"poolSize":{size}}}"#)).await;
        }
        PoolOrder::Pause => true,
        PoolOrder::ZeroWhilePaused => false,
        PoolOrder::Exit { toggle } => toggle,
    };
    send_order(adapter, Method::DELETE, format!(r#"{{"graceful":true,"pause":{pause}}}"#)).await
}

async fn send_order(adapter: &TravisAdapter, method: Method, body: String) -> OrderResult {
    // A worker that has not connected to its queue yet crashes on an order.
    match send(adapter, Method::GET, "/ready", None, POLL_TIMEOUT).await {
        Ok(Ok(Answer { status: 200, .. })) => {}
        Ok(Ok(Answer { status, .. })) => {
            return OrderResult::NotDone(anyhow!(
                "GET {}ready: {status}: the worker is not ready yet",
                adapter.url
            ));
        }
        Ok(Err(failure)) => {
            return OrderResult::NotDone(anyhow!("GET {}ready: {failure}", adapter.url));
        }
        Err(error) => return OrderResult::NotDone(error),
    }
    let request = format!("{method} {}worker", adapter.url);
    match send(adapter, method, "/worker", Some(body), ORDER_TIMEOUT).await {
        Err(error) => OrderResult::NotDone(error),
        Ok(Ok(Answer { status: 204, .. })) => OrderResult::Done,
        Ok(Ok(Answer { status: status @ (400..500), .. })) => {
            OrderResult::NotDone(refusal(adapter, status))
        }
        Ok(Ok(Answer { status, .. })) => OrderResult::Unknown(anyhow!("{request}: {status}")),
        Ok(Err(failure @ (CallError::Refused | CallError::NotSent(_)))) => {
            OrderResult::NotDone(anyhow!("{request}: {failure}"))
        }
        Ok(Err(failure @ (CallError::Lost(_) | CallError::NotHttp(_)))) => {
            OrderResult::Unknown(anyhow!("{request}: {failure}"))
        }
    }
}

/// Sends one request. The outer error is an invalid option of the agent.
async fn send(
    adapter: &TravisAdapter,
    method: Method,
    path: &'static str,
    json: Option<String>,
    limit: Duration,
) -> anyhow::Result<Result<Answer, CallError>> {
    let url = adapter.url.at(path);
    let authorization = Some(authorization(&adapter.auth).await?);
    let (timeout, answer_bytes_max) = (Some(limit), ANSWER_BYTES_MAX);
    let call = Call { method, url: &url, authorization, json, timeout, answer_bytes_max };
    Ok(call.send().await)
}

/// The `Authorization` header.
async fn authorization(auth: &TravisAuth) -> anyhow::Result<HeaderValue> {
    let text = match auth {
        TravisAuth::Given(secret) => secret.reveal().to_owned(),
        TravisAuth::File(path) => {
            let text = tokio::fs::read_to_string(path).await;
            text.with_context(|| format!("cannot read --travis-auth-file {}", path.display()))?
        }
    };
    let text = text.trim();
    if !text.contains(':') {
        bail!("invalid user and password: expected USER:PASSWORD");
    }
    let value = format!("Basic {}", BASE64_STANDARD.encode(text));
    let mut value = HeaderValue::from_str(&value).expect("base64 is plain text");
    value.set_sensitive(true);
    Ok(value)
}

fn refusal(adapter: &TravisAdapter, status: u16) -> anyhow::Error {
    let url = &adapter.url;
    match status {
        401 => anyhow!("{url}: 401: the request had no user and password"),
        403 => anyhow!(
            "{url}: 403: --travis-auth differs from the worker's \
             TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH"
        ),
        404 => anyhow!(
            "{url}: 404: this is not a remote controller; set the worker's \
             TRAVIS_WORKER_REMOTE_CONTROLLER_ADDR and TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH"
        ),
        _ => anyhow!("{url}: {status}"),
    }
}

/// Reads the answer to `GET /worker`.
pub(crate) fn read(body: &[u8]) -> anyhow::Result<Info> {
    let worker: Worker =
        serde_json::from_slice(body).context("cannot parse the answer to GET /worker")?;
    let count = |number: i64| u32::try_from(number.max(0)).unwrap_or(u32::MAX);
    let processors = worker.processors.unwrap_or_default();
    let processing = processors.iter().filter(|processor| processor.status == "processing").count();
    let figures = Figures {
        size: count(worker.pool_size),
        expected: count(worker.expected_pool_size),
        processing: u32::try_from(processing).unwrap_or(u32::MAX),
    };
    Ok(Info { figures, uptime: duration::GO.parse(&worker.uptime).ok() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_an_answer_of_the_worker() {
        let body = br#"{"version":"v6","revision":"r","generated":"g","uptime":"1h2m3.5s",
            "poolSize":3,"expectedPoolSize":2,"totalProcessed":9,"processors":[
            {"id":"a","processed":1,"status":"processing","lastJobId":1},
            {"id":"b","processed":1,"status":"waiting","lastJobId":1}]}"#;
        let figures = Figures { size: 3, expected: 2, processing: 1 };
        let uptime = Some(Duration::from_millis(3_723_500));
        assert_eq!(read(body).expect("a valid answer"), Info { figures, uptime });
        let body = br#"{"poolSize":0,"expectedPoolSize":0,"processors":null}"#;
        let none = Info { figures: Figures::default(), uptime: None };
        assert_eq!(read(body).expect("a valid answer"), none);
        assert!(read(b"{}").is_err());
    }
}
