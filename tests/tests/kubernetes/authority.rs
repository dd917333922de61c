//! The coordinator's own certificate authority on a real API server: replicas that start together
//! agree on one, it changes without one failed handshake, and what people break by hand is
//! repaired.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use leasehold_coordinator::run::{Options, Sockets, serve};
use leasehold_coordinator_core::event::Event;
use leasehold_driver::access::Access;
use leasehold_driver::freshness::Freshness;
use leasehold_driver::platform::Platform;
use leasehold_platform_kube::authority::{Authority, BundlePublisher, Settings};
use leasehold_server::tls::{Certificates, client_tls, from_platform};
use leasehold_types::Moment;
use serde_json::json;
use tests::kube::{Cluster, until_answer};
use tests::process::HANG;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

const NAME: &str = "leasehold-ca";
const SERVICE: &str = "leasehold-coordinator";
/// Much shorter than in production.
const OFTEN: Duration = Duration::from_millis(100);

/// Settings of an authority that lasts `seconds`.
fn lasting(namespace: &str, seconds: u64) -> Settings {
    let mut settings = Settings::new(namespace, SERVICE, "127.0.0.1:7400");
    settings.lifetime = Duration::from_secs(seconds);
    settings.serving_lifetime = Duration::from_secs(seconds / 3);
    settings.backdate = Duration::ZERO;
    settings.look_every = OFTEN;
    settings
}

/// A replica with the platform's channels, whose other ends are dropped.
struct Replica {
    address: SocketAddr,
    authority: Authority,
    /// What its port serves with.
    serving: Certificates,
    _events: mpsc::Sender<Event>,
}

impl Replica {
    fn start(client: &Client, settings: Settings) -> Self {
        let any = "127.0.0.1:0".parse().expect("an address");
        let sockets = Sockets::bind(any, any).expect("sockets");
        let address = sockets.grpc_addr().expect("an address");
        let authority = Authority::start(client.clone(), settings);
        let (events, events_out) = mpsc::channel(1);
        let (commands, _) = mpsc::channel(1);
        let platform = Platform {
            events: events_out,
            commands,
            problems: watch::channel(Default::default()).1,
            cell: watch::channel(None).1,
            replicas: watch::channel(Arc::default()).1,
            access: Access::Open,
            progress: Arc::default(),
            handle_sender: None,
            freshness: watch::channel(Freshness::confirmed(Moment::NEVER)).1,
        };
        let serving = from_platform(authority.certificates.clone(), authority.bundle.clone());
        let tls = Some(serving.clone());
        let options = Options { tls, sessions_max: 10, ..Options::default() };
        tokio::spawn(serve(options, sockets, platform, std::future::pending()));
        Self { address, authority, serving, _events: events }
    }

    async fn ready(&mut self) {
        timeout(HANG, self.authority.ready()).await.expect("a certificate");
        // The port takes the certificate up a moment later.
        let taken_up = self.serving.wait_for(|serving| serving.expires_at.is_some());
        timeout(HANG, taken_up).await.expect("the port serves").expect("a certificate");
    }

    fn bundle(&self) -> String {
        self.authority.bundle.borrow().as_deref().expect("a bundle").to_owned()
    }

    async fn dial(&self, tls: ClientTlsConfig) -> Result<Channel, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address));
        endpoint.expect("an address").tls_config(tls).expect("TLS").connect().await
    }
}

/// Trusts these authorities, for the server's name in the namespace.
fn trusting(bundle: &str, namespace: &str) -> ClientTlsConfig {
    let name = format!("{SERVICE}.{namespace}.svc");
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(bundle)).domain_name(name)
}

/// What agents in a namespace read.
async fn published(client: &Client, namespace: &str) -> Result<String, &'static str> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get_opt(NAME).await.expect("an answer").ok_or("no ConfigMap")?;
    map.data.and_then(|data| data.get("ca.crt").cloned()).ok_or("no ca.crt in it")
}

/// What a publication depends on; it ends with this.
struct Sources {
    leads: watch::Sender<bool>,
    _namespaces: watch::Sender<BTreeSet<String>>,
}

/// A replica that leads publishes what `from` knows.
fn publish(client: &Client, namespace: &str, more: &str, from: &Replica) -> Sources {
    let (leads, is_leader) = watch::channel(true);
    let (_namespaces, namespaces) = watch::channel(BTreeSet::from([more.to_owned()]));
    let publication = BundlePublisher {
        client: client.clone(),
        namespace: namespace.to_owned(),
        namespaces,
        bundle: from.authority.bundle.clone(),
        leads: is_leader,
        every: OFTEN,
    };
    tokio::spawn(publication.run());
    Sources { leads, _namespaces }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_start_together_agree_on_one_authority() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("authority");
    let client = cluster.access().client().await;
    let settings = Settings::new(&namespace, SERVICE, "127.0.0.1:7400");
    let mut replicas = [0, 1, 2].map(|_| Replica::start(&client, settings.clone()));
    for replica in &mut replicas {
        replica.ready().await;
    }
    let bundle = replicas[0].bundle();
    for (index, replica) in replicas.iter().enumerate() {
        assert_eq!(replica.bundle(), bundle);
        replica.dial(trusting(&bundle, &namespace)).await.expect("a handshake");
        let other = &replicas[(index + 1) % 3].authority.trust;
        let tls = client_tls(other).await.expect("a known authority");
        replica.dial(tls).await.expect("a handshake between replicas");
        let strange = trusting(&bundle, "elsewhere");
        assert!(replica.dial(strange).await.is_err(), "a certificate for another name");
    }
    let secrets: Api<Secret> = Api::namespaced(client, &namespace);
    let secret = secrets.get(NAME).await.expect("the Secret");
    assert_eq!(secret.data.expect("data")["ca.crt"].0, bundle.into_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn rotating_the_certificate_authority_fails_no_handshake() {
    let Some(cluster) = Cluster::shared() else { return };
    let (namespace, workers) = (cluster.namespace("authority"), cluster.namespace("workers"));
    let client = cluster.access().client().await;
    let mut replicas = [0, 1, 2].map(|_| Replica::start(&client, lasting(&namespace, 24)));
    for replica in &mut replicas {
        replica.ready().await;
    }
    let _sources = publish(&client, &namespace, &workers, &replicas[0]);
    let first = until_answer("the ConfigMap", async || published(&client, &workers).await).await;
    let mut together = 0;
    let mut handshakes = 0;
    // Until the first authority has left the bundle, and only its successor is trusted.
    let last = timeout(2 * HANG, async {
        loop {
            let bundle = published(&client, &workers).await.expect("the ConfigMap");
            for replica in &replicas {
                let dialled = replica.dial(trusting(&bundle, &namespace)).await;
                assert!(dialled.is_ok(), "after {handshakes}: {dialled:?}\n{bundle}");
                handshakes += 1;
            }
            match bundle.matches("BEGIN CERTIFICATE").count() {
                1 if bundle != first => return bundle,
                1 => {}
                _ => together += 1,
            }
        }
    });
    let last = last.await.expect("a successor");
    assert!(together > 0, "both were trusted for a while");
    assert!(!last.contains(&first), "the first authority is no longer trusted");
    for replica in &replicas {
        let dialled = replica.dial(trusting(&first, &namespace)).await;
        assert!(dialled.is_err(), "the first authority no longer signs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_or_broken_authority_is_restored() {
    let Some(cluster) = Cluster::shared() else { return };
    let (namespace, workers) = (cluster.namespace("authority"), cluster.namespace("workers"));
    let client = cluster.access().client().await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let mut replica = Replica::start(&client, lasting(&namespace, 3600));
    replica.ready().await;
    let bundle = replica.bundle();

    secrets.delete(NAME, &DeleteParams::default()).await.expect("it is there");
    let get = async || secrets.get_opt(NAME).await.expect("ok").ok_or("no Secret");
    let again = until_answer("the Secret", get).await;
    let data = again.data.clone().expect("data");
    assert_eq!(data["ca.crt"].0, bundle.as_bytes(), "as it was before");

    let garbage = json!({ "stringData": { "tls.crt": "garbage" } });
    let patched = secrets.patch(NAME, &PatchParams::default(), &Patch::Merge(&garbage)).await;
    patched.expect("it takes anything");
    let mut late = Replica::start(&client, lasting(&namespace, 3600));
    replica.dial(trusting(&bundle, &namespace)).await.expect("what was read before");
    assert!(late.dial(trusting(&bundle, &namespace)).await.is_err(), "nothing to serve with");
    secrets.delete(NAME, &DeleteParams::default()).await.expect("it is there");
    late.ready().await;
    assert_eq!(late.bundle(), bundle, "the one that knows it has written it again");
    late.dial(trusting(&bundle, &namespace)).await.expect("a handshake");

    let sources = publish(&client, &namespace, &workers, &replica);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &workers);
    let is_whole = async || match published(&client, &workers).await {
        Ok(text) if text == bundle => Ok(()),
        other => Err(format!("{other:?}")),
    };
    until_answer("the ConfigMap", is_whole).await;
    let changed = json!({ "data": { "ca.crt": "garbage" } });
    let patched = maps.patch(NAME, &PatchParams::default(), &Patch::Merge(&changed)).await;
    patched.expect("it takes anything");
    until_answer("the ConfigMap's text", is_whole).await;
    maps.delete(NAME, &DeleteParams::default()).await.expect("it is there");
    until_answer("the ConfigMap again", is_whole).await;
    assert_eq!(published(&client, &namespace).await, Ok(bundle.clone()));
    // Leadership that comes back publishes at once.
    sources.leads.send(false).expect("a publication");
    maps.delete(NAME, &DeleteParams::default()).await.expect("it is there");
    sources.leads.send(true).expect("a publication");
    until_answer("the ConfigMap of a leader", is_whole).await;
}
