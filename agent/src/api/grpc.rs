//! The worker API over gRPC, with reflection.

use std::pin::Pin;

use axum::Router;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response as HttpResponse};
use futures_util::{Stream, StreamExt};
use leasehold_agent_core::LeaseKinds;
use leasehold_proto::DESCRIPTORS;
use leasehold_proto::worker::v1 as wire;
use leasehold_proto::worker::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use tonic::{Request, Response, Status};

use super::BODY_BYTES_MAX;
use crate::worker::api::{Denial, WorkerApi};

const SERVICE: &str = "leasehold.worker.v1.WorkerService";

/// The routes of the worker's service.
pub(super) fn router(api: WorkerApi) -> Router {
    let service = WorkerServiceServer::new(Grpc(api))
        .max_decoding_message_size(BODY_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    Router::new().route_service(&format!("/{SERVICE}/{{*method}}"), service)
}

/// The routes of the services that describe it.
pub(super) fn reflection_router() -> Router {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .with_service_name(SERVICE)
    };
    let v1 = reflection().build_v1().expect("the descriptors are tested");
    let v1alpha = reflection().build_v1alpha().expect("the descriptors are tested");
    Router::new()
        .route_service("/grpc.reflection.v1.ServerReflection/{*method}", v1)
        .route_service("/grpc.reflection.v1alpha.ServerReflection/{*method}", v1alpha)
}

/// Whether a request is a gRPC request.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/grpc"))
}

/// Whether a path belongs to the reflection service.
pub(super) fn is_reflection(path: &str) -> bool {
    path.starts_with("/grpc.reflection.")
}

/// Whether a path belongs to the service of workers.
pub(super) fn is_of_worker(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|path| path.starts_with(SERVICE))
}

/// The answer to a call of an unknown service.
pub(super) fn unknown_method() -> HttpResponse {
    let status = Status::unimplemented(format!(
        "this is the worker API of a leasehold-agent, which serves {SERVICE} and reflection only"
    ));
    status.into_http::<axum::body::Body>().into_response()
}

struct Grpc(WorkerApi);

impl From<Denial> for Status {
    fn from(Denial { reason, message, is_state }: Denial) -> Self {
        let message = format!("{reason}: {message}");
        match reason {
            "invalid" if !is_state => Self::invalid_argument(message),
            "stopping" => Self::unavailable(message),
            _ => Self::failed_precondition(message),
        }
    }
}

#[tonic::async_trait]
impl WorkerService for Grpc {
    async fn get_lease(
        &self,
        request: Request<wire::GetLeaseRequest>,
    ) -> Result<Response<wire::GetLeaseResponse>, Status> {
        let asked = request.into_inner();
        let kinds =
            LeaseKinds { streams: !asked.without_streams, bindings: !asked.without_bindings };
        let lease = self.0.lease(kinds, asked.after_version, asked.wait_ms, asked.peek).await?;
        Ok(Response::new(wire::GetLeaseResponse { lease: Some(lease.into()) }))
    }

    type WatchLeaseStream =
        Pin<Box<dyn Stream<Item = Result<wire::WatchLeaseResponse, Status>> + Send>>;

    async fn watch_lease(
        &self,
        request: Request<wire::WatchLeaseRequest>,
    ) -> Result<Response<Self::WatchLeaseStream>, Status> {
        let wire::WatchLeaseRequest { without_streams, without_bindings } = request.into_inner();
        let kinds = LeaseKinds { streams: !without_streams, bindings: !without_bindings };
        let leases = self.0.watch(kinds).await?;
        let answers =
            leases.map(|lease| Ok(wire::WatchLeaseResponse { lease: Some(lease.into()) }));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn start_worker(
        &self,
        request: Request<wire::StartWorkerRequest>,
    ) -> Result<Response<wire::StartWorkerResponse>, Status> {
        let wire::StartWorkerRequest { start_id, running } = request.into_inner();
        self.0.start(&start_id, running).await?;
        Ok(Response::new(wire::StartWorkerResponse {}))
    }

    async fn begin_job(
        &self,
        request: Request<wire::BeginJobRequest>,
    ) -> Result<Response<wire::BeginJobResponse>, Status> {
        let wire::BeginJobRequest { job_id, wait_ms } = request.into_inner();
        let token = self.0.begin(&job_id, wait_ms).await?;
        Ok(Response::new(wire::BeginJobResponse { token }))
    }

    async fn end_job(
        &self,
        request: Request<wire::EndJobRequest>,
    ) -> Result<Response<wire::EndJobResponse>, Status> {
        self.0.end(&request.into_inner().job_id).await?;
        Ok(Response::new(wire::EndJobResponse {}))
    }

    async fn list_jobs(
        &self,
        _request: Request<wire::ListJobsRequest>,
    ) -> Result<Response<wire::ListJobsResponse>, Status> {
        Ok(Response::new(self.0.jobs().await?.into()))
    }

    async fn report_count(
        &self,
        request: Request<wire::ReportCountRequest>,
    ) -> Result<Response<wire::ReportCountResponse>, Status> {
        let wire::ReportCountRequest { running, pool_size } = request.into_inner();
        self.0.count(running, pool_size).await?;
        Ok(Response::new(wire::ReportCountResponse {}))
    }

    async fn beat(
        &self,
        request: Request<wire::BeatRequest>,
    ) -> Result<Response<wire::BeatResponse>, Status> {
        self.0.beat(request.into_inner().within_ms).await?;
        Ok(Response::new(wire::BeatResponse {}))
    }

    async fn release_stream(
        &self,
        request: Request<wire::ReleaseStreamRequest>,
    ) -> Result<Response<wire::ReleaseStreamResponse>, Status> {
        let wire::ReleaseStreamRequest { set, stream, token } = request.into_inner();
        self.0.release(&set, &stream, &token).await?;
        Ok(Response::new(wire::ReleaseStreamResponse {}))
    }

    async fn release_binding(
        &self,
        request: Request<wire::ReleaseBindingRequest>,
    ) -> Result<Response<wire::ReleaseBindingResponse>, Status> {
        let wire::ReleaseBindingRequest { pipeline, node, index, token } = request.into_inner();
        self.0.release_binding(&pipeline, &node, index, &token).await?;
        Ok(Response::new(wire::ReleaseBindingResponse {}))
    }

    async fn drain(
        &self,
        request: Request<wire::DrainRequest>,
    ) -> Result<Response<wire::DrainResponse>, Status> {
        let jobs_left = self.0.drain(request.into_inner().wait).await?;
        Ok(Response::new(wire::DrainResponse { jobs_left }))
    }
}
