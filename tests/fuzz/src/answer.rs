//! What a server answers, and what every answer must be.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use tokio::time::timeout;
use tower::{Service, ServiceExt};

/// How long an answer may take before it counts as one that waits: for a change, or for a job.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// The parts of an answer that are read; one that goes on is not read to its end.
const FRAMES_MAX: usize = 4;

/// The status of a call that is not served: the name says it all.
pub(crate) const UNIMPLEMENTED: &str = "12";

/// An answer as far as it was read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    trailers: HeaderMap,
    is_whole: bool,
}

/// The answer to a request; none if it waits.
pub(crate) async fn ask<S, I, O>(service: S, request: Request<I>) -> Option<Answer>
where
    S: Service<Request<I>, Response = Response<O>>,
    S::Error: std::fmt::Debug,
    O: HttpBody<Data = Bytes> + Send + 'static,
    O::Error: Into<axum::BoxError>,
{
    let answered = timeout(WAIT_MAX, service.oneshot(request)).await.ok()?;
    let (head, body) = answered.expect("a service that answers errors itself").into_parts();
    let mut body = Body::new(body);
    let (mut bytes, mut trailers, mut is_whole) = (Vec::new(), HeaderMap::new(), false);
    for _ in 0..FRAMES_MAX {
        match timeout(WAIT_MAX, body.frame()).await {
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => bytes.extend(data),
                Err(frame) => trailers.extend(frame.into_trailers().into_iter().flatten()),
            },
            Ok(None) => {
                is_whole = true;
                break;
            }
            Ok(Some(Err(_))) | Err(_) => break,
        }
    }
    Some(Answer { status: head.status, headers: head.headers, body: bytes, trailers, is_whole })
}

impl Answer {
    /// Ends the process if the answer says that the server has failed, or refuses without a reason.
    pub(crate) fn check(&self) {
        assert_ne!(self.status, StatusCode::INTERNAL_SERVER_ERROR, "{self:?}");
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default();
        let is_error = self.status.is_client_error() || self.status.is_server_error();
        // Of a wrong method the header says which are right, and the answer to HEAD has only the
        // length of what GET would say.
        let length =
            self.headers.get(header::CONTENT_LENGTH).and_then(|header| header.to_str().ok());
        let says_why = !self.body.is_empty()
            || self.headers.contains_key(header::ALLOW)
            || length.is_some_and(|length| length != "0");
        assert!(!is_error || !self.is_whole || says_why, "{self:?}");
        if kind.starts_with("application/json") && self.is_whole && !self.body.is_empty() {
            let json = serde_json::from_slice::<serde_json::Value>(&self.body);
            assert!(json.is_ok(), "not JSON: {self:?}");
        }
        if let Some(code) = self.grpc("grpc-status")
            && !["0", UNIMPLEMENTED].contains(&code)
        {
            assert!(self.grpc("grpc-message").is_some_and(|why| !why.is_empty()), "{self:?}");
        }
    }

    /// A field of a gRPC status: in the trailers, or in the headers of an answer without a message.
    pub(crate) fn grpc(&self, name: &str) -> Option<&str> {
        self.trailers.get(name).or(self.headers.get(name))?.to_str().ok()
    }
}
