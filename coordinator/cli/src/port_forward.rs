//! Connections to the ports of coordinators' pods, through the API server.

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use tokio::io::{AsyncRead, AsyncWrite};

/// The coordinators' port for agents and people, unless their Deployment names another.
pub(crate) const AGENT_PORT: u16 = 7400;

/// A connection to a port of a pod, which its node makes.
///
/// # Errors
/// If the API server refuses or cannot make it.
pub(crate) async fn port_forward(
    pods: &Api<Pod>,
    pod: &str,
    port: u16,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, kube::Error> {
    let mut forwarder = pods.portforward(pod, &[port]).await?;
    Ok(forwarder.take_stream(port).expect("the port that was asked for"))
}
