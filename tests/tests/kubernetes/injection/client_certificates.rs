//! A webhook that only API servers may call: this one shows a certificate, and its pods are
//! injected. Whoever shows none, or another one of the same authority, ends in the handshake.

use std::future::poll_fn;
use std::net::SocketAddr;

use hyper::{Request, StatusCode};
use serde_json::json;
use tests::kube::{Cluster, WEBHOOK_CLIENT};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::{InjectorFixture, agents, opted_in, worker_cluster};

/// Asks for the injection of nothing; returns the answer's status.
async fn ask(
    webhook: SocketAddr,
    tls: ClientTlsConfig,
) -> Result<StatusCode, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("https://{webhook}")).expect("an address");
    let mut channel = endpoint.tls_config(tls).expect("certificates").connect().await?;
    poll_fn(|cx| channel.poll_ready(cx)).await?;
    let request = Request::post("/inject").body(Body::empty()).expect("a request");
    Ok(channel.call(request).await?.status())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_answers_only_clients_with_the_certificate_that_it_wants() {
    // The API server of another one shows no certificate that this test knows.
    let Some(Cluster::Own(plane)) = Cluster::shared() else { return };
    let file = |name: &str| plane.access().kubeconfig().with_file_name(name);
    let authority = file("ca.crt");
    let authority = authority.to_str().expect("a path");
    let flags = ["--webhook-client-ca", authority, "--webhook-client-name", WEBHOOK_CLIENT];
    let Some(fixture) = InjectorFixture::set(&flags) else { return };
    fixture.apply(&worker_cluster("builds", json!({})));
    fixture.until_known("the cluster", &opted_in("probe", json!({})), |_| true);
    let (stored, _) = fixture.create(&opted_in("w-0", json!({})));
    assert_eq!(agents(&stored).len(), 1, "{stored:#}");

    let read = |name: &str| std::fs::read_to_string(file(name)).expect("a certificate or a key");
    let coordinators =
        std::fs::read_to_string(fixture.replicas.authority()).expect("a certificate");
    let name = format!("leasehold-coordinator.{}.svc", fixture.namespace);
    let webhook = fixture.replicas.running[0].webhook;
    let tls = ClientTlsConfig::new().domain_name(name);
    let tls = tls.ca_certificate(Certificate::from_pem(coordinators));
    let as_client = |client: &str| {
        let identity =
            Identity::from_pem(read(&format!("{client}.crt")), read(&format!("{client}.key")));
        ask(webhook, tls.clone().identity(identity))
    };
    let status = as_client("webhook-client").await.expect("an answer");
    assert_eq!(status, StatusCode::BAD_REQUEST, "an empty body is no review");
    let refused = ask(webhook, tls.clone()).await;
    assert!(refused.is_err(), "without a certificate: {refused:?}");
    let refused = as_client("admin").await;
    assert!(refused.is_err(), "as another client of the authority: {refused:?}");
}
