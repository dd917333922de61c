//! A client made from KEDA's proto asks real coordinators everything, all the time, while they are
//! killed, stopped and started and while their manifests cannot be read. It gets right answers or
//! errors, and never a zero.

use std::path::Path;

use rustix::process::Signal;
use tests::answers;
use tests::certificates::{authority, signed};
use tests::keda::{Authentication, Keda, Right, object};
use tests::process::{Replica, free_address, get, soon};

/// Three pipelines of 10 on a class of 15: 30 documents per second at 10.5 a worker, on three
/// workers, since no two fit on one.
const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 15, minReplicas: 0, maxReplicas: 10}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: one}
spec: {documentsPerSecond: 10, workers: {first: {class: green}}}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: two}
spec: {documentsPerSecond: 10, workers: {first: {class: green}}}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: three}
spec: {documentsPerSecond: '10', workers: {first: {class: green}}}
";
const RIGHT: Right = Right { request: 30.0, target: 10.5, needed: 3.0 };
/// Why a view is stale.
const UNCONFIRMED: &str = "has not been confirmed";

/// Two replicas on one folder, each asked by a KEDA of its own.
struct ScalerFixture {
    folder: tempfile::TempDir,
    /// The authority's certificate, where they serve TLS.
    authority: Option<String>,
    first: PolledReplica,
    second: PolledReplica,
}

/// A replica and who asks it.
struct PolledReplica {
    name: &'static str,
    replica: Replica,
    keda: Keda,
}

fn flags(folder: &Path, is_secured: bool) -> Vec<String> {
    let file = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    if is_secured {
        vec!["--tls-cert".into(), file("cert.pem"), "--tls-key".into(), file("key.pem")]
    } else {
        Vec::new()
    }
}

/// Writes a certificate for `localhost` and its key; the certificate of who signed it.
fn certify(folder: &Path) -> String {
    let authority = authority();
    let (certificate, key) = signed(&authority, "coordinator", None);
    std::fs::write(folder.join("cert.pem"), certificate).expect("a file");
    std::fs::write(folder.join("key.pem"), key).expect("a file");
    authority.pem()
}

fn start(folder: &Path, name: &str, ports: [std::net::SocketAddr; 2], secured: bool) -> Replica {
    let flags = flags(folder, secured);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Replica::start_at(folder, name, ports, &flags)
}

/// Waits until a replica shows this line among its metrics.
async fn shows(replica: &Replica, line: &str) {
    soon(line, || answers::shows(replica.http, line)).await;
}

impl PolledReplica {
    fn start(name: &'static str, folder: &Path, authority: Option<&str>) -> Self {
        let ports = [free_address(), free_address()];
        let replica = start(folder, name, ports, authority.is_some());
        let server_name = "localhost";
        let trusts =
            authority.map(|authority| Authentication { authority, server_name, client: None });
        let object = object("docs", "green");
        let keda = Keda::start(name, &ports[0].to_string(), trusts, &object, RIGHT);
        Self { name, replica, keda }
    }
}

impl ScalerFixture {
    /// The first one leads.
    async fn set(is_secured: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("manifests")).expect("a folder");
        std::fs::write(folder.path().join("manifests/all.yaml"), MANIFESTS).expect("a manifest");
        let authority = is_secured.then(|| certify(folder.path()));
        let first = PolledReplica::start("first", folder.path(), authority.as_deref());
        shows(&first.replica, "leasehold_leader 1").await;
        let second = PolledReplica::start("second", folder.path(), authority.as_deref());
        let fixture = Self { folder, authority, first, second };
        fixture.both_answer().await;
        fixture
    }

    async fn both_answer(&self) {
        self.first.keda.until_right().await;
        self.second.keda.until_right().await;
    }

    /// Starts a replica again at its addresses.
    fn restart(&mut self, which: fn(&mut Self) -> &mut PolledReplica) {
        let (folder, secured) = (self.folder.path().to_owned(), self.authority.is_some());
        let asked = which(self);
        let ports = [asked.replica.grpc, asked.replica.http];
        asked.replica = start(&folder, asked.name, ports, secured);
    }

    /// Moves the manifests away, and back.
    fn move_manifests(&self, from: &str, to: &str) {
        let folder = self.folder.path();
        std::fs::rename(folder.join(from), folder.join(to)).expect("moved");
    }

    /// Nothing that either of them has ever answered was wrong, and each call was answered.
    fn judge(&self) {
        for asked in [&self.first, &self.second] {
            let answers = asked.keda.answers();
            assert_eq!(answers.right.len(), 6, "{}: {answers:?}", asked.name);
            assert!(answers.refused > 0, "{}: it was never in doubt: {answers:?}", asked.name);
        }
    }
}

fn first(fixture: &mut ScalerFixture) -> &mut PolledReplica {
    &mut fixture.first
}

fn second(fixture: &mut ScalerFixture) -> &mut PolledReplica {
    &mut fixture.second
}

/// The leader is killed and comes back; the next one hangs and wakes up; a standby hangs for so
/// long that what it knew is old when it wakes up.
async fn leaders_come_and_go(is_secured: bool) {
    let mut fixture = ScalerFixture::set(is_secured).await;
    fixture.first.replica.process.kill();
    shows(&fixture.second.replica, "leasehold_leader 1").await;
    fixture.second.keda.until_right().await;
    fixture.restart(first);
    fixture.both_answer().await;

    fixture.second.replica.process.signal(Signal::STOP);
    shows(&fixture.first.replica, "leasehold_leader 1").await;
    fixture.first.keda.until_right().await;
    // Each call that is not answered takes two seconds: longer than a view stays fresh.
    fixture.second.keda.until_refusals(10).await;
    fixture.second.replica.process.signal(Signal::CONT);
    fixture.both_answer().await;
    shows(&fixture.second.replica, "leasehold_leader 0").await;
    fixture.judge();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_a_failover_the_scaler_returns_errors_or_no_change_in_plain_text() {
    leaders_come_and_go(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_a_failover_the_scaler_returns_errors_or_no_change_over_tls() {
    leaders_come_and_go(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scaler_returns_an_error_for_unreadable_manifests() {
    let mut fixture = ScalerFixture::set(false).await;
    let gauge = r#"workerclass_request{workerclass_name="green",workerclass_namespace=""} 30"#;
    shows(&fixture.first.replica, gauge).await;
    shows(&fixture.second.replica, gauge).await;

    fixture.move_manifests("manifests", "away");
    for asked in [&fixture.first, &fixture.second] {
        asked.keda.until_refused(UNCONFIRMED).await;
        let (_, metrics) = get(asked.replica.http, "/metrics").expect("metrics");
        assert!(!metrics.contains("workerclass_request{"), "{}: {metrics}", asked.name);
    }
    // One that starts now knows only what was good last.
    fixture.second.replica.process.kill();
    fixture.restart(second);
    fixture.second.keda.until_refused(UNCONFIRMED).await;
    // A replica that takes over meanwhile cannot read them either.
    fixture.first.replica.process.kill();
    shows(&fixture.second.replica, "leasehold_leader 1").await;
    fixture.second.keda.until_refused(UNCONFIRMED).await;
    fixture.restart(first);
    fixture.first.keda.until_refused(UNCONFIRMED).await;

    fixture.move_manifests("away", "manifests");
    fixture.both_answer().await;
    fixture.judge();
}
