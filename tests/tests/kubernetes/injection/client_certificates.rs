//! Webhooks that only API servers may call: this one shows a certificate, and its pods are
//! injected. A client without one, or with another one of the same authority, fails the handshake.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::PathBuf;

use http_body_util::BodyExt;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};
use tests::kube::{Access, Cluster, WEBHOOK_CLIENT, until_answer};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Error, Identity};

use super::super::evictions::review;
use super::{InjectorFixture, agents, opted_in, worker_cluster};

/// Replicas that want the certificate of this API server.
struct Guarded {
    fixture: InjectorFixture,
    /// The folder with the certificates of the control plane.
    pki: PathBuf,
    webhook: SocketAddr,
    tls: ClientTlsConfig,
}

impl Guarded {
    /// None where there are no binaries, or where the API server shows a certificate that this test
    /// does not know.
    fn set() -> Option<Self> {
        let Some(Cluster::Own(plane)) = Cluster::shared() else { return None };
        let pki = folder(plane.access());
        let authority = pki.join("ca.crt");
        let authority = authority.to_str().expect("a path");
        let flags = ["--webhook-client-ca", authority, "--webhook-client-name", WEBHOOK_CLIENT];
        let fixture = InjectorFixture::set(&flags)?;
        fixture.apply(&worker_cluster("builds", json!({})));
        fixture.until_known("the cluster", &opted_in("probe", json!({})), |_| true);
        let trusted = std::fs::read(fixture.replicas.authority()).expect("a certificate");
        let name = format!("leasehold-coordinator.{}.svc", fixture.namespace);
        let tls = ClientTlsConfig::new().domain_name(name);
        let tls = tls.ca_certificate(Certificate::from_pem(trusted));
        let webhook = fixture.replicas.running[0].webhook;
        Some(Self { fixture, pki, webhook, tls })
    }

    /// Calls the webhook, with the certificate of a client of the control plane if given.
    async fn call(
        &self,
        client: Option<&str>,
        path: &str,
        body: String,
    ) -> Result<(StatusCode, String), Error> {
        let read = |file: String| std::fs::read(self.pki.join(file)).expect("a file");
        let mut tls = self.tls.clone();
        if let Some(client) = client {
            let (certificate, key) = (read(format!("{client}.crt")), read(format!("{client}.key")));
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let address = format!("https://{}", self.webhook);
        let endpoint = Endpoint::from_shared(address).expect("an address").tls_config(tls);
        let mut channel = endpoint.expect("certificates").connect().await?;
        poll_fn(|cx| channel.poll_ready(cx)).await?;
        let request = Request::post(path).body(Body::new(body)).expect("a request");
        let answer = channel.call(request).await?;
        let (status, body) = (answer.status(), answer.into_body().collect().await);
        let body = body.expect("a body").to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

fn folder(access: &Access) -> PathBuf {
    access.kubeconfig().parent().expect("a folder").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_answers_only_clients_with_the_certificate_that_it_wants() {
    let Some(guarded) = Guarded::set() else { return };
    let (stored, _) = guarded.fixture.create(&opted_in("w-0", json!({})));
    assert_eq!(agents(&stored).len(), 1, "{stored:#}");
    let call = |client| guarded.call(client, "/inject", String::new());
    let (status, _) = call(Some("webhook-client")).await.expect("an answer");
    assert_eq!(status, StatusCode::BAD_REQUEST, "an empty body is no review");
    let refused = call(None).await;
    assert!(refused.is_err(), "without a certificate: {refused:?}");
    let refused = call(Some("admin")).await;
    assert!(refused.is_err(), "as another client of the authority: {refused:?}");
}

/// Where certificates come from cert-manager, the path has no key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_needs_no_key_to_start_a_drain_where_only_api_servers_are_answered() {
    let Some(guarded) = Guarded::set() else { return };
    let fixture = &guarded.fixture;
    fixture.create(&opted_in("w-0", json!({})));
    let running = json!({ "status": { "phase": "Running" } }).to_string();
    let status = ["patch", "pod/w-0", "--subresource=status", "--patch", &running];
    fixture.kubectl(&status);
    let review = review(&fixture.namespace, "w-0").to_string();
    let answer = until_answer("a refusal once the replica has seen the pod", async || {
        // The operator takes the mark from a worker without jobs.
        fixture.kubectl(&["label", "pod/w-0", "leasehold.dev/busy=true", "--overwrite"]);
        let called = guarded.call(Some("webhook-client"), "/evict", review.clone()).await;
        let (_, body) = called.expect("an answer");
        let answer: Value = serde_json::from_str(&body).unwrap_or_default();
        if answer["response"]["status"]["code"] == 429 { Ok(answer) } else { Err(answer) }
    })
    .await;
    let message = answer["response"]["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("takes no new jobs"), "{answer}");
    let pod = fixture.get("pod", "w-0").expect("the pod");
    assert_eq!(pod["metadata"]["annotations"]["leasehold.dev/drain"], "eviction");
}
