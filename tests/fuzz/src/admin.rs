//! The calls of people and autoscalers over gRPC: the decoder of each request, and what the service
//! makes of it. The first byte of an input names the call, and the rest is its message.

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, header};
use leasehold_proto::admin::v1::admin_service_server::SERVICE_NAME as ADMIN;
use leasehold_proto::externalscaler::external_scaler_server::SERVICE_NAME as SCALER;
use leasehold_proto::json;
use prost_reflect::{DynamicMessage, MethodDescriptor};

use crate::answer::{Answer, UNIMPLEMENTED, ask};
use crate::fleet::FLEET;
use crate::request::framed;

/// Bytes before a message: whether it is compressed, and its length.
const FRAME_BYTES: usize = 5;

/// Sends an input.
pub fn run(input: &[u8]) {
    let Some((first, message)) = input.split_first() else { return };
    let calls: Vec<MethodDescriptor> = [ADMIN, SCALER].into_iter().flat_map(methods).collect();
    let call = &calls[usize::from(*first) % calls.len()];
    let mut request = Request::new(Body::from(framed(message)));
    *request.method_mut() = Method::POST;
    let service = call.parent_service().full_name();
    *request.uri_mut() = format!("/{service}/{}", call.name()).parse().expect("a path");
    let kind = HeaderValue::from_static("application/grpc");
    request.headers_mut().insert(header::CONTENT_TYPE, kind);
    let fleet = &*FLEET;
    if let Some(answer) = fleet.runtime.block_on(ask(fleet.grpc.clone(), request)) {
        answer.check();
        check_message(call, &answer);
    }
}

fn methods(service: &str) -> Vec<MethodDescriptor> {
    let service = json::pool().get_service_by_name(service);
    service.expect("the descriptors have the services").methods().collect()
}

/// What is answered is a message, and has a form in JSON, in which the HTTP port shows it.
fn check_message(call: &MethodDescriptor, answer: &Answer) {
    let name = call.full_name();
    assert_ne!(answer.grpc("grpc-status"), Some(UNIMPLEMENTED), "{name} is not served");
    let Some(message) = answer.body.get(FRAME_BYTES..) else { return };
    if call.is_server_streaming() {
        return;
    }
    let message = DynamicMessage::decode(call.output(), message).expect("a message");
    assert!(json::dynamic(&message).is_object());
}
