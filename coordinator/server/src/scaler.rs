//! KEDA's external scaler. Every replica answers from its own view of the desired state. A view
//! that may be out of date gives an error, never a number, so that no autoscaler scales in because
//! a coordinator was away.

mod demand_stream;
mod query;

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use leasehold_driver::access::{Access, Permission};
use leasehold_driver::clock;
use leasehold_driver::demand::Demand;
use leasehold_driver::metrics::Metrics;
use leasehold_driver::view::PublishedView;
use leasehold_proto::externalscaler as proto;
use leasehold_proto::externalscaler::external_scaler_server::{
    ExternalScaler, ExternalScalerServer,
};
use leasehold_types::limits::CLUSTERS_MAX;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use self::demand_stream::DemandStream;
use self::query::{ClassQuery, Metric};
use crate::grpc::credentials::{Authorized, authorize, status_of};

/// The most concurrent streams: each class may have both.
const STREAMS_MAX: usize = 2 * CLUSTERS_MAX;
/// Bytes of one request.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// KEDA's external scaler over one replica's view. KEDA sends no token, but a client certificate.
#[derive(Debug)]
pub struct Scaler {
    view: Arc<PublishedView>,
    access: Access,
    metrics: Arc<Metrics>,
    streams: Arc<Semaphore>,
}

impl Scaler {
    /// The service of a replica with this view; `access` authorizes the callers.
    pub fn service(
        view: Arc<PublishedView>,
        access: Access,
        metrics: Arc<Metrics>,
    ) -> ExternalScalerServer<Self> {
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        ExternalScalerServer::new(Self { view, access, metrics, streams })
            .max_decoding_message_size(REQUEST_BYTES_MAX)
    }

    /// The class that a request is about, and its caller, if that may know its load.
    async fn class<T>(
        &self,
        request: &Request<T>,
        reference: &proto::ScaledObjectRef,
    ) -> Result<(ClassQuery, Authorized), Status> {
        let query = ClassQuery::parse(reference)?;
        let permission = Permission::Demand(query.name().clone());
        let allowed = authorize(&self.access, &self.metrics, request, permission).await;
        allowed.map(|caller| (query, caller)).map_err(|refused| status_of(&refused))
    }

    async fn watch<T>(
        &self,
        request: &Request<proto::ScaledObjectRef>,
        answer: fn(Demand) -> T,
    ) -> Result<Response<Messages<T>>, Status>
    where
        T: Clone + PartialEq + Send + 'static,
    {
        let (query, caller) = self.class(request, request.get_ref()).await?;
        let permit = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "too many streams of scalers: at most {STREAMS_MAX} at once; try again later"
            ))
        })?;
        let (view, kept) = (Arc::clone(&self.view), (permit, caller.connection));
        let watching = DemandStream::new(view, query, answer, kept);
        Ok(Response::new(Box::pin(futures_util::stream::unfold(watching, DemandStream::next))))
    }
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    type StreamIsActiveStream = Messages<proto::IsActiveResponse>;
    type StreamMetricSpecStream = Messages<proto::GetMetricSpecResponse>;

    async fn is_active(
        &self,
        request: Request<proto::ScaledObjectRef>,
    ) -> Result<Response<proto::IsActiveResponse>, Status> {
        let (class, _caller) = self.class(&request, request.get_ref()).await?;
        Ok(Response::new(query::activity(class.demand(&self.view, clock::now())?)))
    }

    async fn stream_is_active(
        &self,
        request: Request<proto::ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        self.watch(&request, query::activity).await
    }

    async fn get_metric_spec(
        &self,
        request: Request<proto::ScaledObjectRef>,
    ) -> Result<Response<proto::GetMetricSpecResponse>, Status> {
        let (class, _caller) = self.class(&request, request.get_ref()).await?;
        Ok(Response::new(query::specs(class.demand(&self.view, clock::now())?)))
    }

    async fn get_metrics(
        &self,
        request: Request<proto::GetMetricsRequest>,
    ) -> Result<Response<proto::GetMetricsResponse>, Status> {
        let reference = request.get_ref().scaled_object_ref.clone().unwrap_or_default();
        let (class, _caller) = self.class(&request, &reference).await?;
        let metric = Metric::parse(&request.get_ref().metric_name)?;
        let demand = class.demand(&self.view, clock::now())?;
        Ok(Response::new(query::value(metric, demand)))
    }

    async fn stream_metric_spec(
        &self,
        request: Request<proto::ScaledObjectRef>,
    ) -> Result<Response<Self::StreamMetricSpecStream>, Status> {
        self.watch(&request, query::specs).await
    }
}
