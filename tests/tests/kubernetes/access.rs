//! Who may speak and ask: real agents with tokens that are wrong in every way that there is, each
//! refused with a reason in its own log; and peers that prove who they are and then misbehave.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::{
    DrainWorkerRequest, GetStreamRequest, GetWorkerRequest, ListWorkersRequest,
};
use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use leasehold_proto::coordinator::v1::open_session_response::Message as Heard;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::coordinator::v1::{
    Beat, DrainPhase, HeldPool, HeldStream, Hello, OpenSessionRequest, OpenSessionResponse,
    Refusal, RefusalReason, Release, Report, StreamRef, Token,
};
use leasehold_types::limits::PROTOCOL_VERSION;
use serde_json::json;
use tests::answers::shows;
use tests::kube::{AUDIENCE, Cluster, Namespace, Replicas, TokenFor, until, until_answer};
use tests::process::{Process, eventually, free_address};
use tests::toolbox;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Streaming};

use crate::forged_token::forged;
use crate::installed::ExclusiveControlPlane;
use crate::token_flood::reviews;

/// A coordinator that leads, and pods that no node runs: a token needs its pod's object only.
struct AccessFixture {
    namespace: Namespace,
    replicas: Replicas,
    authority: PathBuf,
}

impl AccessFixture {
    fn start(cluster: &Cluster) -> Self {
        let namespace = cluster.namespace("access");
        Replicas::define(&namespace.access);
        Self::start_in(namespace)
    }

    /// One for a namespace of a cluster that has Leasehold's kinds.
    fn start_in(namespace: Namespace) -> Self {
        namespace.wait_for_account();
        namespace.apply(
            r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 8, maxJobsPerWorker: 2}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: feeds}
spec: {cluster: builds, streams: [{name: a}]}
",
        );
        let mut replicas = Replicas::new(&namespace.access, &namespace, &[]);
        replicas.start();
        let authority = replicas.authority();
        let leader = replicas.leader();
        assert_eq!(leader, 0);
        Self { namespace, replicas, authority }
    }

    fn address(&self) -> SocketAddr {
        self.replicas.running[0].grpc
    }

    fn cluster(&self) -> String {
        format!("{}/builds", self.namespace)
    }

    /// Creates a pod that is never placed, as a worker where `label` says of which cluster; gives
    /// its UID.
    fn pod(&self, name: &str, label: Option<&str>) -> String {
        let labels = label.map(|cluster| json!({ "leasehold.dev/cluster": cluster }));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": labels },
            "spec": {
                "nodeSelector": { "nobody": "runs-it" },
                "containers": [{ "name": "worker", "image": "example.invalid/worker:1" }],
            },
        });
        self.namespace.apply(&pod);
        self.namespace.kubectl(&["get", "pod", name, "--output=jsonpath={.metadata.uid}"])
    }

    /// Waits until the coordinator has read the API server's keys.
    fn wait_for_keys(&self) {
        let process = &self.replicas.running[0].process;
        eventually("the API server's keys", || {
            process.log().contains("verified by the API server's keys").then_some(())
        });
    }

    fn delete(&self, pod: &str) {
        self.namespace.kubectl(&["delete", "pod", pod, "--wait=true"]);
    }

    async fn token(&self, audience: &str, pod: Option<(&str, &str)>) -> String {
        let wanted = TokenFor {
            namespace: &self.namespace,
            service_account: "default",
            audience: Some(audience),
            pod,
            seconds: 600,
        };
        self.namespace.access.token(wanted).await.expect("a token")
    }

    /// Starts a real agent for `worker`.
    fn agent(&self, worker: &str, case: &str, credentials: &Credentials<'_>) -> Process {
        let folder = self.replicas.folder();
        let mut command = Command::new(toolbox::binary("leasehold-agent"));
        command.args(["run", "--coordinator", &self.address().to_string()]);
        command.args(["--cluster", &self.cluster(), "--worker", worker]);
        command.args(["--listen", &free_address().to_string()]);
        if credentials.tls {
            command.arg("--tls-ca").arg(&self.authority);
            command.args(["--tls-server-name", &self.server_name()]);
        }
        if let Some(token) = credentials.token {
            let file = folder.join(format!("{case}.token"));
            std::fs::write(&file, token).expect("the token is written");
            command.arg("--token-file").arg(file);
        }
        Process::start(&mut command, &folder.join(format!("{case}.log")))
    }

    fn server_name(&self) -> String {
        format!("leasehold-coordinator.{}.svc", self.namespace)
    }

    async fn channel(&self) -> Channel {
        let ca = std::fs::read(&self.authority).expect("the authority");
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        let tls = tls.domain_name(self.server_name());
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address()));
        let endpoint = endpoint.and_then(|endpoint| endpoint.tls_config(tls));
        endpoint.expect("an endpoint").connect().await.expect("a connection")
    }

    async fn dial(&self, token: &str) -> Peer {
        let (to, messages) = mpsc::channel(16);
        let request = with_token(ReceiverStream::new(messages), token);
        let session = SessionServiceClient::new(self.channel().await).open_session(request).await;
        Peer { to, from: session.expect("a session").into_inner() }
    }

    async fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel().await)
    }
}

struct Credentials<'a> {
    tls: bool,
    token: Option<&'a str>,
}

/// A peer that speaks the protocol as the test wants it.
struct Peer {
    to: mpsc::Sender<OpenSessionRequest>,
    from: Streaming<OpenSessionResponse>,
}

impl Peer {
    async fn say(&self, message: Said) {
        // The coordinator may have ended the session: the test sees that by what it hears.
        let _ = self.to.send(OpenSessionRequest { message: Some(message) }).await;
    }

    async fn say_hello(&self, fixture: &AccessFixture, worker: &str) {
        self.say(Said::Hello(Hello {
            protocol: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            cluster: fixture.cluster(),
            worker: worker.into(),
            incarnation: 1,
            link: 1,
            stops_worker: true,
            ..Hello::default()
        }))
        .await;
    }

    async fn hear(&mut self) -> Heard {
        let heard = self.from.message().await.expect("a message").expect("no end yet");
        heard.message.expect("a message in it")
    }

    /// What ends the session; whatever is granted before is passed over.
    async fn refusal(&mut self) -> Refusal {
        loop {
            match self.hear().await {
                Heard::Refusal(refusal) => return refusal,
                Heard::Welcome(_) | Heard::Grant(_) | Heard::Waiting(_) => {}
            }
        }
    }

    async fn welcome(&mut self) -> u64 {
        match self.hear().await {
            Heard::Welcome(welcome) => welcome.epoch,
            other => panic!("no welcome: {other:?}"),
        }
    }
}

fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {token}").parse().expect("a value");
    request.metadata_mut().insert("authorization", value);
    request
}

fn refused(log: &Process, words: &[&str]) {
    eventually(&format!("{words:?} in the agent's log"), || {
        let log = log.log();
        words.iter().all(|word| log.contains(word)).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_with_a_false_identity_is_refused_and_logs_the_reason() {
    let Some(cluster) = Cluster::shared() else { return };
    let fixture = AccessFixture::start(cluster);
    // The keys must refuse these tokens too, and not only a review.
    fixture.wait_for_keys();
    let uid = fixture.pod("w-0", Some("builds"));
    let other_uid = fixture.pod("w-1", Some("builds"));
    let bare_uid = fixture.pod("bare", None);
    let elsewhere_uid = fixture.pod("elsewhere", Some("nightly"));
    let gone_uid = fixture.pod("gone", Some("builds"));
    let good = fixture.token(AUDIENCE, Some(("w-0", &uid))).await;
    let others = fixture.token(AUDIENCE, Some(("w-1", &other_uid))).await;
    let bare = fixture.token(AUDIENCE, Some(("bare", &bare_uid))).await;
    let elsewhere = fixture.token(AUDIENCE, Some(("elsewhere", &elsewhere_uid))).await;
    let gone = fixture.token(AUDIENCE, Some(("gone", &gone_uid))).await;
    fixture.delete("gone");
    let unmeant = fixture.token("https://other.example", Some(("w-0", &uid))).await;
    let unbound = fixture.token(AUDIENCE, None).await;
    let middle = good.len() - 20;
    let swapped = if &good[middle..=middle] == "A" { "B" } else { "A" };
    let tampered = format!("{}{swapped}{}", &good[..middle], &good[middle + 1..]);
    let expired = forged(cluster, &good, |claims| {
        let long_ago = |hours: i64| claims["iat"].as_i64().expect("a time") - 3600 * hours;
        let (from, to) = (long_ago(2), long_ago(1));
        (claims["iat"], claims["nbf"], claims["exp"]) = (json!(from), json!(from), json!(to));
    });

    let tls = |token| Credentials { tls: true, token: Some(token) };
    let cases = [
        ("tampered", "w-0", tls(&tampered), vec!["Unauthorized", "rejects the token"]),
        ("nonsense", "w-0", tls("nonsense"), vec!["Unauthorized", "rejects the token"]),
        ("others", "w-0", tls(&others), vec!["Unauthorized", "cannot act as worker"]),
        ("unmeant", "w-0", tls(&unmeant), vec!["Unauthorized", "audience"]),
        ("unbound", "w-0", tls(&unbound), vec!["Unauthorized", "not bound to a pod"]),
        ("bare", "bare", tls(&bare), vec!["Unauthorized", "label leasehold.dev/cluster=builds"]),
        ("elsewhere", "elsewhere", tls(&elsewhere), vec!["Unauthorized", "cluster=nightly"]),
        ("gone", "gone", tls(&gone), vec!["Unauthorized", "rejects the token"]),
        ("none", "w-0", Credentials { tls: true, token: None }, vec!["Unauthorized", "no token"]),
        ("plain", "w-0", Credentials { tls: false, token: None }, vec!["--tls-ca"]),
    ];
    let expired_case = expired.as_deref().map(|token| {
        ("expired", "w-0", tls(token), vec!["Unauthorized", "rejects the token", "expired"])
    });
    let cases = cases.into_iter().chain(expired_case);
    let started: Vec<_> = cases
        .map(|(case, worker, credentials, words)| {
            (fixture.agent(worker, case, &credentials), words)
        })
        .collect();
    for (agent, words) in &started {
        refused(agent, words);
        assert!(!agent.log().contains("welcomed"), "{}", agent.log());
        for secret in [&good, &others, &unmeant, &unbound] {
            assert!(!agent.log().contains(secret.as_str()), "a token in a log");
        }
    }
    // The right one is welcome, and what it may hold is written to its pod before it holds it.
    let agent = fixture.agent("w-0", "good", &tls(&good));
    refused(&agent, &["welcomed"]);
    let read = ["get", "pod", "w-0", "--output=jsonpath={.metadata.annotations}"];
    until(
        "the exposure",
        || fixture.namespace.kubectl(&read),
        |annotations| annotations.contains("leasehold.dev/exposure"),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hostile_agent_cannot_read_or_change_another_worker() {
    let Some(cluster) = Cluster::shared() else { return };
    let fixture = AccessFixture::start(cluster);
    let uid = fixture.pod("w-0", Some("builds"));
    let token = fixture.token(AUDIENCE, Some(("w-0", &uid))).await;
    let honest = fixture.agent("w-0", "honest", &Credentials { tls: true, token: Some(&token) });
    refused(&honest, &["welcomed"]);
    let hostile_uid = fixture.pod("w-1", Some("builds"));
    let hostile = fixture.token(AUDIENCE, Some(("w-1", &hostile_uid))).await;

    // A person who may read sees what there is.
    let person = reader(&fixture).await;
    let mut admin = fixture.admin().await;
    let owner = async |admin: &mut AdminServiceClient<Channel>| {
        let set = format!("{}/feeds", fixture.namespace);
        let request = GetStreamRequest { set, stream: "a".into() };
        let answer = admin.get_stream(with_token(request, &person)).await;
        let stream = answer.expect("a stream").into_inner().stream.expect("a stream");
        stream.claims.into_iter().map(|claim| claim.worker).collect::<Vec<_>>()
    };
    until_answer("w-0 owns the stream", async || match owner(&mut admin).await {
        owners if owners == ["w-0"] => Ok(()),
        owners => Err(format!("its owners are {owners:?}")),
    })
    .await;

    // Hello for another worker.
    let mut peer = fixture.dial(&hostile).await;
    peer.say_hello(&fixture, "w-0").await;
    let refusal = peer.refusal().await;
    assert_eq!(refusal.reason(), RefusalReason::Unauthorized, "{refusal:?}");
    assert!(refusal.message.contains("cannot act as worker"), "{refusal:?}");

    // A second hello on a link that is proven for one worker.
    let mut peer = fixture.dial(&hostile).await;
    peer.say_hello(&fixture, "w-1").await;
    peer.welcome().await;
    peer.say_hello(&fixture, "w-0").await;
    assert_eq!(peer.refusal().await.reason(), RefusalReason::Invalid);

    // A report and a beat that claim, and give back, what is another's.
    let mut peer = fixture.dial(&hostile).await;
    peer.say(Said::Hello(Hello {
        protocol: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        cluster: fixture.cluster(),
        worker: "w-1".into(),
        incarnation: 2,
        link: 1,
        stops_worker: true,
        ..Hello::default()
    }))
    .await;
    let epoch = peer.welcome().await;
    let stream = StreamRef { set: format!("{}/feeds", fixture.namespace), stream: "a".into() };
    let token = Some(Token { epoch, seq: 1 });
    peer.say(Said::Report(Report {
        epoch,
        nonce: 1,
        pool: Some(HeldPool { token, size: 8, ..HeldPool::default() }),
        streams: vec![HeldStream { stream: Some(stream.clone()), token, ..Default::default() }],
        running: Some(0),
        drain: DrainPhase::Working.into(),
        ..Report::default()
    }))
    .await;
    peer.say(Said::Beat(Beat {
        epoch,
        nonce: 2,
        running: Some(0),
        drain: DrainPhase::Working.into(),
        released: vec![Release { stream: Some(stream), token }],
        ..Beat::default()
    }))
    .await;
    // Once the coordinator has answered, it has taken both in.
    while !matches!(peer.hear().await, Heard::Grant(_) | Heard::Refusal(_)) {}
    assert_eq!(owner(&mut admin).await, ["w-0"]);
    assert!(!honest.log().contains("revoked"), "{}", honest.log());

    // Calls of people with an agent's token.
    let list = ListWorkersRequest { cluster: fixture.cluster(), ..Default::default() };
    let status = admin.list_workers(with_token(list, &hostile)).await.expect_err("a list");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(status.message().contains("get workerclusters.leasehold.dev"), "{status:?}");
    let worker = || (fixture.cluster(), "w-0".to_owned());
    let (cluster_name, name) = worker();
    let drain = DrainWorkerRequest { cluster: cluster_name, worker: name };
    let status = admin.drain_worker(with_token(drain.clone(), &hostile)).await.expect_err("ok");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    // Read access does not allow changes, and no token means no answer.
    let status = admin.drain_worker(with_token(drain, &person)).await.expect_err("a drain");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(status.message().contains("create workerclusters/drain"), "{status:?}");
    let (cluster_name, name) = worker();
    let get = GetWorkerRequest { cluster: cluster_name, worker: name };
    let status = admin.get_worker(get).await.expect_err("a worker");
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_ends_with_its_pod_and_its_token_is_refused_afterwards() {
    let Some(cluster) = Cluster::shared() else { return };
    let fixture = AccessFixture::start(cluster);
    let uid = fixture.pod("w-0", Some("builds"));
    let token = fixture.token(AUDIENCE, Some(("w-0", &uid))).await;
    let mut peer = fixture.dial(&token).await;
    peer.say_hello(&fixture, "w-0").await;
    peer.welcome().await;
    fixture.delete("w-0");
    let refusal = peer.refusal().await;
    assert_eq!(refusal.reason(), RefusalReason::GoAway, "{refusal:?}");
    assert!(refusal.message.contains("gone"), "{refusal:?}");
    // The watch no longer has the pod.
    let mut peer = fixture.dial(&token).await;
    peer.say_hello(&fixture, "w-0").await;
    assert_eq!(peer.refusal().await.reason(), RefusalReason::Unauthorized);
    // A later pod of the same name is a different worker.
    let later = fixture.pod("w-0", Some("builds"));
    let mut peer = fixture.dial(&token).await;
    peer.say_hello(&fixture, "w-0").await;
    let refusal = peer.refusal().await;
    assert_eq!(refusal.reason(), RefusalReason::Unauthorized, "{refusal:?}");
    let token = fixture.token(AUDIENCE, Some(("w-0", &later))).await;
    let mut peer = fixture.dial(&token).await;
    peer.say_hello(&fixture, "w-0").await;
    peer.welcome().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agents_token_is_verified_without_a_review_and_a_persons_token_is_reviewed() {
    let Some(turn) = ExclusiveControlPlane::for_failures("keys") else { return };
    let access = turn.access();
    let fixture = AccessFixture::start_in(Namespace::existing(access, "keys"));
    fixture.wait_for_keys();
    let [uid, leaving_uid] = ["w-0", "w-1"].map(|name| fixture.pod(name, Some("builds")));
    let total = ["get", "wc", "builds", "--output=jsonpath={.status.workers.total}"];
    until("both pods", || fixture.namespace.kubectl(&total), |total| total == "2");
    let token = fixture.token(AUDIENCE, Some(("w-0", &uid))).await;
    let leaving_token = fixture.token(AUDIENCE, Some(("w-1", &leaving_uid))).await;
    let before = reviews(access);
    let until_reviewed = |count: u64| {
        until(&format!("{count} reviews"), || reviews(access), |made| *made == before + count);
    };
    let mut peer = fixture.dial(&token).await;
    peer.say_hello(&fixture, "w-0").await;
    peer.welcome().await;
    let mut leaving = fixture.dial(&leaving_token).await;
    leaving.say_hello(&fixture, "w-1").await;
    leaving.welcome().await;
    let replica = &fixture.replicas.running[0];
    let twice = "leasehold_token_checks_total{by=\"keys\"} 2";
    eventually("two tokens in the metrics", || shows(replica.http, twice));
    assert_eq!(reviews(access), before);
    // As a person's, the same token is reviewed.
    let list = ListWorkersRequest { cluster: fixture.cluster(), ..Default::default() };
    let listed = fixture.admin().await.list_workers(with_token(list, &token)).await;
    let status = listed.expect_err("an agent that may not list");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    until_reviewed(1);
    // The keys prove nothing of a pod that is gone: the API server rejects the token.
    fixture.delete("w-1");
    assert_eq!(leaving.refusal().await.reason(), RefusalReason::GoAway);
    let mut leaving = fixture.dial(&leaving_token).await;
    leaving.say_hello(&fixture, "w-1").await;
    let refusal = leaving.refusal().await;
    assert_eq!(refusal.reason(), RefusalReason::Unauthorized, "{refusal:?}");
    assert!(refusal.message.contains("rejects the token"), "{refusal:?}");
    until_reviewed(2);
    eventually("no third token in the metrics", || shows(replica.http, twice));
}

/// The token of a user who may read the custom resources of the namespace.
async fn reader(fixture: &AccessFixture) -> String {
    fixture.namespace.apply(&format!(
        r"
apiVersion: v1
kind: ServiceAccount
metadata: {{name: ada}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: leasehold-reader}}
rules:
- apiGroups: [leasehold.dev]
  resources: [workerclusters, streamsets]
  verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: ada}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: leasehold-reader}}
subjects: [{{kind: ServiceAccount, name: ada, namespace: {}}}]
",
        fixture.namespace
    ));
    let wanted = TokenFor {
        namespace: &fixture.namespace,
        service_account: "ada",
        audience: Some(AUDIENCE),
        pod: None,
        seconds: 600,
    };
    fixture.namespace.access.token(wanted).await.expect("a token")
}
