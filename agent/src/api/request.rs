//! One request, from its head to its answer: its body is read before anything is done for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use tower::ServiceExt;

use super::connections::Connection;
use super::http::Answer;
use super::{BODY_BYTES_MAX, grpc};
use crate::worker::api::Denial;

/// How long a request's body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes around a gRPC message, whose own limit is looked at where it is read.
const GRPC_FRAME_BYTES: usize = BODY_BYTES_MAX;

/// Answers it; as long as that takes, its connection is in use.
pub(super) async fn answer(
    router: Router,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    if grpc::is_reflection(request.uri().path()) {
        // It talks for as long as its client likes, and holds nothing.
        return router.oneshot(request.map(Body::new)).await;
    }
    let request = match with_body(request).await {
        Ok(request) => request,
        Err(why) => return Ok(closing(why)),
    };
    let busy = connection.begin();
    let answer = router.oneshot(request).await?;
    if answer.body().size_hint().exact().is_some() {
        return Ok(answer);
    }
    // A watch.
    Ok(answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &busy;
            frame
        }))
    }))
}

/// The request with all of its body.
async fn with_body(request: Request<Incoming>) -> Result<Request<Body>, Answer> {
    let max = match grpc::is_grpc(request.headers()) {
        true => BODY_BYTES_MAX + GRPC_FRAME_BYTES,
        false => BODY_BYTES_MAX,
    };
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > max as u64 {
        return Err(too_long(max));
    }
    let read = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, max).collect()).await;
    let bytes: Bytes = match read {
        Ok(Ok(read)) => read.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_long(max)),
        Ok(Err(error)) => {
            let why = Denial::invalid(format!("body: {error}"));
            return Err(Answer(StatusCode::BAD_REQUEST, why));
        }
        Err(_) => {
            let why = format!("body: it did not arrive within {BODY_TIMEOUT:?}");
            return Err(Answer(StatusCode::REQUEST_TIMEOUT, Denial::invalid(why)));
        }
    };
    Ok(Request::from_parts(head, Body::from(bytes)))
}

fn too_long(max: usize) -> Answer {
    let why = Denial::invalid(format!("body: longer than {max} bytes"));
    Answer(StatusCode::PAYLOAD_TOO_LARGE, why)
}

/// The last answer on a connection: what is left of the request is not read.
fn closing(why: Answer) -> Response {
    let mut answer = why.into_response();
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}
