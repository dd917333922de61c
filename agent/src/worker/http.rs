//! The adapter `http`: a worker with its own HTTP interface, polled and controlled with requests
//! that the agent's options describe.
//!
//! Invariant: a size is in effect only if the worker shows it, or has answered it with a 2xx.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hyper::Method;
use hyper::header::HeaderValue;
use serde_json::Value;

use super::polled::Polled;
use super::sizing::{Adjustment, Observation, SizeBound, Target};
use crate::config::{HttpAdapter, HttpRequest, Sizing};
use crate::http_client::{ANSWER_BYTES_MAX, Answer, Call, Url};

/// The time limit of a poll.
const POLL_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of an order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);
/// An order is repeated if the worker does not show the size after this many polls.
const RESEND_AFTER_POLLS: u32 = 10;

/// One worker.
#[derive(Debug)]
pub(crate) struct HttpWorker {
    adapter: HttpAdapter,
    bound: SizeBound,
    /// The worker has accepted the request to drain.
    drained: bool,
    /// The last size that it has answered with a 2xx.
    answered: Option<u32>,
    /// Polls since the last order.
    polls: u32,
}

impl HttpWorker {
    /// A worker whose pool size a previous agent has set to at most `most`.
    pub(crate) fn new(adapter: HttpAdapter, most: Option<u32>) -> Self {
        let bound = first_bound(&adapter.sizing, most);
        Self { adapter, bound, drained: false, answered: None, polls: 0 }
    }

    /// Fetches the number of running jobs, and the size that the worker shows.
    async fn fetch(&self) -> anyhow::Result<(u32, Option<u32>)> {
        let url = &self.adapter.count;
        let request_line = || format!("--http-count-url {url}");
        let answer =
            self.call(Method::GET, url, None, POLL_TIMEOUT).await.with_context(request_line)?;
        let body: Value = serde_json::from_slice(&answer.body)
            .with_context(|| format!("--http-count-url {url}: the answer is not JSON"))?;
        let running = number_at(&body, "--http-count-field", &self.adapter.count_field)?;
        let field = self.adapter.size_field.as_deref();
        let size = field.map(|field| number_at(&body, "--http-size-field", field)).transpose()?;
        Ok((running, size))
    }

    async fn send(&self, request: &HttpRequest, size: u32) -> anyhow::Result<()> {
        let (method, url, body) = request.at(size);
        let request_line = format!("{method} {url}");
        self.call(method, &url, body, ORDER_TIMEOUT).await.context(request_line).map(drop)
    }

    /// Sends a request; any answer but a 2xx is an error.
    async fn call(
        &self,
        method: Method,
        url: &Url,
        json: Option<String>,
        limit: Duration,
    ) -> anyhow::Result<Answer> {
        let authorization = self.authorization().await?;
        let (timeout, answer_bytes_max) = (Some(limit), ANSWER_BYTES_MAX);
        let call = Call { method, url, authorization, json, timeout, answer_bytes_max };
        let answer = call.send().await?;
        match answer.status {
            200..300 => Ok(answer),
            status => bail!("it answered {status}"),
        }
    }

    async fn authorization(&self) -> anyhow::Result<Option<HeaderValue>> {
        let Some(path) = &self.adapter.auth else { return Ok(None) };
        let shown = path.display();
        let text = tokio::fs::read_to_string(path).await;
        let text = text.with_context(|| format!("cannot read --http-auth-file {shown}"))?;
        let Ok(mut value) = HeaderValue::from_str(text.trim()) else {
            bail!("invalid --http-auth-file {shown}: expected one line of plain text");
        };
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// The number of jobs at a JSON pointer in an answer.
pub(crate) fn number_at(body: &Value, option: &str, pointer: &str) -> anyhow::Result<u32> {
    let found = body.pointer(pointer);
    let number = found.and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| {
        let found = found.map_or("nothing".into(), Value::to_string);
        let found: String = found.chars().take(80).collect();
        anyhow!("{option} {pointer}: the answer has {found} there, expected a number of jobs")
    })
}

impl Polled for HttpWorker {
    async fn poll(&mut self) -> anyhow::Result<Observation> {
        let (running, size) = match self.fetch().await {
            Ok(shown) => shown,
            Err(error) => {
                // The worker may have restarted when it answers again.
                match self.adapter.sizing {
                    Sizing::Request(_) => self.bound.forget(),
                    Sizing::Fixed(_) => self.bound = first_bound(&self.adapter.sizing, None),
                }
                (self.drained, self.answered) = (false, None);
                return Err(error);
            }
        };
        self.polls = self.polls.saturating_add(1);
        match size.filter(|_| !self.drained) {
            None => {}
            Some(size) if self.polls == 1 => self.bound.observed_once(size),
            Some(size) => self.bound.observed(size),
        }
        Ok(self.bound.observation(running))
    }

    fn adjustment(&self, target: Target) -> Adjustment {
        let drains = target.draining && self.adapter.drain.is_some();
        match &self.adapter.sizing {
            _ if drains && self.drained => Adjustment::Nothing,
            _ if drains => Adjustment::Order { size: 0, grows: false },
            Sizing::Fixed(_) => Adjustment::Nothing,
            Sizing::Request(_) => match self.bound.adjustment(target) {
                Adjustment::Order { size, .. }
                    if self.answered == Some(size) && self.polls < RESEND_AFTER_POLLS =>
                {
                    Adjustment::PollSoon
                }
                adjustment => adjustment,
            },
        }
    }

    async fn order(&mut self, size: u32, target: Target) -> anyhow::Result<()> {
        let drain = self.adapter.drain.as_ref().filter(|_| target.draining);
        let request = match (drain, &self.adapter.sizing) {
            (Some(drain), _) => drain.clone(),
            (None, Sizing::Request(request)) => request.clone(),
            (None, Sizing::Fixed(_)) => return Ok(()),
        };
        self.bound.sending(size);
        (self.polls, self.answered) = (0, None);
        self.send(&request, size).await?;
        self.bound.confirmed(size);
        self.answered = Some(size);
        self.drained = target.draining;
        tracing::info!(size, draining = target.draining, "set the worker's pool size");
        Ok(())
    }
}

/// The bound before the first poll.
fn first_bound(sizing: &Sizing, most: Option<u32>) -> SizeBound {
    match sizing {
        Sizing::Request(_) => SizeBound::inherited(most),
        Sizing::Fixed(max) => SizeBound::inherited(Some(*max)),
    }
}
