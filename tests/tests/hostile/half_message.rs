//! An agent that is welcome and sends only the beginning of its next message.

use std::future::poll_fn;
use std::net::SocketAddr;

use http_body_util::{BodyExt, StreamBody};
use hyper::Request;
use hyper::body::{Bytes, Frame};
use leasehold_proto::coordinator::v1::open_session_request::Message;
use leasehold_proto::coordinator::v1::{Hello, OpenSessionRequest};
use leasehold_types::limits::PROTOCOL_VERSION;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Endpoint;

const PATH: &str = "/leasehold.coordinator.v1.SessionService/OpenSession";

/// A message of a session as gRPC sends it.
fn framed(message: &OpenSessionRequest) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("a short message").to_be_bytes();
    [&[0], &length[..], &bytes].concat()
}

/// Says hello and begins a message of a kilobyte; returns all that the coordinator sends until it
/// ends the session.
pub(crate) async fn answer_to_half_a_message(address: SocketAddr, worker: &str) -> String {
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        cluster: "builds".into(),
        worker: worker.into(),
        incarnation: 1,
        link: 1,
        stops_worker: true,
        ..Hello::default()
    };
    let hello = framed(&OpenSessionRequest { message: Some(Message::Hello(hello)) });
    let begun = [&[0, 0, 0, 4, 0][..], &[7; 10]].concat();
    // The body goes on for as long as its sender exists.
    let (rest, body) = mpsc::channel::<Result<_, Status>>(2);
    for part in [hello, begun] {
        rest.send(Ok(Frame::data(Bytes::from(part)))).await.expect("room");
    }
    let body = Body::new(StreamBody::new(ReceiverStream::new(body)));
    let request = Request::post(PATH).header("content-type", "application/grpc");
    let request = request.header("te", "trailers").body(body).expect("a request");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let mut channel = endpoint.connect().await.expect("a connection");
    poll_fn(|cx| channel.poll_ready(cx)).await.expect("a connection");
    let answer = channel.call(request).await.expect("a session").into_body();
    let answer = answer.collect().await.expect("the end of the session").to_bytes();
    String::from_utf8_lossy(&answer).into_owned()
}
