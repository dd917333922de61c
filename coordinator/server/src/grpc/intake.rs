//! What a call may send before anybody has looked at it. Every call of this port but a session has
//! one short request. Its body must be small and come in time, and the calls whose bodies are not
//! complete are limited: one more takes the place of another.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Frame, SizeHint};
use leasehold_types::limits::CALL_BYTES_MAX;
use prost::bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use super::service::OPEN_SESSION;
use crate::connections::Peer;
use crate::request_places::{EVICTED, RequestPlace, RequestPlaces};

/// Bytes of the body of a request with manifests.
pub(crate) const MANIFESTS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The call whose request has manifests.
const PLAN_MANIFESTS: &str = "/leasehold.admin.v1.AdminService/PlanManifests";
/// The most of these calls whose bodies are not complete.
const PLANS_MAX: usize = 4;
/// How long a request's body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The most calls whose bodies are not complete.
const CALLS_MAX: usize = 256;

/// Limits the calls of a port.
#[derive(Clone, Debug)]
pub(super) struct IntakeLayer {
    calls: Arc<RequestPlaces>,
    plans: Arc<RequestPlaces>,
}

impl IntakeLayer {
    pub(super) fn new() -> Self {
        Self { calls: RequestPlaces::new(CALLS_MAX), plans: RequestPlaces::new(PLANS_MAX) }
    }
}

impl<S> Layer<S> for IntakeLayer {
    type Service = Intake<S>;

    fn layer(&self, inner: S) -> Intake<S> {
        Intake { limits: self.clone(), inner }
    }
}

/// The services of a port behind its limits.
#[derive(Clone, Debug)]
pub(super) struct Intake<S> {
    limits: IntakeLayer,
    inner: S,
}

impl<S> Service<Request<Body>> for Intake<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Sessions have limits of their own.
        if request.uri().path() == OPEN_SESSION {
            return self.inner.call(request);
        }
        let address = Peer::of(request.extensions()).map(|peer| peer.address().ip());
        let (places, bytes_max) = match request.uri().path() {
            PLAN_MANIFESTS => (&self.limits.plans, MANIFESTS_BYTES_MAX),
            _ => (&self.limits.calls, CALL_BYTES_MAX),
        };
        let (place, evicted) = places.take(address);
        let bounded = |body| {
            let timeout = Box::pin(sleep(BODY_TIMEOUT));
            let open = Some(OpenBody { timeout, evicted, _place: place });
            Body::new(BoundedBody { body, bytes_max, left: bytes_max, open })
        };
        self.inner.call(request.map(bounded))
    }
}

/// A body with at most so many bytes that must end in time.
#[derive(Debug)]
struct BoundedBody {
    body: Body,
    bytes_max: usize,
    left: usize,
    /// Until the body has ended.
    open: Option<OpenBody>,
}

/// A body that is not complete.
#[derive(Debug)]
struct OpenBody {
    timeout: Pin<Box<Sleep>>,
    evicted: oneshot::Receiver<()>,
    _place: RequestPlace,
}

impl OpenBody {
    /// Why the body must end now, if it must.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if let Poll::Ready(Ok(())) = Pin::new(&mut self.evicted).poll(cx) {
            return Poll::Ready(Status::resource_exhausted(EVICTED));
        }
        self.timeout.as_mut().poll(cx).map(|()| {
            let why = format!("the request was not complete within {BODY_TIMEOUT:?}");
            Status::deadline_exceeded(why)
        })
    }
}

impl http_body::Body for BoundedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, open: Some(open), .. } = &mut *self else { return Poll::Ready(None) };
        let frame = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let status = ready!(open.poll_end(cx));
                self.open = None;
                return Poll::Ready(Some(Err(status)));
            }
        };
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        let bytes = bytes.map_or(0, Bytes::len);
        match (frame, self.left.checked_sub(bytes)) {
            (Some(Ok(frame)), Some(left)) => {
                self.left = left;
                if self.body.is_end_stream() {
                    self.open = None;
                }
                Poll::Ready(Some(Ok(frame)))
            }
            (Some(Ok(_)), None) => {
                self.open = None;
                let why = format!("the request is larger than {} bytes", self.bytes_max);
                Poll::Ready(Some(Err(Status::resource_exhausted(why))))
            }
            (ended, _) => {
                self.open = None;
                Poll::Ready(ended)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.open.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
