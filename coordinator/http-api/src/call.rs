//! Calls the admin service, in this process or elsewhere.

use std::convert::Infallible;

use axum::http::{HeaderMap, header};
use leasehold_proto::admin::v1::admin_service_server::SERVICE_NAME;
use leasehold_proto::raw_codec::RawCodec;
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use prost::Message;
use prost::bytes::Bytes;
use prost_reflect::DynamicMessage;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status, Streaming};
use tower::util::BoxCloneSyncService;

use super::request::method;
use super::routes::Route;

/// Answers calls of the admin service, with a status where it cannot.
pub type AdminCalls = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>;

/// The answer of a call.
pub(super) async fn unary(
    calls: &AdminCalls,
    route: Route,
    request: &DynamicMessage,
    headers: &HeaderMap,
) -> Result<DynamicMessage, Status> {
    let (mut client, request) = (client(calls), with_token(request, headers)?);
    let answer = client.unary(request, path(route), RawCodec).await?;
    decode(route, answer.into_inner())
}

/// The answers of a call that streams.
pub(super) async fn streaming(
    calls: &AdminCalls,
    route: Route,
    request: &DynamicMessage,
    headers: &HeaderMap,
) -> Result<Streaming<Bytes>, Status> {
    let (mut client, request) = (client(calls), with_token(request, headers)?);
    let answers = client.server_streaming(request, path(route), RawCodec).await?;
    Ok(answers.into_inner())
}

/// One answer of a call.
pub(super) fn decode(route: Route, answer: Bytes) -> Result<DynamicMessage, Status> {
    DynamicMessage::decode(method(route).output(), answer)
        .map_err(|error| Status::internal(format!("cannot decode the answer: {error}")))
}

fn client(calls: &AdminCalls) -> Grpc<AdminCalls> {
    Grpc::new(calls.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

fn path(route: Route) -> PathAndQuery {
    let path = format!("/{SERVICE_NAME}/{}", route.rpc);
    path.parse().expect("the names of a service and its calls make a path")
}

/// The request with what the caller shows of itself. Its connection is not passed on: one that
/// brings a plain HTTP request never counts as proven.
fn with_token(message: &DynamicMessage, headers: &HeaderMap) -> Result<Request<Bytes>, Status> {
    let mut request = Request::new(Bytes::from(message.encode_to_vec()));
    if let Some(shown) = headers.get(header::AUTHORIZATION) {
        let shown = MetadataValue::try_from(shown.as_bytes())
            .map_err(|_| Status::unauthenticated("the authorization header is not ASCII"))?;
        request.metadata_mut().insert("authorization", shown);
    }
    Ok(request)
}
