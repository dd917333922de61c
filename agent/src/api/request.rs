//! Serves one request. Its body is read completely before it is handled.

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
/// Additional bytes for the frame of a gRPC message; tonic checks the size of the message itself.
const GRPC_FRAME_BYTES: usize = BODY_BYTES_MAX;

/// Answers the request. Its connection counts as busy until then.
pub(super) async fn answer(
    router: Router,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    if grpc::is_reflection(request.uri().path()) {
        // A bidirectional stream without a fixed body; it changes nothing.
        return router.oneshot(request.map(Body::new)).await;
    }
    if grpc::is_grpc(request.headers()) && !grpc::is_of_worker(request.uri().path()) {
        // An agent that takes this one for a coordinator sends a body without an end.
        return Ok(grpc::unknown_method());
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
    // A watch: busy until its body ends.
    Ok(answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &busy;
            frame
        }))
    }))
}

/// Reads the whole body of the request.
async fn with_body(request: Request<Incoming>) -> Result<Request<Body>, Answer> {
    let max = if grpc::is_grpc(request.headers()) {
        BODY_BYTES_MAX + GRPC_FRAME_BYTES
    } else {
        BODY_BYTES_MAX
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

/// An answer that closes the connection: the rest of the request is not read.
fn closing(why: Answer) -> Response {
    let mut answer = why.into_response();
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}
