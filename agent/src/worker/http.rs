//! The adapter `http`: a worker with an HTTP interface of its own, asked and told by requests that
//! the agent's options describe.
//!
//! Invariant: a size that the worker shows, or has answered with a 2xx, is in effect; nothing
//! else is.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hyper::Method;
use hyper::header::HeaderValue;
use serde_json::Value;

use super::bound::Bound;
use super::counted::{Need, Sight, Target};
use crate::config::{HttpAdapter, HttpRequest, Sizing};
use crate::http_client::{ANSWER_BYTES_MAX, Answer, Call, Url};

/// How long a question may take.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long an order may take.
const ORDER_MAX: Duration = Duration::from_secs(10);
/// Looks after an order until a worker that does not show the size is told again.
const PATIENCE: u32 = 10;

/// One worker.
#[derive(Debug)]
pub(crate) struct HttpWorker {
    adapter: HttpAdapter,
    bound: Bound,
    /// It has taken the drain's begin.
    drained: bool,
    /// The size that it has last answered with a 2xx.
    answered: Option<u32>,
    /// Looks since it was told something.
    looks: u32,
}

impl HttpWorker {
    /// A worker that an agent before this one has told at most this size.
    pub(crate) fn new(adapter: HttpAdapter, most: Option<u32>) -> Self {
        let bound = first_bound(&adapter.sizing, most);
        Self { adapter, bound, drained: false, answered: None, looks: 0 }
    }

    /// Asks it how things stand.
    pub(super) async fn look(&mut self) -> anyhow::Result<Sight> {
        let (running, size) = match self.ask().await {
            Ok(shown) => shown,
            Err(error) => {
                // Its process may be another when it answers again.
                match self.adapter.sizing {
                    Sizing::Request(_) => self.bound.forget(),
                    Sizing::Fixed(_) => self.bound = first_bound(&self.adapter.sizing, None),
                }
                (self.drained, self.answered) = (false, None);
                return Err(error);
            }
        };
        self.looks = self.looks.saturating_add(1);
        match size.filter(|_| !self.drained) {
            None => {}
            Some(size) if self.looks == 1 => self.bound.shows_for_now(size),
            Some(size) => self.bound.shows(size),
        }
        Ok(self.bound.sight(running))
    }

    /// What to tell it next.
    pub(super) fn need(&self, target: Target) -> Need {
        let drains = target.draining && self.adapter.drain.is_some();
        match &self.adapter.sizing {
            _ if drains && self.drained => Need::Nothing,
            _ if drains => Need::Order { size: 0, grows: false },
            Sizing::Fixed(_) => Need::Nothing,
            Sizing::Request(_) => match self.bound.need(target) {
                Need::Order { size, .. }
                    if self.answered == Some(size) && self.looks < PATIENCE =>
                {
                    Need::Look
                }
                need => need,
            },
        }
    }

    /// Tells it.
    pub(super) async fn order(&mut self, size: u32, target: Target) -> anyhow::Result<()> {
        let drain = self.adapter.drain.as_ref().filter(|_| target.draining);
        let request = match (drain, &self.adapter.sizing) {
            (Some(drain), _) => drain.clone(),
            (None, Sizing::Request(request)) => request.clone(),
            (None, Sizing::Fixed(_)) => return Ok(()),
        };
        self.bound.sending(size);
        (self.looks, self.answered) = (0, None);
        self.send(&request, size).await?;
        self.bound.kept(size);
        self.answered = Some(size);
        self.drained = target.draining;
        tracing::info!(size, draining = target.draining, "the worker was told its pool size");
        Ok(())
    }

    /// The jobs that run, and the size that it shows.
    async fn ask(&self) -> anyhow::Result<(u32, Option<u32>)> {
        let url = &self.adapter.count;
        let said = || format!("--http-count-url {url}");
        let answer = self.call(Method::GET, url, None, LOOK_MAX).await.with_context(said)?;
        let body: Value = serde_json::from_slice(&answer.body)
            .with_context(|| format!("--http-count-url {url}: the answer"))?;
        let number = |option: &str, pointer: &str| {
            let found = body.pointer(pointer);
            let number = found.and_then(Value::as_u64).and_then(|it| u32::try_from(it).ok());
            number.ok_or_else(|| {
                let found = found.map_or("nothing".into(), Value::to_string);
                let found: String = found.chars().take(80).collect();
                anyhow!("{option} {pointer}: the answer has {found} there, and no number of jobs")
            })
        };
        let running = number("--http-count-field", &self.adapter.count_field)?;
        let field = self.adapter.size_field.as_deref();
        let size = field.map(|field| number("--http-size-field", field)).transpose()?;
        Ok((running, size))
    }

    async fn send(&self, request: &HttpRequest, size: u32) -> anyhow::Result<()> {
        let (method, url, body) = request.at(size);
        let said = format!("{method} {url}");
        self.call(method, &url, body, ORDER_MAX).await.context(said).map(drop)
    }

    /// One request that is answered with a 2xx.
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
            status => bail!("the answer is {status}"),
        }
    }

    async fn authorization(&self) -> anyhow::Result<Option<HeaderValue>> {
        let Some(path) = &self.adapter.auth else { return Ok(None) };
        let shown = path.display();
        let text = tokio::fs::read_to_string(path).await;
        let text = text.with_context(|| format!("--http-auth-file {shown}"))?;
        let Ok(mut value) = HeaderValue::from_str(text.trim()) else {
            bail!("--http-auth-file {shown} is not one line of plain text");
        };
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// What is known of the size of a worker that has not been asked yet.
fn first_bound(sizing: &Sizing, most: Option<u32>) -> Bound {
    match sizing {
        Sizing::Request(_) => Bound::inherited(most),
        Sizing::Fixed(max) => Bound::inherited(Some(*max)),
    }
}
