//! Answers that say why a request failed.

use axum::extract::rejection::StringRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use leasehold_types::limits::CALL_BYTES_MAX;
use serde_json::{Value, json};
use tonic::{Code, Status};

/// The answer to a request that failed: the code's name and a message, as in `google.rpc.Status`.
pub(super) fn refuse(status: &Status) -> Response {
    let (http, name) = http_status(status.code());
    let body: Value = json!({"code": name, "message": status.message()});
    (http, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

/// The answer to a request whose path takes only these methods.
pub(super) fn wrong_method(allowed: &'static str) -> Response {
    let message = format!("this path takes {allowed} only");
    let body: Value = json!({"code": "UNIMPLEMENTED", "message": message});
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, allowed)], Json(body)).into_response()
}

/// The answer to a request whose body cannot be read, or is too large.
pub(super) fn unreadable_body(why: &StringRejection) -> Response {
    let message = match why.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            format!("the body is too large: a request takes at most {CALL_BYTES_MAX} bytes")
        }
        _ => why.body_text(),
    };
    let body: Value = json!({"code": "INVALID_ARGUMENT", "message": message});
    (why.status(), [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

pub(super) fn http_status(code: Code) -> (StatusCode, &'static str) {
    match code {
        Code::InvalidArgument => (StatusCode::BAD_REQUEST, "INVALID_ARGUMENT"),
        Code::OutOfRange => (StatusCode::BAD_REQUEST, "OUT_OF_RANGE"),
        Code::Unauthenticated => (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"),
        Code::PermissionDenied => (StatusCode::FORBIDDEN, "PERMISSION_DENIED"),
        Code::NotFound => (StatusCode::NOT_FOUND, "NOT_FOUND"),
        // The limits are those of the server, not of one client.
        Code::ResourceExhausted => (StatusCode::SERVICE_UNAVAILABLE, "RESOURCE_EXHAUSTED"),
        Code::FailedPrecondition => (StatusCode::SERVICE_UNAVAILABLE, "FAILED_PRECONDITION"),
        Code::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE"),
        Code::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "DEADLINE_EXCEEDED"),
        Code::Unimplemented => (StatusCode::NOT_IMPLEMENTED, "UNIMPLEMENTED"),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::AlreadyExists
        | Code::Aborted
        | Code::Internal
        | Code::DataLoss => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL"),
    }
}
