//! The webhook: the API server asks it what an opted-in pod gets, before it stores the pod, and
//! whether a class or a pipeline is right. Every replica answers, leading or not, from what is
//! wanted as it knows it. A pod that asked for an agent is never let through without one: what
//! cannot be done is refused, and says what to mend.

mod injector;
mod patch;
mod review;
mod validator;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use leasehold_driver::metrics::{Injection, Metrics, Validation};
use tokio::time::timeout;
use tower::limit::ConcurrencyLimitLayer;

pub use self::injector::{Cluster, Clusters, Injector};
use self::review::{Answer, Review};
pub use self::validator::Validator;

/// Reviews at once.
const REVIEWS_MAX: usize = 64;
/// Bytes of a review: an object of the size that the API server stores, and what is said of it.
const REVIEW_BYTES_MAX: usize = 3 * 1024 * 1024;
/// How long a review may take to arrive; shorter than the API server waits for the answer.
const REVIEW_WITHIN: Duration = Duration::from_secs(4);
/// What is answered to any other path.
const PATHS: &str = "no such path; there are /inject and /validate, for the API server\n";

#[derive(Clone)]
struct Desk {
    injector: Arc<Injector>,
    validator: Arc<Validator>,
    metrics: Arc<Metrics>,
}

/// What the API server may ask: `/inject`, answered by `injector`, and `/validate`, answered by
/// `validator`.
#[must_use]
pub fn router(injector: Injector, validator: Validator, metrics: Arc<Metrics>) -> Router {
    let (injector, validator) = (Arc::new(injector), Arc::new(validator));
    Router::new()
        .route("/inject", post(inject))
        .route("/validate", post(validate))
        .fallback(|| async { (StatusCode::NOT_FOUND, PATHS) })
        .with_state(Desk { injector, validator, metrics })
        .layer(ConcurrencyLimitLayer::new(REVIEWS_MAX))
}

async fn inject(State(desk): State<Desk>, body: Body) -> Response {
    let review = match read(body).await {
        Ok(review) => review,
        Err(refusal) => return refusal,
    };
    let Some(clusters) = desk.injector.clusters() else {
        desk.metrics.reviewed(Injection::Unready);
        return unready("WorkerClusters and WorkerClasses");
    };
    let verdict = review.judge(&desk.injector, &clusters);
    desk.metrics.reviewed(verdict.kind());
    answered(review.answer(verdict))
}

async fn validate(State(desk): State<Desk>, body: Body) -> Response {
    let review = match read(body).await {
        Ok(review) => review,
        Err(refusal) => return refusal,
    };
    let Some(judgement) = desk.validator.judge(review.change()).await else {
        desk.metrics.validated(Validation::Unready);
        return unready("classes and pipelines");
    };
    desk.metrics.validated(judgement.kind());
    answered(review.write(Answer::from(judgement)))
}

async fn read(body: Body) -> Result<Review, Response> {
    let body = match timeout(REVIEW_WITHIN, to_bytes(body, REVIEW_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            let text = format!("a review of at most {REVIEW_BYTES_MAX} bytes is wanted: {error}\n");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, text).into_response());
        }
        Err(_) => {
            return Err((StatusCode::REQUEST_TIMEOUT, "the review is late\n").into_response());
        }
    };
    Review::read(&body).map_err(|problem| {
        let text = format!("{problem}\n");
        (StatusCode::BAD_REQUEST, text).into_response()
    })
}

fn unready(what: &str) -> Response {
    let text = format!("the {what} have not been read yet: try again\n");
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

fn answered(json: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}
