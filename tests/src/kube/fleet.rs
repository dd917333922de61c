//! A fleet of real agents beside real workers, one pair a pod: what a kubelet would run, run by the
//! test. A pod's end goes as with a native sidecar: first the hook that drains, then the worker's
//! SIGTERM and its end, then the agent's.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_demo::journal::{Event, Writer};
use rustix::process::Signal;

use super::access::{Access, TokenFor};
use super::pods::{Runner, SimulatedPod};
use super::replicas::AUDIENCE;
use super::wait::POLL;
use crate::http::call;
use crate::process::{Process, free_address};
use crate::toolbox;

/// How a fleet's agents reach their coordinators.
#[derive(Clone, Debug)]
pub struct CoordinatorEndpoints {
    /// The replicas.
    pub addresses: Vec<SocketAddr>,
    /// The file of the certificate that they are known by.
    pub authority: PathBuf,
    /// The name in their certificates.
    pub server_name: String,
}

/// What a fleet's workers do.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Long jobs, of this many milliseconds.
    Jobs {
        /// The shortest.
        ms_min: u64,
        /// The longest.
        ms_max: u64,
    },
    /// The same without an agent: this many at once, whatever others do.
    JobsAlone {
        /// The shortest.
        ms_min: u64,
        /// The longest.
        ms_max: u64,
        /// How many at once.
        pool: usize,
    },
    /// Nothing: the agent keeps a file of streams, which the test reads.
    File,
    /// Nothing: the agents acknowledge what pipelines give them, and give nothing back by
    /// themselves. Each pod has an address of its own, at which nothing listens.
    Bindings,
}

/// A fleet.
#[derive(Debug)]
pub struct Fleet {
    access: Access,
    work: Work,
    dials: Mutex<Option<CoordinatorEndpoints>>,
    /// They go before the folder with their logs does.
    members: Mutex<HashMap<String, Arc<Member>>>,
    folder: tempfile::TempDir,
}

/// A pod's processes.
#[derive(Debug)]
pub struct Member {
    /// The agent, and where it serves its worker.
    pub agent: Option<(Mutex<Process>, SocketAddr)>,
    /// The worker.
    pub worker: Option<Mutex<Process>>,
}

impl Fleet {
    /// A fleet in a folder of its own.
    ///
    /// # Panics
    /// If there is no temporary folder.
    #[must_use]
    pub fn new(access: &Access, work: Work, dials: Option<CoordinatorEndpoints>) -> Arc<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("journals")).expect("a folder");
        Arc::new(Self {
            access: access.clone(),
            folder,
            work,
            dials: Mutex::new(dials),
            members: Mutex::default(),
        })
    }

    /// The folder of the workers' journals. What is killed with its pod is recorded there, too.
    #[must_use]
    pub fn journals(&self) -> PathBuf {
        self.folder.path().join("journals")
    }

    /// The pods' folder, with the agent's log `agent.log`.
    #[must_use]
    pub fn pod_folder(&self, uid: &str) -> PathBuf {
        self.folder.path().join(uid)
    }

    /// Has agents that start from now on dial elsewhere.
    pub fn dial(&self, dials: CoordinatorEndpoints) {
        *self.dials.lock().unwrap_or_else(PoisonError::into_inner) = Some(dials);
    }

    /// A pod's processes, or `None` if it has ended.
    #[must_use]
    pub fn member(&self, uid: &str) -> Option<Arc<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    async fn launch(&self, pod: &SimulatedPod) -> Member {
        let folder = self.pod_folder(&pod.uid);
        std::fs::create_dir_all(&folder).expect("a pod's folder");
        let agent = match self.work {
            Work::JobsAlone { .. } => None,
            Work::Jobs { .. } | Work::File | Work::Bindings => {
                Some(self.launch_agent(pod, &folder).await)
            }
        };
        let address = agent.as_ref().map(|(_, address)| *address);
        let worker = self.worker_command(pod, address).map(|mut command| {
            Mutex::new(Process::start(&mut command, &folder.join("worker.log")))
        });
        Member { agent, worker }
    }

    async fn launch_agent(
        &self,
        pod: &SimulatedPod,
        folder: &Path,
    ) -> (Mutex<Process>, SocketAddr) {
        let dials = self.dials.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let dials = dials.expect("the fleet knows its coordinators before its first pod");
        let wanted = TokenFor {
            namespace: &pod.namespace,
            service_account: &pod.service_account,
            audience: Some(AUDIENCE),
            pod: Some((&pod.name, &pod.uid)),
            seconds: 3_600,
        };
        let token = loop {
            match self.access.token(wanted).await {
                Ok(token) => break token,
                // A kubelet tries again, too, while the API server is away.
                Err(_) => tokio::time::sleep(POLL).await,
            }
        };
        let token_file = folder.join("token");
        std::fs::write(&token_file, token).expect("the token is written");
        let addresses: Vec<_> = dials.addresses.iter().map(ToString::to_string).collect();
        let cluster = pod.labels.get("leasehold.dev/cluster").map_or("", String::as_str);
        let mut command = Command::new(toolbox::binary("leasehold-agent"));
        command.args(["run", "--coordinator", &addresses.join(",")]);
        command.args(["--cluster", &format!("{}/{cluster}", pod.namespace)]);
        command.args(["--worker", &pod.name]);
        command.arg("--state-dir").arg(folder.join("state"));
        command.arg("--tls-ca").arg(&dials.authority);
        command.args(["--tls-server-name", &dials.server_name]);
        command.arg("--token-file").arg(&token_file);
        if let Some(generation) = pod.annotations.get("leasehold.dev/generation") {
            command.args(["--generation", generation]);
        }
        if let Work::File = self.work {
            command.args(["--adapter", "file", "--file-settle", "100ms", "--file-path"]);
            command.arg(folder.join("config.yml"));
        }
        if let Work::Bindings = self.work {
            command.args(["--worker-address", &self.address(pod).to_string()]);
        }
        // As a kubelet would, it starts an agent again that has exited: another process may have
        // taken the port meanwhile.
        loop {
            let api = free_address();
            let mut agent = with_listener(&command, api);
            let mut agent = Process::start(&mut agent, &folder.join("agent.log"));
            // As a startup probe would; it does not wait for the coordinator.
            loop {
                if matches!(call(api, "GET", "/readyz", "").await, Ok((200, _))) {
                    return (Mutex::new(agent), api);
                }
                if agent.ended().is_some() {
                    break;
                }
                tokio::time::sleep(POLL).await;
            }
        }
    }

    fn worker_command(&self, pod: &SimulatedPod, agent: Option<SocketAddr>) -> Option<Command> {
        let (ms_min, ms_max, pool) = match self.work {
            Work::Jobs { ms_min, ms_max } => (ms_min, ms_max, None),
            Work::JobsAlone { ms_min, ms_max, pool } => (ms_min, ms_max, Some(pool)),
            Work::File | Work::Bindings => return None,
        };
        let mut command = Command::new(toolbox::binary("job_worker"));
        command.arg("--journal").arg(self.journals()).args(["--worker", &pod.name]);
        command.args(["--job-ms-min", &ms_min.to_string(), "--job-ms-max", &ms_max.to_string()]);
        if let Some(pool) = pool {
            command.args(["--pool", &pool.to_string()]);
        }
        if let Some(address) = agent {
            command.env("LEASEHOLD_ADDR", format!("http://{address}"));
        }
        Some(command)
    }

    fn remove(&self, uid: &str) -> Option<Arc<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }
}

/// The agent's command with the address of its worker API.
fn with_listener(command: &Command, api: SocketAddr) -> Command {
    let mut listening = Command::new(command.get_program());
    listening.args(command.get_args()).arg("--listen").arg(api.to_string());
    listening
}

impl Member {
    /// Asks the worker's and then the agent's process to end, and waits for both.
    async fn end(&self) {
        if let Some((_, address)) = &self.agent {
            // The hook. Where the agent has ended already, the drain is over.
            let _ = call(*address, "POST", "/v1/drain?wait=true", "").await;
        }
        if let Some(worker) = &self.worker {
            end(worker).await;
        }
        if let Some((agent, _)) = &self.agent {
            end(agent).await;
        }
    }
}

/// Sends SIGTERM, and waits for the end.
async fn end(process: &Mutex<Process>) {
    let ended = || process.lock().unwrap_or_else(PoisonError::into_inner).ended().is_some();
    if ended() {
        return;
    }
    process.lock().unwrap_or_else(PoisonError::into_inner).signal(Signal::TERM);
    while !ended() {
        tokio::time::sleep(POLL).await;
    }
}

impl Runner for Fleet {
    fn address(&self, pod: &SimulatedPod) -> IpAddr {
        match self.work {
            // Of the pod's UID, so that it is the same whenever it is asked for.
            Work::Bindings => {
                let [a, b, c, ..] = uuid_bytes(&pod.uid);
                IpAddr::V4(Ipv4Addr::new(10, a, b, c))
            }
            Work::Jobs { .. } | Work::JobsAlone { .. } | Work::File => {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            }
        }
    }

    async fn start(&self, pod: SimulatedPod) {
        let member = Arc::new(self.launch(&pod).await);
        self.members.lock().unwrap_or_else(PoisonError::into_inner).insert(pod.uid, member);
    }

    async fn stop(&self, pod: SimulatedPod, _: Duration) {
        let Some(member) = self.member(&pod.uid) else { return };
        member.end().await;
        self.remove(&pod.uid);
    }

    async fn kill(&self, pod: SimulatedPod) {
        let Some(member) = self.remove(&pod.uid) else { return };
        if let Some(worker) = &member.worker {
            kill(worker);
            // Before the agent's end frees the jobs' slots.
            let file = self.journals().join("killed.jsonl");
            let written =
                Writer::open(&file).and_then(|mut writer| writer.write(&pod.name, Event::Killed));
            written.expect("the journal of the killed is written");
        }
        if let Some((agent, _)) = &member.agent {
            kill(agent);
        }
    }
}

/// The first bytes of a UUID's text.
fn uuid_bytes(text: &str) -> [u8; 4] {
    u32::from_str_radix(text.get(..8).unwrap_or_default(), 16).unwrap_or_default().to_be_bytes()
}

fn kill(process: &Mutex<Process>) {
    process.lock().unwrap_or_else(PoisonError::into_inner).kill();
}
