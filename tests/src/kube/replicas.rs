//! Replicas of the real coordinator as an operator on a cluster, each a process of this machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use rustix::process::Signal;

use super::access::Access;
use super::cluster::Cluster;
use crate::answers::shows;
use crate::memory_limit::MemoryLimit;
use crate::process::{Process, eventually, free_address, get};
use crate::toolbox;

/// The audience that tokens are made for.
pub const AUDIENCE: &str = "leasehold.dev";

/// One replica.
#[derive(Debug)]
pub struct Operator {
    /// The process.
    pub process: Process,
    /// Its name in the election, to which it adds a word of its own.
    pub identity: String,
    /// Where it serves gRPC.
    pub grpc: SocketAddr,
    /// Where it serves HTTP.
    pub http: SocketAddr,
    /// Where it serves the webhook.
    pub webhook: SocketAddr,
    /// The limit of its memory, if it has one.
    pub memory: Option<MemoryLimit>,
}

/// Replicas of one installation.
#[derive(Debug)]
pub struct Replicas {
    /// Those that run. They go before the folder with their logs does.
    pub running: Vec<Operator>,
    access: Access,
    namespace: String,
    folder: tempfile::TempDir,
    /// Flags of those that start from now on.
    pub flags: Vec<String>,
    /// The memory of each that starts from now on, in bytes, if it is limited.
    pub memory_max: Option<u64>,
    starts: usize,
}

impl Replicas {
    /// No replica yet; their own objects go into `namespace`, which is also the one that they
    /// serve. `flags` are for all of them.
    ///
    /// # Panics
    /// If there is no temporary folder.
    #[must_use]
    pub fn new(access: &Access, namespace: &str, flags: &[&str]) -> Self {
        Self {
            running: Vec::new(),
            access: access.clone(),
            namespace: namespace.to_owned(),
            folder: tempfile::tempdir().expect("a temporary folder"),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            memory_max: None,
            starts: 0,
        }
    }

    /// Applies the definitions of the custom resources, as an installation does. In the cluster
    /// that tests share they stay, and only the first test needs to.
    ///
    /// # Panics
    /// If the API server refuses them.
    pub fn define(access: &Access) {
        static IN_SHARED: Once = Once::new();
        if Cluster::is_shared(access) {
            IN_SHARED.call_once(|| Self::apply_definitions(access));
        } else {
            Self::apply_definitions(access);
        }
    }

    fn apply_definitions(access: &Access) {
        let folder = toolbox::root().join("deploy/crds");
        let folder = folder.to_str().expect("a folder's name");
        access.kubectl(&["apply", "--server-side", "--kustomize", folder]);
        let wait = ["wait", "--for=condition=Established", "--timeout=60s", "crd"];
        let plurals =
            ["workerclusters", "streamsets", "workerclasses", "pipelines", "pipelinebindings"];
        let names = plurals.map(|plural| format!("{plural}.leasehold.dev"));
        let names = names.each_ref().map(String::as_str);
        access.kubectl(&[&wait[..], &names].concat());
    }

    /// Starts one more.
    ///
    /// # Panics
    /// If it does not start, or this machine allows no limit of its memory where one is wanted.
    pub fn start(&mut self) -> &Operator {
        let operator = self.launch([free_address(), free_address(), free_address()]);
        self.running.push(operator);
        self.running.last().expect("it was just added")
    }

    /// Replaces one, as a rolling update does: it is asked to end, and when it has, another begins
    /// in its place.
    ///
    /// # Panics
    /// If it does not end as it should, or the other does not start.
    pub fn replace(&mut self, index: usize) {
        let mut old = self.running.remove(index);
        old.process.signal(Signal::TERM);
        let ended = old.process.wait();
        assert!(ended.success(), "{} ended with {ended}:\n{}", old.identity, old.process.log());
        self.follow(index, old);
    }

    /// Puts another in the place of one that was taken out of those that run, once that has ended.
    ///
    /// # Panics
    /// If it does not end, or the other does not start.
    pub fn follow(&mut self, index: usize, mut old: Operator) {
        old.process.wait();
        let new = self.launch([old.grpc, old.http, old.webhook]);
        self.running.insert(index, new);
    }

    fn launch(&mut self, [grpc, http, webhook]: [SocketAddr; 3]) -> Operator {
        self.starts += 1;
        let identity = format!("replica-{}", self.starts);
        let mut command = Command::new(toolbox::binary("leasehold-coordinator"));
        command.env("KUBECONFIG", self.access.kubeconfig());
        // Tests look for who follows a leader.
        command.env("RUST_LOG", "info,leasehold_server::grpc::peer=debug");
        command.args(["operator", "--identity", &identity, "--namespace", &self.namespace]);
        command.args(["--watch-namespace", &self.namespace]);
        command.args(["--listen", &grpc.to_string(), "--http-listen", &http.to_string()]);
        command.args(["--webhook-listen", &webhook.to_string()]);
        command.args(&self.flags);
        let memory = self.memory_max.map(|bytes| {
            let name = format!("{}-{identity}-{}", self.namespace, std::process::id());
            MemoryLimit::new(&name, bytes).unwrap_or_else(|why| panic!("{why}"))
        });
        if let Some(limit) = &memory {
            command = limit.apply(&command);
        }
        let process = Process::start(&mut command, &self.folder.path().join(&identity));
        Operator { process, identity, grpc, http, webhook, memory }
    }

    /// Waits until one of them leads, and gives its place among those that run.
    ///
    /// # Panics
    /// If none does for a long time.
    #[must_use]
    pub fn leader(&self) -> usize {
        eventually("a leader", || self.leading())
    }

    /// The place of the one that leads, among those that run, or `None` if none says so.
    #[must_use]
    pub fn leading(&self) -> Option<usize> {
        self.running.iter().position(|replica| shows(replica.http, "leasehold_leader 1").is_some())
    }

    /// Waits until all are ready.
    ///
    /// # Panics
    /// If one is not for a long time.
    pub fn wait_ready(&self) {
        eventually("ready replicas", || self.are_ready().then_some(()));
    }

    /// Whether all are ready.
    #[must_use]
    pub fn are_ready(&self) -> bool {
        let ready = |replica: &Operator| {
            get(replica.http, "/readyz").is_some_and(|(status, _)| status == 200)
        };
        self.running.iter().all(ready)
    }

    /// Where agents dial: all replicas, as a Service would spread them.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.running.iter().map(|replica| replica.grpc).collect()
    }

    /// The certificate that they are known by, in a file.
    ///
    /// # Panics
    /// If they publish none for a long time.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        let file = self.folder.path().join("ca.crt");
        let arguments = [
            "--namespace",
            &self.namespace,
            "get",
            "configmap",
            "leasehold-ca",
            "--output=jsonpath={.data.ca\\.crt}",
        ];
        let bundle = eventually("the published certificate", || {
            self.access.try_kubectl(&arguments).ok().filter(|text| !text.is_empty())
        });
        std::fs::write(&file, bundle).expect("the certificate is written");
        file
    }

    /// A folder that lives as long as this does.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
