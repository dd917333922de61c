//! Whom the API server trusts: what is changed by hand is restored, and a new authority is followed
//! without one pod being refused.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Client;
use leasehold_coordinator::run::{Options, Sockets, serve};
use leasehold_coordinator_core::event::Event;
use leasehold_driver::access::Access;
use leasehold_driver::freshness::Freshness;
use leasehold_driver::platform::Platform;
use leasehold_injection::{AgentUser, Resources, Sidecar};
use leasehold_platform_kube::authority::{Authority, CaInjector, Settings};
use leasehold_platform_kube::pods::{Pods, PodsSettings};
use leasehold_platform_kube::webhook::{
    CallerKeyWriter, Cluster as Known, Clusters, Evictions, Injector, Validator, router,
};
use leasehold_server::https::Https;
use leasehold_server::tls::from_platform;
use leasehold_types::limits::NamespaceShare;
use leasehold_types::{Moment, TimeBounds};
use serde_json::json;
use tests::kube::{Cluster, POLL};
use tests::process::{HANG, eventually};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::{AGENT, InjectorFixture, configuration, opted_in, worker_cluster};

#[test]
fn manual_webhook_changes_are_reverted_and_no_labelled_pod_is_missed() {
    let Some(mut fixture) = InjectorFixture::set(&[]) else { return };
    fixture.apply(&worker_cluster("builds", json!({})));
    let probe = opted_in("probe", json!({}));
    fixture.until_known("the cluster", &probe, |_| true);
    let bundle = fixture.bundle().expect("a bundle");
    for broken in [json!("Z2FyYmFnZQ=="), json!(null)] {
        let op = if broken.is_null() { "remove" } else { "replace" };
        let path = "/webhooks/0/clientConfig/caBundle";
        // Garbage is refused by the API server itself; another authority's certificate is not.
        let value = if broken.is_null() { broken } else { json!(another_authority()) };
        let patch = json!([{ "op": op, "path": path, "value": value }]).to_string();
        let name = format!("mutatingwebhookconfiguration/{}", fixture.configuration);
        fixture.access.kubectl(&["patch", &name, "--type=json", "--patch", &patch]);
        eventually("the bundle again", || fixture.bundle().filter(|now| *now == bundle));
    }
    fixture.until_known("trust again", &probe, |_| true);

    // No webhook answers: labelled pods wait, and no other pods.
    fixture.replicas.running.clear();
    let (stored, message) = fixture.try_create(&[], &opted_in("waits", json!({})));
    assert_eq!(stored, None);
    assert!(message.contains("injector.leasehold.dev") && message.contains("refused"), "{message}");
    fixture.create(&super::pod("plain", json!({}), json!({})));

    // Another replica answers, and what it makes of the pod is the same.
    fixture.replicas.start();
    fixture.replicas.wait_ready();
    fixture.configure(0);
    fixture.until_known("another replica", &probe, |pod| super::agents(pod).len() == 1);
}

/// The certificate of an authority that has nothing to do with this.
fn another_authority() -> String {
    let made = rcgen::generate_simple_self_signed(["elsewhere".to_owned()]).expect("made");
    STANDARD.encode(made.cert.pem())
}

/// A webhook in this process, whose authority lasts so long.
struct Own {
    webhook: SocketAddr,
    _events: mpsc::Sender<Event>,
    _clusters: watch::Sender<Option<std::sync::Arc<Clusters>>>,
    _leads: watch::Sender<bool>,
}

async fn serving(client: &Client, namespace: &str, configuration: &str, seconds: u64) -> Own {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let sockets = Sockets::bind(any, any).expect("sockets");
    let mut settings = Settings::new(namespace, "leasehold-coordinator", "127.0.0.1:7400");
    settings.lifetime = Duration::from_secs(seconds);
    settings.serving_lifetime = Duration::from_secs(seconds / 3);
    settings.backdate = Duration::ZERO;
    settings.look_every = Duration::from_millis(100);
    let mut authority = Authority::start(client.clone(), settings);
    timeout(HANG, authority.ready()).await.expect("a certificate");

    let mut clusters = Clusters::default();
    clusters.insert(namespace, "builds", Known::default());
    let (_clusters, known) = watch::channel(Some(std::sync::Arc::new(clusters)));
    let installation = Sidecar {
        image: "agent:1".into(),
        coordinator: "coordinator:7400".into(),
        server_name: "coordinator".into(),
        audience: "leasehold.dev".into(),
        authority: "leasehold-ca".into(),
        cluster: None,
        drain_deadline: None,
        flags: Default::default(),
        resources: Resources::standard(),
        user: AgentUser::STANDARD,
        pull_secrets: Vec::new(),
    };
    let injector = Injector { installation, served: Vec::new(), clusters: known };
    let validator = Validator {
        served: Vec::new(),
        share: NamespaceShare::default(),
        in_force: watch::channel(None).1,
    };
    let pods = PodsSettings {
        client: client.clone(),
        watched: vec![namespace.to_owned()],
        bounds: TimeBounds::default(),
        handle: watch::channel(None).1,
    };
    let pods = Pods::start(pods, mpsc::channel(1).0);
    let (_, key) = CallerKeyWriter::new(client.clone(), configuration);
    let evictions = Evictions { pods, key, callers_are_proven: false };
    let socket = TcpListener::bind(any).await.expect("a socket");
    let webhook = socket.local_addr().expect("an address");
    let certificates = from_platform(authority.certificates.clone(), authority.bundle.clone());
    let (_events, events) = mpsc::channel(1);
    let platform = Platform {
        events,
        commands: mpsc::channel(1).0,
        problems: watch::channel(Default::default()).1,
        cell: watch::channel(None).1,
        replicas: watch::channel(Arc::default()).1,
        access: Access::Open,
        progress: Arc::default(),
        handle_sender: None,
        freshness: watch::channel(Freshness::confirmed(Moment::NEVER)).1,
    };
    let options = Options {
        tls: Some(certificates.clone()),
        sessions_max: 10,
        webhook: Some(Https {
            socket,
            certificates,
            router: Box::new(|metrics| router(injector, validator, evictions, metrics)),
        }),
        ..Options::default()
    };
    tokio::spawn(serve(options, sockets, platform, std::future::pending()));
    let (_leads, leads) = watch::channel(true);
    let ca_bundle = CaInjector {
        client: client.clone(),
        configuration: configuration.to_owned(),
        bundle: authority.bundle,
        leads,
        every: Duration::from_secs(60),
    };
    tokio::spawn(ca_bundle.run::<MutatingWebhookConfiguration>());
    Own { webhook, _events, _clusters, _leads }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_ca_bundle_follows_a_new_authority_without_refusing_a_pod() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let namespace = cluster.namespace("inject-ca");
    namespace.wait_for_account();
    let client = access.client().await;
    let name = format!("injector-{namespace}");
    let own = serving(&client, &namespace, &name, 24).await;
    let url = format!("https://{}/inject", own.webhook);
    access.apply(&configuration(&name, &namespace, &url).to_string());

    let bundle = || {
        let path = "--output=jsonpath={.webhooks[0].clientConfig.caBundle}";
        let encoded = access.kubectl(&["get", "mutatingwebhookconfiguration", &name, path]);
        let text = STANDARD.decode(encoded).expect("base64");
        String::from_utf8(text).expect("PEM")
    };
    let create = || {
        let create = ["create", "--dry-run=server", "--output=json"];
        namespace.try_kubectl_with(&create, &opted_in("probe", json!({})))
    };
    eventually("a first pod", || create().ok());
    let first = bundle();
    let (first, _) = first.split_at(first.find("-----END").expect("a certificate"));
    let (mut made, mut together) = (0, 0);
    let followed = async {
        // The first authority, both, and then its successor alone.
        loop {
            let pod = create().unwrap_or_else(|why| panic!("after {made} pods: {why}"));
            assert!(pod.contains(AGENT), "{pod}");
            made += 1;
            let now = bundle();
            if !now.contains(first) {
                return;
            }
            together += usize::from(now.matches("BEGIN CERTIFICATE").count() > 1);
            sleep(POLL).await;
        }
    };
    let followed = timeout(2 * HANG, followed).await;
    access.kubectl(&["delete", "mutatingwebhookconfiguration", &name]);
    followed.expect("a successor");
    assert!(together > 0, "both were trusted for a while");
}
