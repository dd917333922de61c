//! A way to the API server on which answers to writes of Leases can be lost: the write happens, and
//! the connection ends before its answer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use tests::kube::Access;
use tests::process::{Process, eventually};

/// A proxy before `kubectl proxy`, which speaks plain HTTP.
pub(crate) struct LossyProxy {
    access: Access,
    to_lose: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
    _kubectl: Process,
}

impl LossyProxy {
    pub(crate) fn start(access: &Access) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = access.kubectl_command(&["proxy", "--port=0"]);
        let kubectl = Process::start(&mut command, &folder.path().join("kubectl.log"));
        let upstream: SocketAddr = eventually("kubectl proxy", || {
            let log = kubectl.log();
            log.trim().strip_prefix("Starting to serve on ")?.parse().ok()
        });
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let url = format!("http://{}", socket.local_addr().expect("its address"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "lossy", "cluster": { "server": url } }],
            "users": [{ "name": "lossy", "user": {} }],
            "contexts": [{ "name": "lossy", "context": { "cluster": "lossy", "user": "lossy" } }],
            "current-context": "lossy",
        });
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, config.to_string()).expect("the kubeconfig is written");
        let to_lose = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&to_lose);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for client in socket.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(upstream)) else {
                    return;
                };
                join(client, server, &shared);
            }
        });
        Self { access: Access::new(file), to_lose, _folder: folder, _kubectl: kubectl }
    }

    /// The way in through the proxy.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Loses the answer to the next write of a Lease.
    pub(crate) fn lose_one(&self) {
        self.to_lose.store(1, Ordering::SeqCst);
    }

    /// How many are still to be lost.
    pub(crate) fn left(&self) -> usize {
        self.to_lose.load(Ordering::SeqCst)
    }
}

/// Passes bytes on in both directions, but for answers that are to be lost.
fn join(client: TcpStream, server: TcpStream, to_lose: &Arc<AtomicUsize>) {
    let loses = Arc::new(AtomicBool::new(false));
    let twins = (client.try_clone().expect("a twin"), server.try_clone().expect("a twin"));
    let (to_lose, marked) = (Arc::clone(to_lose), Arc::clone(&loses));
    std::thread::spawn(move || {
        pass_on(&client, &server, |bytes| {
            if is_write(bytes) && to_lose.load(Ordering::SeqCst) > 0 {
                marked.store(true, Ordering::SeqCst);
                to_lose.fetch_sub(1, Ordering::SeqCst);
            }
            true
        });
        // A client that ends must not end the write whose answer is lost: the answer ends both.
        if !marked.load(Ordering::SeqCst) {
            end([client, server]);
        }
    });
    std::thread::spawn(move || {
        let (client, server) = twins;
        pass_on(&server, &client, |_| !loses.load(Ordering::SeqCst));
        end([client, server]);
    });
}

/// Passes bytes on until a connection ends, or some are not to pass.
pub(crate) fn pass_on(
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut passes: impl FnMut(&[u8]) -> bool,
) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if !passes(&bytes[..length]) || to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
}

/// Ends connections in both directions.
pub(crate) fn end(streams: [TcpStream; 2]) {
    for stream in streams {
        // Fails only where it was shut down already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Whether a request begins here that writes a Lease.
fn is_write(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    (line.starts_with("PUT ") || line.starts_with("POST ")) && line.contains("/leases")
}
