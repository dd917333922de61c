//! Small HTTP/1.1 calls, to this machine or this pod: one connection each, bounded in time and in
//! the bytes of the answer.
//!
//! Invariant: a failure says whether the request may have reached its receiver.

use std::fmt;
use std::io::ErrorKind;
use std::str::FromStr;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// The port of a URL that names none.
const PORT: u16 = 80;

/// An `http://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    authority: Authority,
    path: PathAndQuery,
}

impl Url {
    /// The same place with another path, which begins with `/`.
    pub(crate) fn at(&self, path: &'static str) -> Self {
        Self { authority: self.authority.clone(), path: PathAndQuery::from_static(path) }
    }

    /// Whether it names nothing but a place.
    pub(crate) fn is_bare(&self) -> bool {
        self.path == "/"
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no URL: write http://HOST:PORT/PATH");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let parts = uri.into_parts();
        if parts.scheme != Some(Scheme::HTTP) {
            return Err(wrong());
        }
        let authority = parts.authority.ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            // It would stand in every log line.
            return Err("a URL may hold no password".into());
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
    /// How long it may take from the connection to the last byte of the answer.
    pub(crate) within: Duration,
}

/// An answer, whatever its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

/// There was no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// Nobody listens there: the request has not been sent.
    #[error("nobody listens there")]
    Refused,
    /// There was no connection: the request has not been sent.
    #[error("{0}")]
    Unsent(String),
    /// The request may have been received, and may have had its effect.
    #[error("{0}")]
    Lost(String),
}

impl Call<'_> {
    /// Sends it, and waits for the answer.
    ///
    /// # Errors
    /// Where there is none in time, or a longer one than can be taken.
    pub(crate) async fn send(self) -> Result<Answer, Failure> {
        let end = tokio::time::Instant::now() + self.within;
        let late = |what: &str| format!("{what} within {:?}", self.within);
        let (host, port) = (self.url.authority.host(), self.url.authority.port_u16());
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let connected = TcpStream::connect((host, port.unwrap_or(PORT)));
        let stream = match tokio::time::timeout_at(end, connected).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                return Err(Failure::Refused);
            }
            Ok(Err(error)) => return Err(Failure::Unsent(error.to_string())),
            Err(_) => return Err(Failure::Unsent(late("no connection"))),
        };
        match tokio::time::timeout_at(end, self.converse(stream)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(Failure::Lost(why)),
            Err(_) => Err(Failure::Lost(late("no answer"))),
        }
    }

    async fn converse(&self, stream: TcpStream) -> Result<Answer, String> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        // It ends with this call, whatever comes of that.
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let answer = sender.send_request(self.request()).await.map_err(causes)?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| format!("the answer: {error}"))?;
        Ok(Answer { status, body: body.to_bytes() })
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let Self { method, url, authorization, json, .. } = self;
        let body = Bytes::from(json.clone().unwrap_or_default());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method.clone();
        *request.uri_mut() = Uri::from(url.path.clone());
        let headers = request.headers_mut();
        let host = HeaderValue::from_str(url.authority.as_str());
        headers.insert(HOST, host.expect("an authority is plain text"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if json.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        request
    }
}

/// An error with what caused it.
#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn causes(error: hyper::Error) -> String {
    match std::error::Error::source(&error) {
        None => error.to_string(),
        Some(cause) => format!("{error}: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_urls_without_secrets_are_taken() {
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
    async fn a_failure_tells_whether_the_request_may_have_been_received() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let url: Url = format!("http://{address}/").parse().expect("a URL");
        let call = |within| Call {
            method: Method::GET,
            url: &url,
            authorization: None,
            json: None,
            within: Duration::from_millis(within),
        };
        // Taken by the system, and never answered.
        let lost = call(50).send().await;
        assert!(matches!(&lost, Err(Failure::Lost(why)) if why.contains("no answer")), "{lost:?}");
        drop(listener);
        assert_eq!(call(5_000).send().await, Err(Failure::Refused));
    }
}
