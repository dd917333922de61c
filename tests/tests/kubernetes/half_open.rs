//! Connections to the API server that die unnoticed: nothing more comes on them, and they do not
//! end. The coordinator hears of changes again within a minute, on new ones.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tests::kube::{Access, Cluster, Replicas, object};

use super::lossy_proxy::{end, pass_on};

/// A way to the API server whose connections can fall silent.
struct SilentProxy {
    access: Access,
    /// How often all connections have fallen silent.
    silences: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
}

impl SilentProxy {
    fn start(access: &Access) -> Self {
        let config = std::fs::read_to_string(access.kubeconfig()).expect("the kubeconfig");
        let mut config: Value = serde_yaml::from_str(&config).expect("YAML");
        let server = &mut config["clusters"][0]["cluster"]["server"];
        let upstream = server.as_str().and_then(|url| url.strip_prefix("https://"));
        let upstream: SocketAddr = upstream.and_then(|host| host.parse().ok()).expect("a server");
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        *server = format!("https://{}", socket.local_addr().expect("its address")).into();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, config.to_string()).expect("the kubeconfig is written");
        let silences = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&silences);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for client in socket.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(upstream)) else {
                    return;
                };
                join(client, server, &shared);
            }
        });
        Self { access: Access::new(file), silences, _folder: folder }
    }

    /// Nothing more passes on the connections that there are.
    fn fall_silent(&self) {
        self.silences.fetch_add(1, Ordering::SeqCst);
    }
}

/// Passes bytes on in both directions until a connection falls silent. It stays open then.
fn join(client: TcpStream, server: TcpStream, silences: &Arc<AtomicUsize>) {
    let twins = (server.try_clone().expect("a twin"), client.try_clone().expect("a twin"));
    let begun = silences.load(Ordering::SeqCst);
    for (from, to) in [(client, server), twins] {
        let silences = Arc::clone(silences);
        std::thread::spawn(move || {
            let is_silent = || silences.load(Ordering::SeqCst) > begun;
            pass_on(&from, &to, |_| !is_silent());
            while is_silent() {
                std::thread::park();
            }
            end([from, to]);
        });
    }
}

#[test]
fn a_coordinator_whose_connections_fall_silent_hears_of_changes_again() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("silent");
    Replicas::define(cluster.access());
    let proxy = SilentProxy::start(cluster.access());
    let mut replicas = Replicas::new(&proxy.access, &namespace, &[]);
    replicas.start();
    replicas.wait_ready();
    let builds =
        |name| object("WorkerCluster", name, json!({ "maxJobs": 4, "maxJobsPerWorker": 2 }));
    let in_force = |cluster: &Value| {
        cluster["status"]["inForceGeneration"] == cluster["metadata"]["generation"]
    };
    namespace.apply(&builds("before"));
    namespace.wait_for("what was written before", "wc", "before", in_force);
    proxy.fall_silent();
    namespace.apply(&builds("after"));
    namespace.wait_for("what was written after", "wc", "after", in_force);
}
