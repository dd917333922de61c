//! A call to the API server: how long it may take, and why it failed. Every caller outside watches
//! decides by [`ApiError`].
//!
//! **Invariant**: only this module reads the client's own error.

use std::time::Duration;

use leasehold_types::duration;
use tokio::time::timeout;

/// The timeout of a call, unless its caller can wait for less or for longer.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The API server has answered with an error.
    #[error("{}", describe_status(*code, reason, message))]
    Status {
        /// The code of the HTTP response.
        code: u16,
        /// The reason in one word, as in `AlreadyExists`; may be empty.
        reason: String,
        /// The message for people; may be empty.
        message: String,
    },
    /// No answer was read: the error and its causes. A write may still have taken effect.
    #[error("{0}")]
    Transport(String),
    /// No answer arrived within this time. A write may still have taken effect.
    #[error("no answer from the API server within {}", duration::format_short(*.0))]
    Timeout(Duration),
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&kube::Error> for ApiError {
    fn from(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Status {
                code: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
            },
            error => Self::Transport(error_with_causes(error)),
        }
    }
}

impl ApiError {
    /// Whether the API server forbids the call.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.has_code(FORBIDDEN)
    }

    /// Whether the object or its kind does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.has_code(NOT_FOUND)
    }

    /// Whether a write failed because the object has changed or exists already.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.has_code(CONFLICT)
    }

    /// Whether a write may have taken effect.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Status { .. } => false,
            Self::Transport(_) | Self::Timeout(_) => true,
        }
    }

    fn has_code(&self, wanted: u16) -> bool {
        matches!(self, Self::Status { code, .. } if *code == wanted)
    }
}

/// Makes one call, and waits for the answer for at most `within`.
///
/// # Errors
/// If the API server answers with an error, or does not answer.
pub async fn call<T>(
    within: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiError> {
    call_together(within, async { Ok(request.await?) }).await
}

/// Makes several calls that serve one purpose, and waits for the last answer for at most `within`.
///
/// # Errors
/// That of the calls, or [`ApiError::Timeout`].
pub async fn call_together<T, E: From<ApiError>>(
    within: Duration,
    calls: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    timeout(within, calls).await.unwrap_or_else(|_| Err(ApiError::Timeout(within).into()))
}

fn describe_status(code: u16, reason: &str, message: &str) -> String {
    let message = if message.is_empty() { "the API server gives no reason" } else { message };
    match reason {
        "" => format!("{message} ({code})"),
        reason => format!("{message} ({code} {reason})"),
    }
}

/// An error and those of its causes that its own text does not contain, in one line.
pub(crate) fn error_with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        inner = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::io;

    use axum::http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use kube::{Api, Client};
    use serde_json::{Value, json};

    use super::*;

    /// The objects of an API server that answers everything with this.
    fn answering(code: u16, body: &Value) -> Api<ConfigMap> {
        let text = body.to_string();
        let answer = move |_: Request<Body>| {
            let body = Body::from(text.clone().into_bytes());
            let response = Response::builder().status(code).body(body).expect("an answer");
            async move { Ok::<_, Infallible>(response) }
        };
        Api::namespaced(Client::new(tower::service_fn(answer), "ns"), "ns")
    }

    /// The error of a call that is answered with this code, reason and message.
    async fn refused(code: u16, reason: &str, message: &str) -> ApiError {
        let body = json!({
            "kind": "Status", "status": "Failure", "code": code, "reason": reason,
            "message": message,
        });
        let refused = call(CALL_TIMEOUT, answering(code, &body).get("a")).await;
        refused.expect_err("the API server refuses")
    }

    #[tokio::test]
    async fn returns_the_answer_in_time() {
        let found = json!({ "metadata": { "name": "a" } });
        let found = call(CALL_TIMEOUT, answering(200, &found).get("a")).await;
        assert_eq!(found.expect("an answer").metadata.name.as_deref(), Some("a"));
    }

    #[tokio::test]
    async fn each_status_has_its_predicate() {
        for (code, reason, wanted) in [
            (403, "Forbidden", [true, false, false]),
            (404, "NotFound", [false, true, false]),
            (409, "AlreadyExists", [false, false, true]),
            (409, "Conflict", [false, false, true]),
            (422, "Invalid", [false; 3]),
            (500, "InternalError", [false; 3]),
            (503, "ServiceUnavailable", [false; 3]),
        ] {
            let error = refused(code, reason, "no").await;
            let is = [error.is_forbidden(), error.is_not_found(), error.is_conflict()];
            assert_eq!(is, wanted, "{error}");
            assert!(!error.is_unanswered(), "{error}");
        }
    }

    #[tokio::test]
    async fn a_status_is_described_by_what_it_has() {
        for (reason, message, wanted) in [
            ("Forbidden", "pods is forbidden", "pods is forbidden (403 Forbidden)"),
            ("", "pods is forbidden", "pods is forbidden (403)"),
            ("Forbidden", "", "the API server gives no reason (403 Forbidden)"),
        ] {
            assert_eq!(refused(403, reason, message).await.to_string(), wanted);
        }
    }

    #[tokio::test]
    async fn a_broken_connection_is_no_answer_and_names_its_cause() {
        let answer = |_: Request<Body>| async {
            Err::<Response<Body>, _>(io::Error::from(io::ErrorKind::ConnectionReset))
        };
        let api: Api<ConfigMap> = Api::all(Client::new(tower::service_fn(answer), "ns"));
        let error = call(CALL_TIMEOUT, api.get("a")).await.expect_err("no connection");
        assert!(error.is_unanswered() && !error.is_not_found(), "{error:?}");
        assert!(error.to_string().contains("connection reset"), "{error}");
    }

    #[tokio::test]
    async fn a_call_ends_in_time_and_its_error_names_the_limit() {
        let limit = Duration::from_millis(20);
        let error = call(limit, pending::<kube::Result<()>>()).await.expect_err("no answer");
        assert_eq!(error, ApiError::Timeout(limit));
        assert!(error.is_unanswered());
        assert_eq!(error.to_string(), "no answer from the API server within 20ms");
        let usual = ApiError::Timeout(CALL_TIMEOUT);
        assert_eq!(usual.to_string(), "no answer from the API server within 5s");
    }

    #[tokio::test]
    async fn several_calls_share_one_limit_and_keep_their_own_error() {
        let objects = answering(409, &json!({ "status": "Failure", "code": 409 }));
        let calls = async {
            let first = call(CALL_TIMEOUT, objects.get("a")).await;
            assert!(first.is_err_and(|error| error.is_conflict()));
            pending::<Result<(), ApiError>>().await
        };
        let limit = Duration::from_millis(20);
        assert_eq!(call_together(limit, calls).await, Err(ApiError::Timeout(limit)));
        let own = ApiError::Transport("cut off".into());
        let calls = async { Err::<(), _>(own.clone()) };
        assert_eq!(call_together(CALL_TIMEOUT, calls).await, Err(own.clone()));
    }
}
