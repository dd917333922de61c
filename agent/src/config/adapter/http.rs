//! Options of the adapter `http`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use leasehold_types::flag::{DurationRange, duration, number};
use leasehold_types::limits::JOBS_PER_WORKER_MAX;

use super::first_given;
use super::travis::INTERVAL;
use crate::http_client::Url;

/// The placeholder for the pool size in a URL or a body.
const SIZE: &str = "{size}";

/// The adapter `http`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAdapter {
    /// Answers with JSON that holds the number of running jobs.
    pub count: Url,
    /// The JSON pointer to that number.
    pub count_field: String,
    /// The JSON pointer to the pool size that the worker respects.
    pub size_field: Option<String>,
    /// How the pool size is set.
    pub sizing: Sizing,
    /// Begins the worker's drain.
    pub drain: Option<HttpRequest>,
    /// The file with the value of the `Authorization` header.
    pub auth: Option<PathBuf>,
    /// How often the worker is polled.
    pub interval: Duration,
}

/// How the pool size is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// With this request.
    Request(HttpRequest),
    /// It is fixed: the worker may run this many jobs until it drains.
    Fixed(u32),
}

/// A request with a placeholder for the size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    method: Method,
    url: String,
    body: Option<String>,
}

impl HttpRequest {
    fn new(
        option: &str,
        method: Option<Method>,
        default: Method,
        url: String,
        body: Option<String>,
    ) -> Result<Self, String> {
        let request = Self { method: method.unwrap_or(default), url, body };
        let url = request.url.replace(SIZE, "0");
        url.parse::<Url>().map_err(|why| format!("{option}: {why}"))?;
        Ok(request)
    }

    /// Method, URL and body for this size.
    pub(crate) fn at(&self, size: u32) -> (Method, Url, Option<String>) {
        let fill = |text: &str| text.replace(SIZE, &size.to_string());
        let url = fill(&self.url).parse().expect("parsed with another number");
        (self.method.clone(), url, self.body.as_deref().map(fill))
    }
}

/// Options of the adapter `http`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapter http")]
pub(super) struct HttpArgs {
    /// The URL that answers GET with JSON that contains the number of running jobs
    #[arg(long, env = "LEASEHOLD_HTTP_COUNT_URL", value_name = "URL")]
    http_count_url: Option<Url>,
    /// The JSON pointer to that number, for example /jobs/running
    #[arg(long, env = "LEASEHOLD_HTTP_COUNT_FIELD", value_name = "POINTER")]
    http_count_field: Option<String>,
    /// The JSON pointer to the pool size that the worker respects; without it, the size is in
    /// effect once --http-size-url answers with 2xx
    #[arg(long, env = "LEASEHOLD_HTTP_SIZE_FIELD", value_name = "POINTER")]
    http_size_field: Option<String>,
    /// The URL that sets the worker's pool size; {size} is replaced by the size
    #[arg(long, env = "LEASEHOLD_HTTP_SIZE_URL", value_name = "URL")]
    http_size_url: Option<String>,
    /// The method of that request [default: PUT]
    #[arg(long, env = "LEASEHOLD_HTTP_SIZE_METHOD", value_name = "METHOD")]
    #[arg(requires = "http_size_url")]
    http_size_method: Option<Method>,
    /// The JSON body of that request; {size} is replaced by the size [default: {"size":{size}}]
    #[arg(long, env = "LEASEHOLD_HTTP_SIZE_BODY", value_name = "JSON", requires = "http_size_url")]
    http_size_body: Option<String>,
    /// Instead of --http-size-url: the worker's size is fixed, and this many slots count as used
    /// from its start until it drains
    #[arg(long, env = "LEASEHOLD_HTTP_SIZE_MAX", value_name = "N")]
    #[arg(conflicts_with = "http_size_url", requires = "http_drain_url")]
    #[arg(value_parser = number::<u32>(0..=JOBS_PER_WORKER_MAX.into(), "a number of jobs", 4))]
    http_size_max: Option<u32>,
    /// The URL that begins the worker's drain: after a 2xx no job starts; without it, the agent
    /// sets the size 0
    #[arg(long, env = "LEASEHOLD_HTTP_DRAIN_URL", value_name = "URL")]
    http_drain_url: Option<String>,
    /// The method of that request [default: POST]
    #[arg(long, env = "LEASEHOLD_HTTP_DRAIN_METHOD", value_name = "METHOD")]
    #[arg(requires = "http_drain_url")]
    http_drain_method: Option<Method>,
    /// The JSON body of that request
    #[arg(long, env = "LEASEHOLD_HTTP_DRAIN_BODY", value_name = "JSON")]
    #[arg(requires = "http_drain_url")]
    http_drain_body: Option<String>,
    /// A file with the value of the Authorization header, read again for every request
    #[arg(long, env = "LEASEHOLD_HTTP_AUTH_FILE", value_name = "FILE")]
    http_auth_file: Option<PathBuf>,
    /// How often the worker is polled; five times as often during a change [default: 1s]
    #[arg(long, env = "LEASEHOLD_HTTP_INTERVAL", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::OF_REQUESTS))]
    http_interval: Option<Duration>,
}

impl HttpArgs {
    /// The first option of this adapter that is set.
    pub(super) fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--http-count-url", self.http_count_url.is_some()),
            ("--http-count-field", self.http_count_field.is_some()),
            ("--http-size-field", self.http_size_field.is_some()),
            ("--http-size-url", self.http_size_url.is_some()),
            ("--http-size-max", self.http_size_max.is_some()),
            ("--http-drain-url", self.http_drain_url.is_some()),
            ("--http-auth-file", self.http_auth_file.is_some()),
            ("--http-interval", self.http_interval.is_some()),
        ])
    }

    /// Validates the options.
    pub(super) fn check(self) -> Result<HttpAdapter, String> {
        let count = self.http_count_url.ok_or("--adapter http needs --http-count-url")?;
        let count_field = self.http_count_field.ok_or("--adapter http needs --http-count-field")?;
        for (option, field) in [
            ("--http-count-field", Some(&count_field)),
            ("--http-size-field", self.http_size_field.as_ref()),
        ] {
            if let Some(field) = field.filter(|field| !field.starts_with('/')) {
                return Err(format!(
                    "invalid {option} {field:?}: expected a JSON pointer, which begins with /"
                ));
            }
        }
        let body = self.http_size_body.or_else(|| Some(format!(r#"{{"size":{SIZE}}}"#)));
        let sizing = match (self.http_size_url, self.http_size_max) {
            (Some(url), _) => {
                if !(url.contains(SIZE) || body.as_ref().is_some_and(|body| body.contains(SIZE))) {
                    return Err("neither --http-size-body nor --http-size-url contains {size}: \
                                add {size} where the worker expects the pool size"
                        .into());
                }
                let (option, method) = ("--http-size-url", self.http_size_method);
                Sizing::Request(HttpRequest::new(option, method, Method::PUT, url, body)?)
            }
            (None, Some(max)) => Sizing::Fixed(max),
            (None, None) => {
                return Err("--adapter http needs --http-size-url, or --http-size-max if the \
                            worker's size is fixed"
                    .into());
            }
        };
        let (method, body) = (self.http_drain_method, self.http_drain_body);
        let drain = self
            .http_drain_url
            .map(|url| HttpRequest::new("--http-drain-url", method, Method::POST, url, body));
        let interval = self.http_interval.unwrap_or(INTERVAL);
        let (size_field, auth) = (self.http_size_field, self.http_auth_file);
        let drain = drain.transpose()?;
        Ok(HttpAdapter { count, count_field, size_field, sizing, drain, auth, interval })
    }
}
