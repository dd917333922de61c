//! Peers whose calls are answered, and that keep their connections after that.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use leasehold_proto::admin::v1::GetStatusRequest;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use leasehold_proto::coordinator::v1::open_session_response::Message as Heard;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::coordinator::v1::{Hello, OpenSessionRequest};
use leasehold_types::limits::PROTOCOL_VERSION;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

async fn connect(address: SocketAddr) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    endpoint.connect().await.context("no connection")
}

/// The connection of a person's call, once that is answered.
pub(crate) async fn after_a_call(address: SocketAddr) -> anyhow::Result<Channel> {
    let channel = connect(address).await?;
    AdminServiceClient::new(channel.clone()).get_status(GetStatusRequest {}).await?;
    Ok(channel)
}

/// The connection of a client for HTTP/1.1 whose request is answered.
pub(crate) async fn after_a_request(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut connection = TcpStream::connect(address).await.context("no connection")?;
    ask(&mut connection).await?;
    Ok(connection)
}

/// Sends a request over such a connection and reads its answer.
pub(crate) async fn ask(connection: &mut TcpStream) -> anyhow::Result<()> {
    connection.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut answer = [0; 4_096];
    let length = connection.read(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer[..length]);
    ensure!(answer.starts_with("HTTP/1.1 200"), "instead of an answer: {answer:?}");
    Ok(())
}

/// The connection of an agent that was welcome and has reset its session.
pub(crate) async fn after_a_session(
    address: SocketAddr,
    worker: String,
) -> anyhow::Result<Channel> {
    let channel = connect(address).await?;
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        cluster: "noisy".into(),
        worker,
        incarnation: 1,
        link: 1,
        stops_worker: true,
        ..Hello::default()
    };
    let hello = OpenSessionRequest { message: Some(Said::Hello(hello)) };
    // The session goes on for as long as its sender exists.
    let (to, messages) = mpsc::channel(1);
    to.send(hello).await?;
    let messages = ReceiverStream::new(messages);
    let session = SessionServiceClient::new(channel.clone()).open_session(messages).await?;
    let first = session.into_inner().message().await?.and_then(|response| response.message);
    drop(to);
    anyhow::ensure!(matches!(first, Some(Heard::Welcome(_))), "no welcome: {first:?}");
    Ok(channel)
}
