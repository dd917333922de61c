//! A client made from KEDA's proto asks operators on a real API server, over the TLS of their own
//! making, while that server and the leader go: right answers or errors.

use k8s_openapi::api::core::v1::Secret;
use leasehold_proto::coordinator::v1::FollowRequest;
use leasehold_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use leasehold_proto::externalscaler::ScaledObjectRef;
use leasehold_proto::externalscaler::external_scaler_client::ExternalScalerClient;
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use serde_json::{Value, json};
use tests::keda::{Authentication, Keda, Right, channel, object as scaled_object};
use tests::kube::{
    AUDIENCE, Cluster, Component, Namespace, Operator, Replicas, list, object, until_answer,
};
use tests::process::{eventually, get};
use tests::toolbox;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::deploy::stand_ins;
use super::installed::{ExclusiveControlPlane, folder, remove};

/// Two replicas, and a class of which two pipelines ask 22.5 documents per second.
fn replicas_and_class(namespace: &Namespace) -> Replicas {
    let mut replicas = Replicas::new(&namespace.access, namespace, &[]);
    replicas.start();
    replicas.start();
    replicas.wait_ready();
    let green = || json!({ "class": "green" });
    let twice = json!({ "first": green(), "second": green() });
    let once = json!({ "first": green() });
    namespace.apply(&list([
        object("WorkerClass", "green", json!({ "capacity": 15, "maxReplicas": 7 })),
        object("Pipeline", "one", json!({ "documentsPerSecond": 10, "workers": twice })),
        object("Pipeline", "two", json!({ "documentsPerSecond": "2.5", "workers": once })),
    ]));
    replicas
}

/// Waits until a replica shows the 22.5.
fn wait_for_request(replica: &Operator, namespace: &str) {
    let labels = format!(r#"workerclass_name="green",workerclass_namespace="{namespace}""#);
    let gauge = format!("workerclass_request{{{labels}}} 22.5");
    eventually("what the class is asked for", || {
        let (_, metrics) = get(replica.http, "/metrics")?;
        metrics.lines().any(|line| line == gauge).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_the_api_server_or_of_a_leader_never_scale_to_zero() {
    let Some(turn) = ExclusiveControlPlane::for_failures("scaling") else { return };
    let (plane, namespace) = (turn.plane(), Namespace::existing(turn.access(), "scaling"));
    let mut replicas = replicas_and_class(&namespace);
    for replica in &replicas.running {
        wait_for_request(replica, &namespace);
    }
    let authority = std::fs::read_to_string(replicas.authority()).expect("a certificate");
    let server = format!("leasehold-coordinator.{namespace}.svc");
    let right = Right { request: 22.5, target: 10.5, needed: 2.0 };
    let leader = replicas.leader();
    let client = client_certificate(&namespace, &format!("leasehold://autoscaler/{namespace}"));
    let with =
        |client| Some(Authentication { authority: &authority, server_name: &server, client });
    let keda = |name, at: usize| {
        let address = replicas.running[at].grpc.to_string();
        Keda::start(name, &address, with(Some(&client)), &scaled_object(&namespace, "green"), right)
    };
    let (leads, follows) = (keda("leader", leader), keda("follower", 1 - leader));
    leads.until_right().await;
    follows.until_right().await;

    plane.kill_component(Component::ApiServer);
    leads.until_refused("has not been confirmed").await;
    follows.until_refused("has not been confirmed").await;
    plane.start_component(Component::ApiServer);
    leads.until_right().await;
    follows.until_right().await;

    replicas.running[leader].process.kill();
    leads.until_refusals(10).await;
    eventually("another leader", || replicas.leading().filter(|at| *at != leader));
    follows.until_right().await;
    drop((leads.answers(), follows.answers()));
}

/// A client's certificate for this URI and its key, signed as docs/KUBERNETES.md has it: with the
/// key in the Secret of the authority.
pub(crate) fn client_certificate(namespace: &Namespace, uri: &str) -> (String, String) {
    let secret = namespace.kubectl(&["get", "secret", "leasehold-ca", "--output=json"]);
    let secret: Secret = serde_json::from_str(&secret).expect("a Secret");
    let data = secret.data.expect("data");
    let text = |name: &str| String::from_utf8(data[name].0.clone()).expect("PEM");
    let signing = KeyPair::from_pem(&text("tls.key")).expect("a key");
    let issuer = Issuer::from_ca_cert_pem(&text("tls.crt"), signing).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no host");
    params.subject_alt_names.push(SanType::URI(uri.try_into().expect("ASCII")));
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}

/// Asks whether the class is active, with a token if given.
async fn ask(channel: Channel, namespace: &str, token: Option<&str>) -> Result<bool, Status> {
    let mut request: Request<ScaledObjectRef> = Request::new(scaled_object(namespace, "green"));
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().expect("a value");
        request.metadata_mut().insert("authorization", value);
    }
    let answer = ExternalScalerClient::new(channel).is_active(request).await?;
    Ok(answer.into_inner().result)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_replicas_follow_and_only_autoscalers_and_readers_learn_the_load() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = &cluster.namespace("scaling");
    Replicas::define(cluster.access());
    let replicas = replicas_and_class(namespace);
    let leader = &replicas.running[replicas.leader()];
    wait_for_request(leader, namespace);
    // The standby shows its own certificate.
    eventually("a standby that follows", || {
        leader.process.log().contains("a standby follows this replica").then_some(())
    });

    let authority = std::fs::read_to_string(replicas.authority()).expect("a certificate");
    let server_name = format!("leasehold-coordinator.{namespace}.svc");
    let address = leader.grpc.to_string();
    let connect = |client: Option<&(String, String)>| {
        let (authority, server_name) = (authority.as_str(), server_name.as_str());
        channel(&address, Some(Authentication { authority, server_name, client }))
    };
    let of = |uri| client_certificate(namespace, uri);
    let own = format!("leasehold://autoscaler/{namespace}");
    for uri in ["leasehold://autoscaler", &own] {
        assert!(ask(connect(Some(&of(uri))), namespace, None).await.expect(uri));
    }
    for uri in ["leasehold://autoscaler/other", "leasehold://admin", "leasehold://worker/a/b"] {
        let status = ask(connect(Some(&of(uri))), namespace, None).await.expect_err(uri);
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        let needed = format!("URI:leasehold://autoscaler or URI:{own}");
        assert!(status.message().contains(uri) && status.message().contains(&needed), "{status}");
    }
    let status = ask(connect(None), namespace, None).await.expect_err("a stranger");
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");

    namespace.kubectl(&["create", "serviceaccount", "reader"]);
    let token = namespace.kubectl(&["create", "token", "reader", "--audience", AUDIENCE]);
    let token = token.trim().to_owned();
    let status = ask(connect(None), namespace, Some(&token)).await.expect_err("no right");
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let resource = "--resource=workerclasses.leasehold.dev";
    namespace.kubectl(&["create", "role", "reader", "--verb=get", resource]);
    let account = format!("--serviceaccount={namespace}:reader");
    namespace.kubectl(&["create", "rolebinding", "r", "--role=reader", &account]);
    let reads = async || ask(connect(None), namespace, Some(&token)).await;
    until_answer("the right to be seen", reads).await;

    for client in [None, Some(of("leasehold://coordinator"))] {
        let mut peers = PeerServiceClient::new(connect(client.as_ref()));
        let refused =
            peers.follow(FollowRequest { identity: "stranger".into(), ..Default::default() }).await;
        let status = refused.map(drop).expect_err("a stranger");
        assert!(status.message().contains(&format!("DNS:{server_name}")), "{status}");
    }
}

/// What a class and a component come to, as the API server would take it.
fn with_component(component: &str) -> (tempfile::TempDir, String) {
    let mut class = object("WorkerClass", "green", json!({ "capacity": 15, "maxReplicas": 7 }));
    class["metadata"]["namespace"] = json!("default");
    class_with_component(&class, component, "")
}

/// A kustomization of a class and a component, with more lines; the folder and its path.
pub(crate) fn class_with_component(
    class: &Value,
    component: &str,
    more: &str,
) -> (tempfile::TempDir, String) {
    let cache = toolbox::root().join(".cache");
    let folder = tempfile::tempdir_in(cache).expect("a folder in the checkout");
    let kustomization = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n\
         resources: [worker-class.yaml]\ncomponents: [../../deploy/components/{component}]\n{more}"
    );
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization).expect("a file");
    std::fs::write(folder.path().join("worker-class.yaml"), class.to_string()).expect("a file");
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    (folder, path)
}

#[test]
fn the_component_creates_an_autoscaler_for_the_class() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    Replicas::define(access);
    let _stand_ins = stand_ins(access);
    let taken = |component: &str, kind: &str| {
        let (_folder, path) = with_component(component);
        let dry = ["apply", "--dry-run=server", "--validate=strict", "--output=json", "-k", &path];
        let list: Value = serde_json::from_str(&access.kubectl(&dry)).expect("JSON");
        let items = list["items"].as_array().expect("objects").clone();
        items.into_iter().find(|item| item["kind"] == kind).expect("an autoscaler")
    };
    for (component, kind, most) in [
        ("keda", "ScaledObject", "maxReplicaCount"),
        ("hpa", "HorizontalPodAutoscaler", "maxReplicas"),
    ] {
        let made = taken(component, kind);
        assert_eq!(made["metadata"]["name"], "green", "{made}");
        let target = &made["spec"]["scaleTargetRef"];
        assert_eq!((&target["kind"], &target["name"]), (&"WorkerClass".into(), &"green".into()));
        assert_eq!(made["spec"][most], 7, "{made}");
        let text = made["spec"].to_string();
        assert!(!text.contains("worker-class"), "{text}");
    }
    let rule = std::fs::read_to_string(folder("components/hpa/adapter-values.yaml"));
    let rule: Value = serde_yaml::from_str(&rule.expect("a file")).expect("YAML");
    let overrides = &rule["rules"]["external"][0]["resources"]["overrides"];
    assert_eq!(overrides["workerclass_namespace"]["resource"], "namespace");
    remove(access, &["-k", folder("crds").to_str().expect("UTF-8")]);
}
