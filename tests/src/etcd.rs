//! A real etcd of one member, as `make tools` builds it for Kubernetes, and coordinators on it.
//! Tests write keys by etcd's own JSON over HTTP.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold_demo::ports::free_ports;
use serde_json::{Value, json};

use crate::http;
use crate::kube::{etcd_command, find_binary};
use crate::process::{Agent, Process, Replica, eventually, free_address};
use crate::toolbox::{self, Missing};

/// A running etcd.
#[derive(Debug)]
pub struct Etcd {
    process: Option<Process>,
    folder: tempfile::TempDir,
    addresses: [SocketAddr; 2],
    replicas: Cell<u32>,
}

impl Etcd {
    /// Starts one, or `None` if it is not built, which is then noted for the end of `make test`.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn start() -> Option<Self> {
        if find_binary("etcd").is_none() {
            toolbox::leave_out("tests with etcd", "`make tools` builds it", Missing::Installable);
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ports = free_ports(2).expect("free ports");
        let addresses = [ports[0], ports[1]].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut etcd = Self { process: None, folder, addresses, replicas: Cell::new(0) };
        etcd.restart();
        Some(etcd)
    }

    /// Starts it again on its data.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn restart(&mut self) {
        self.kill();
        let mut command = etcd_command(&self.data(), self.addresses);
        self.process = Some(Process::start(&mut command, &self.folder.path().join("etcd.log")));
        let request = json!({ "key": STANDARD.encode("health") });
        eventually("etcd", || self.try_call("/v3/kv/range", &request));
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// The folder of its data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A folder that lives as long as this.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where clients reach it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addresses[0])
    }

    /// Calls its API: a path as in `/v3/kv/range`.
    ///
    /// # Panics
    /// If it refuses.
    #[must_use]
    pub fn call(&self, path: &str, request: &Value) -> Value {
        self.try_call(path, request).unwrap_or_else(|| panic!("etcd refuses {path} {request}"))
    }

    fn try_call(&self, path: &str, request: &Value) -> Option<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let (address, body) = (self.addresses[0], request.to_string());
        let answer = runtime.expect("a runtime").block_on(http::call(address, "POST", path, &body));
        let (_, body) = answer.ok().filter(|(status, _)| *status == 200)?;
        serde_json::from_str(&body).ok()
    }

    /// Writes a key. Returns the revision.
    ///
    /// # Panics
    /// If it refuses.
    pub fn put(&self, key: &str, value: &str) -> i64 {
        let request = json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) });
        let answer = self.call("/v3/kv/put", &request);
        let revision = answer["header"]["revision"].as_str().and_then(|text| text.parse().ok());
        revision.expect("a revision")
    }

    /// The keys below a prefix, with their values.
    ///
    /// # Panics
    /// If it refuses.
    #[must_use]
    pub fn below(&self, prefix: &str) -> Vec<(String, String)> {
        let text = |value: &Value| {
            let bytes = STANDARD.decode(value.as_str().unwrap_or_default()).expect("base64");
            String::from_utf8(bytes).expect("UTF-8")
        };
        let answer = self.call("/v3/kv/range", &range(prefix));
        let kvs = answer["kvs"].as_array().into_iter().flatten();
        kvs.map(|kv| (text(&kv["key"]), text(&kv["value"]))).collect()
    }

    /// Drops the history before a revision.
    ///
    /// # Panics
    /// If it refuses.
    pub fn compact(&self, revision: i64) {
        let _ = self.call("/v3/kv/compaction", &json!({ "revision": revision.to_string() }));
    }

    /// Makes a user with a password who may read and write below a prefix, and demands proofs of
    /// all users from now on.
    ///
    /// # Panics
    /// If it refuses.
    pub fn demand_users(&self, user: &str, password: &str, prefix: &str) {
        let mut permission = range(prefix);
        permission["permType"] = "READWRITE".into();
        for (path, request) in [
            ("user/add", json!({ "name": "root", "password": "root" })),
            ("role/add", json!({ "name": "root" })),
            ("user/grant", json!({ "user": "root", "role": "root" })),
            ("user/add", json!({ "name": user, "password": password })),
            ("role/add", json!({ "name": user })),
            ("role/grant", json!({ "name": user, "perm": permission })),
            ("user/grant", json!({ "user": user, "role": user })),
            ("enable", json!({})),
        ] {
            let _ = self.call(&format!("/v3/auth/{path}"), &request);
        }
    }

    /// Starts a coordinator on it, with more flags.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn replica(&self, flags: &[&str]) -> Replica {
        let number = self.replicas.get();
        self.replicas.set(number + 1);
        let [grpc, http] = [free_address(), free_address()];
        let mut command = Command::new(toolbox::binary("leasehold-coordinator"));
        command.args(["run", "--etcd", &self.url(), "--confirm-removals", "0s"]);
        command.arg("--state-dir").arg(self.folder().join(format!("state-{number}")));
        command.args(["--listen", &grpc.to_string(), "--http-listen", &http.to_string()]);
        let log = self.folder().join(format!("coordinator-{number}.log"));
        Replica { process: Process::start(command.args(flags), &log), grpc, http }
    }
}

/// Starts an agent in `folder` that knows these coordinators.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn agent(folder: &Path, coordinators: &[&Replica], cluster: &str, worker: &str) -> Agent {
    let api = free_address();
    let addresses: Vec<String> =
        coordinators.iter().map(|replica| replica.grpc.to_string()).collect();
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["run", "--coordinator", &addresses.join(",")]);
    command.args(["--cluster", cluster, "--worker", worker, "--listen", &api.to_string()]);
    command.arg("--state-dir").arg(folder.join(format!("state-{worker}")));
    let log = folder.join(format!("{worker}.log"));
    Agent { process: Process::start(&mut command, &log), api }
}

/// All keys that begin with a prefix, which ends with a slash.
fn range(prefix: &str) -> Value {
    let end = format!("{}0", prefix.strip_suffix('/').expect("a slash at the end"));
    json!({ "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end) })
}
