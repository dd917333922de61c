//! With `--tls-client-ca` the name in a client's certificate decides what the client may do: an
//! agent acts for its own worker, and only an administrator gives orders. Real programs, and
//! certificates of an authority of the test's own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::{
    DeclareWorkerGoneRequest, DrainWorkerRequest, GetStatusRequest, PlanRequest,
    WatchChangesRequest,
};
use leasehold_proto::coordinator::v1::FollowRequest;
use leasehold_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use leasehold_proto::externalscaler::external_scaler_client::ExternalScalerClient;
use tests::answers::{lease, shows};
use tests::certificates::{Authority, authority, signed};
use tests::keda::object;
use tests::process::{Process, Replica, eventually, free_address};
use tests::toolbox;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 8, maxJobsPerWorker: 3}
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 15, minReplicas: 0, maxReplicas: 10}
";

/// Who may read, give orders, ask for the load of a class, and follow.
const NAMES: [(&str, [bool; 4]); 6] = [
    ("leasehold://worker/builds/w-0", [false; 4]),
    ("leasehold://viewer", [true, false, true, false]),
    ("leasehold://admin", [true, true, true, false]),
    ("leasehold://autoscaler", [false, false, true, false]),
    ("leasehold://coordinator", [false, false, false, true]),
    ("https://example/", [false; 4]),
];

/// A coordinator with mutual TLS, and the authority of its clients.
struct TestReplicas {
    folder: tempfile::TempDir,
    authority: Authority,
    coordinator: Replica,
}

impl TestReplicas {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("manifests")).expect("a folder");
        std::fs::write(folder.path().join("manifests/all.yaml"), MANIFESTS).expect("a manifest");
        let authority = authority();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).expect("a file");
        let (cert, key) = signed(&authority, "coordinator", None);
        std::fs::write(folder.path().join("coordinator.pem"), cert).expect("a file");
        std::fs::write(folder.path().join("coordinator.key"), key).expect("a file");
        let file = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        let (cert, key, ca) = (file("coordinator.pem"), file("coordinator.key"), file("ca.pem"));
        let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
        let ports = [free_address(), free_address()];
        let coordinator = Replica::start_at(folder.path(), "coordinator", ports, &flags);
        eventually("a leader", || shows(coordinator.http, "leasehold_leader 1"));
        Self { folder, authority, coordinator }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.pem` and `NAME.key` for a client with this URI.
    fn certify(&self, name: &str, uri: &str) {
        let (cert, key) = signed(&self.authority, name, Some(uri));
        std::fs::write(self.file(&format!("{name}.key")), key).expect("a file");
        std::fs::write(self.file(&format!("{name}.pem")), cert).expect("a file");
    }

    /// Starts the agent of a worker, which has the certificate in the files `files`.
    fn agent(&self, worker: &str, files: &str, api: SocketAddr) -> Process {
        let mut command = Command::new(toolbox::binary("leasehold-agent"));
        command.args(["run", "--coordinator", &self.coordinator.grpc.to_string()]);
        command.args(["--cluster", "builds", "--worker", worker, "--listen", &api.to_string()]);
        command.arg("--state-dir").arg(self.file(&format!("state-{worker}")));
        command.arg("--tls-ca").arg(self.file("ca.pem"));
        command.arg("--tls-cert").arg(self.file(&format!("{files}.pem")));
        command.arg("--tls-key").arg(self.file(&format!("{files}.key")));
        Process::start(&mut command, &self.file(&format!("{worker}.log")))
    }

    /// A client with a certificate for this URI.
    async fn client(&self, uri: &str) -> Channel {
        let (cert, key) = signed(&self.authority, "client", Some(uri));
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.authority.pem()))
            .identity(Identity::from_pem(cert, key));
        let endpoint = Endpoint::from_shared(format!("https://{}", self.coordinator.grpc));
        let endpoint = endpoint.expect("an address").tls_config(tls).expect("TLS");
        endpoint.connect().await.expect("a connection")
    }
}

fn pool_of_three(api: SocketAddr) -> Option<()> {
    (lease(api)?["pool"]["size"] == 3).then_some(())
}

#[test]
fn an_agent_speaks_only_for_the_worker_in_its_certificate() {
    let replicas = TestReplicas::start();
    replicas.certify("w-0", "leasehold://worker/builds/w-0");
    let (own, other) = (free_address(), free_address());
    let _agent = replicas.agent("w-0", "w-0", own);
    eventually("the pool of w-0", || pool_of_three(own));

    // The certificate of w-0 under another name.
    let (cert, key) = (replicas.file("copy.pem"), replicas.file("copy.key"));
    std::fs::copy(replicas.file("w-0.pem"), &cert).expect("a copy");
    std::fs::copy(replicas.file("w-0.key"), &key).expect("a copy");
    let impostor = replicas.agent("w-1", "copy", other);
    let refused = eventually("a refusal", || {
        impostor
            .log()
            .lines()
            .find(|line| line.contains("the certificate is for"))
            .map(str::to_owned)
    });
    for part in [
        "URI:leasehold://worker/builds/w-0",
        "CN=w-0",
        "the agent of worker w-1 of cluster builds",
        "needs one for URI:leasehold://worker/builds/w-1",
    ] {
        assert!(refused.contains(part), "{part:?} in {refused}");
    }
    assert_eq!(lease(other).expect("an answer")["connected"], false);
    assert!(lease(own).is_some_and(|lease| lease["connected"] == true));

    // Its own certificate, in the same files.
    replicas.certify("copy", "leasehold://worker/builds/w-1");
    eventually("the pool of w-1", || pool_of_three(other));
}

/// Whether a call was allowed; what it asks for may not exist.
fn is_allowed<T>(answer: Result<T, Status>, what: &str) -> bool {
    match answer.map(drop) {
        Ok(()) => true,
        Err(status) if status.code() == Code::NotFound => true,
        Err(status) => {
            assert_eq!(status.code(), Code::PermissionDenied, "{what}: {status}");
            assert!(status.message().contains("that needs one for URI:"), "{what}: {status}");
            false
        }
    }
}

#[tokio::test]
async fn the_name_in_a_certificate_decides_which_calls_a_client_may_make() {
    let replicas = TestReplicas::start();
    let (cluster, worker) = (|| "builds".to_owned(), || "w-9".to_owned());
    for (name, want) in NAMES {
        let channel = replicas.client(name).await;
        let mut admin = AdminServiceClient::new(channel.clone());
        let plan = PlanRequest { cluster: cluster(), ..PlanRequest::default() };
        let changes = WatchChangesRequest::default();
        let reads = [
            is_allowed(admin.get_status(GetStatusRequest {}).await, name),
            is_allowed(admin.plan(plan).await, name),
            is_allowed(admin.watch_changes(changes).await, name),
        ];
        let drain = DrainWorkerRequest { cluster: cluster(), worker: worker() };
        let incarnation = Some(0);
        let gone = DeclareWorkerGoneRequest { cluster: cluster(), worker: worker(), incarnation };
        let orders = [
            is_allowed(admin.drain_worker(drain).await, name),
            is_allowed(admin.declare_worker_gone(gone).await, name),
        ];
        let mut scaler = ExternalScalerClient::new(channel.clone());
        let object = object("default", "green");
        let demands = [
            is_allowed(scaler.is_active(object.clone()).await, name),
            is_allowed(scaler.get_metric_spec(object.clone()).await, name),
            is_allowed(scaler.stream_is_active(object).await, name),
        ];
        let request = FollowRequest { identity: "test".into(), ..Default::default() };
        let follows = is_allowed(PeerServiceClient::new(channel).follow(request).await, name);
        let [may_read, may_order, may_scale, may_follow] = want;
        assert_eq!(reads, [may_read; 3], "{name}");
        assert_eq!(orders, [may_order; 2], "{name}");
        assert_eq!(demands, [may_scale; 3], "{name}");
        assert_eq!(follows, may_follow, "{name}");
    }
}

#[test]
fn the_log_says_what_clients_prove() {
    let replicas = TestReplicas::start();
    let log = replicas.coordinator.process.log();
    assert!(log.contains("the URI in a client's certificate decides"), "{log}");
    let open = tests::process::Coordinator::start(&[("all.yaml", MANIFESTS)]);
    eventually("the warning", || {
        let log = open.process.log();
        (log.contains("clients prove nothing") && log.contains("--tls-client-ca")).then_some(())
    });
}
