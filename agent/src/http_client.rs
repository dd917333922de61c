//! HTTP/1.1 calls within this machine or pod: one connection per call, with limits on the time and
//! on the bytes of the answer.
//!
//! Invariant: an error says whether the server may have received the request.

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;
use std::str::FromStr;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, HttpConnector, capture_connection};
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

/// The most bytes of a worker's answer.
pub(crate) const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// The most characters of a body in an error message.
const SUMMARY_CHARS_MAX: usize = 160;

/// An `http://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    authority: Authority,
    path: PathAndQuery,
}

impl Url {
    /// `HOST:PORT` as it was written.
    pub(crate) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The same server with another path, which begins with `/`.
    pub(crate) fn at(&self, path: &'static str) -> Self {
        Self { authority: self.authority.clone(), path: PathAndQuery::from_static(path) }
    }

    /// Whether it has neither a path nor a query.
    pub(crate) fn is_bare(&self) -> bool {
        self.path == "/"
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid URL {text:?}: expected http://HOST:PORT/PATH");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let parts = uri.into_parts();
        if parts.scheme != Some(Scheme::HTTP) {
            return Err(wrong());
        }
        let authority = parts.authority.ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            // The error and later log lines show the URL, so it must not hold a secret.
            return Err("invalid URL: remove the user and the password from it".into());
        }
        let path = parts.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        Ok(Self { authority, path })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) url: &'a Url,
    /// The value of the `Authorization` header.
    pub(crate) authorization: Option<HeaderValue>,
    /// The body, which is JSON.
    pub(crate) json: Option<String>,
    /// How long the call may take, from the connection to the last byte of the answer.
    pub(crate) timeout: Option<Duration>,
    /// The most bytes of the answer's body.
    pub(crate) answer_bytes_max: usize,
}

/// An answer of any status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Answer {
    /// Its status and the first line of its body, for people who expected another answer.
    pub(crate) fn summary(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        let line = body.trim().lines().next().unwrap_or_default();
        let line: String = line.chars().take(SUMMARY_CHARS_MAX).collect();
        if line.is_empty() { self.status.to_string() } else { format!("{}, {line}", self.status) }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// No process listens there: the request was not sent.
    #[error("connection refused: nothing listens there")]
    Refused,
    /// The connection failed: the request was not sent.
    #[error("{0}")]
    NotSent(String),
    /// The server may have received the request and acted on it.
    #[error("{0}")]
    Lost(String),
    /// The server does not speak HTTP/1.1. It may have received the request.
    #[error("it does not answer with HTTP/1.1 ({0})")]
    NotHttp(String),
}

impl Call<'_> {
    /// Sends the request and waits for the answer.
    ///
    /// # Errors
    /// If no answer arrives in time, or it is longer than the limit.
    pub(crate) async fn send(self) -> Result<Answer, CallError> {
        let mut request = self.request();
        let connection = capture_connection(&mut request);
        let Some(limit) = self.timeout else { return self.exchange(request, &connection).await };
        match timeout(limit, self.exchange(request, &connection)).await {
            Ok(answer) => answer,
            Err(_) if is_connected(&connection) => {
                Err(CallError::Lost(format!("no answer within {limit:?}")))
            }
            Err(_) => Err(CallError::NotSent(format!("no connection within {limit:?}"))),
        }
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        connection: &CaptureConnection,
    ) -> Result<Answer, CallError> {
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .retry_canceled_requests(false)
            .build(HttpConnector::new());
        let answer =
            client.request(request).await.map_err(|error| match is_connected(connection) {
                true if is_parse(&error) => CallError::NotHttp(causes(&error)),
                true => CallError::Lost(causes(&error)),
                false if is_refused(&error) => CallError::Refused,
                false => CallError::NotSent(causes(&error)),
            })?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), self.answer_bytes_max).collect().await;
        let body = body
            .map_err(|error| CallError::Lost(format!("cannot read the answer's body: {error}")))?;
        Ok(Answer { status, body: body.to_bytes() })
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let body = Bytes::from(self.json.clone().unwrap_or_default());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.url.to_string().parse().expect("a URL is a URI");
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if self.json.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        request
    }
}

/// Whether there was a connection, so that the request may have been sent.
fn is_connected(connection: &CaptureConnection) -> bool {
    connection.connection_metadata().is_some()
}

/// Whether nothing listens at the address.
pub(crate) fn is_refused(error: &(dyn Error + 'static)) -> bool {
    anyhow::Chain::new(error).any(|error| {
        let io = error.downcast_ref::<std::io::Error>();
        io.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    })
}

fn is_parse(error: &(dyn Error + 'static)) -> bool {
    anyhow::Chain::new(error)
        .any(|error| error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse))
}

/// The causes of a client error: its own text names only the failed step.
fn causes(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = anyhow::Chain::new(error).skip(1).map(ToString::to_string).collect();
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_http_urls_without_credentials() {
        for (text, shown) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("http://[::1]:1/worker?a=b", "http://[::1]:1/worker?a=b"),
            ("http://localhost/x", "http://localhost/x"),
        ] {
            assert_eq!(text.parse::<Url>().map(|url| url.to_string()), Ok(shown.into()));
        }
        for text in ["", "/worker", "127.0.0.1:80", "https://a/b", "http://", "http://u:p@a/b"] {
            let error = text.parse::<Url>().expect_err(text);
            assert!(!error.contains("u:p"), "{error}");
        }
    }

    #[tokio::test]
    async fn an_error_says_whether_the_server_may_have_received_the_request() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let url: Url = format!("http://{address}/").parse().expect("a URL");
        let call = |timeout_ms| Call {
            method: Method::GET,
            url: &url,
            authorization: None,
            json: None,
            timeout: Some(Duration::from_millis(timeout_ms)),
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        // The system accepts the connection, and no process answers.
        let lost = call(50).send().await;
        assert!(
            matches!(&lost, Err(CallError::Lost(why)) if why.contains("no answer")),
            "{lost:?}"
        );
        drop(listener);
        assert_eq!(call(5_000).send().await, Err(CallError::Refused));
    }
}
