//! The command line as clap parses it. Checks that involve several options follow in `config`.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use leasehold_types::flag::{DurationRange, duration, number};
use leasehold_types::{CellId, ClusterName, WorkerName, parse_listen};

use super::Address;
use super::adapter::AdapterArgs;
use super::check::CheckArgs;
use super::health::{self, HealthArgs};
use crate::http_client::Url;
use crate::state_dir::Locks;

const EXAMPLES: &str = "\
Examples:
  # Beside a worker that uses the worker API over HTTP or gRPC on 127.0.0.1:7411
  leasehold-agent run --coordinator 127.0.0.1:7400 --cluster ci --worker w1 --state-dir ./w1

  # The worker as its child: LEASEHOLD_ADDR is in the child's environment
  leasehold-agent run --coordinator a:7400,b:7400 --cluster ci --worker w1 --state-dir ./w1 \\
      --restart on-failure -- ./worker --queue jobs

  # A worker that only reads a file and reloads on SIGHUP
  leasehold-agent run --coordinator a:7400 --cluster swarm --worker w1 --state-dir ./w1 \\
      --adapter file --file-path config.yml --file-signal HUP --file-pid worker.pid

  # One process for each stream, with its name and token in the environment
  leasehold-agent run --coordinator a:7400 --cluster feeds --worker w1 --state-dir ./w1 \\
      --adapter process -- ./feed --topic {stream}

  # A worker that serves pipelines, and the address to which others send documents
  leasehold-agent run --coordinator a:7400 --cluster blue --worker w1 --state-dir ./w1 \\
      --worker-address 10.0.0.7:8080

  # A worker that hangs loses its streams: it must answer, or the agent restarts it
  leasehold-agent run --coordinator a:7400 --cluster feeds --worker w1 --state-dir ./w1 \\
      --worker-check-http http://127.0.0.1:8080/healthz --restart on-failure --child-kill -- ./feed

  # Show the lease; begin and end a job
  curl 127.0.0.1:7411/v1/lease
  curl -X PUT '127.0.0.1:7411/v1/jobs/build-1?wait_ms=5000'
  curl -X DELETE 127.0.0.1:7411/v1/jobs/build-1

Every option can also be given in the environment, as LEASEHOLD_ and its name in capitals.
Exit: 0 after a drain (with a COMMAND: its exit code, or 128 plus the signal's number if a signal
terminated it, unless that was SIGTERM after its last job), 1 after an error, 2 for an invalid
command line, 3 after a drain that the coordinator ordered before this start: no job or stream
began.";

/// Holds one worker's leases and serves them on localhost.
#[derive(Debug, Parser)]
#[command(name = "leasehold-agent", version, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) action: Action,
}

#[derive(Debug, Subcommand)]
pub(super) enum Action {
    /// Holds the leases of one worker until it is drained.
    #[command(after_help = EXAMPLES)]
    Run(Box<RunArgs>),
    /// Tells the agent on this machine or in this pod to drain its worker.
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(DrainArgs),
    /// Waits until the agent of this container handles SIGTERM: the preStop hook of a sidecar.
    #[command(name = "pre-stop", after_help = PRE_STOP_EXAMPLES)]
    PreStop,
    /// Asks the agent of this container or machine whether it lives: an exec probe of a sidecar.
    #[command(after_help = PROBE_EXAMPLES)]
    Probe(HealthArgs),
    /// Reports for an agent that has ended that its worker has ended too, so that other workers get
    /// its slots and streams at once.
    #[command(after_help = LEAVE_EXAMPLES)]
    Leave(Box<LeaveArgs>),
}

const PRE_STOP_EXAMPLES: &str = "\
Example:
  # In the agent's container of a pod
  lifecycle: {preStop: {exec: {command: [/leasehold-agent, pre-stop]}}}

It changes nothing, so the hook may also run when only the agent is replaced. Without it, the kernel
drops a SIGTERM that arrives while the agent starts, and the pod remains for its grace period.
Exit: 0 when process 1 is an agent that handles SIGTERM, or the pod's containers share a process
namespace; 1 if it does not within 60 s or /proc cannot be read; 2 for an invalid command line.";

const PROBE_EXAMPLES: &str = "\
Examples:
  # In the agent's container of a pod whose proxy takes connections to the pod's address
  livenessProbe: {exec: {command: [/leasehold-agent, probe]}}

  # Whether an agent elsewhere on this machine is ready, and why it is not
  leasehold-agent probe --ready --health-listen 127.0.0.1:7512

It asks over the loopback interface for /livez, or with --ready for /readyz. An agent without
--health-listen answers both at its --listen.
Exit: 0 when the agent answers that all is well; 1 if it answers otherwise, or not within 4 s; 2 for
an invalid command line.";

const LEAVE_EXAMPLES: &str = "\
Examples:
  # On the host of a worker that was killed with its agent and will not return
  leasehold-agent leave --coordinator a:7400 --cluster ci --worker w1 --state-dir ./w1

  # The same for a worker that no agent started, after you have checked that it has ended
  leasehold-agent leave --coordinator a:7400 --cluster ci --worker w1 --state-dir ./w1 \\
      --nothing-runs

It refuses if the agent, or the COMMAND that it started, still runs, and if it cannot prove that
the worker has ended.
Exit: 0 when a coordinator has received the report, 1 if it was not sent, or a coordinator refused
it or none answered, 2 for an invalid command line.";

const DRAIN_EXAMPLES: &str = "\
Examples:
  # As a container's preStop hook: returns when the last job has ended, or at the deadline
  leasehold-agent drain --wait

  # The same, followed by an existing hook
  leasehold-agent drain --wait --then -- /bin/sh -c 'nginx -s quit'

Exit: 0 when drained, even if jobs are left at the deadline; 1 after an error; 2 for an invalid
command line. With a COMMAND, its exit code.";

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// The agent's worker API
    #[arg(
        long,
        env = "LEASEHOLD_ADDR",
        value_name = "URL",
        default_value = "http://127.0.0.1:7411",
        value_parser = agent_url
    )]
    pub(super) addr: Url,
    /// Wait until no job runs and no stream is held, or the drain's deadline has passed. If the
    /// agent cannot be reached, keep trying for 10 minutes, or for as long as --timeout allows
    #[arg(long)]
    pub(super) wait: bool,
    /// Keep a sidecar's drain in force for as long as this process lives, and exit when the drain
    /// is over. Each `drain` starts such a process: it ends with its container, so that the next
    /// container is not drained
    #[arg(long, conflicts_with_all = ["wait", "timeout", "then"])]
    pub(super) hold: bool,
    /// How long to retry and to wait; the drain itself continues
    #[arg(long, value_name = "DURATION", value_parser = duration(DurationRange::GRACE))]
    pub(super) timeout: Option<Duration>,
    /// Replace this process with COMMAND afterwards, whether or not the drain succeeded
    #[arg(long, requires = "command")]
    pub(super) then: bool,
    /// The command for --then
    #[arg(last = true, value_name = "COMMAND", requires = "then")]
    pub(super) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(super) struct LeaveArgs {
    #[command(flatten)]
    pub(super) who: WhoArgs,
    /// The state folder of the agent that has ended
    #[arg(long, env = "LEASEHOLD_STATE_DIR", value_name = "DIR")]
    pub(super) state_dir: PathBuf,
    #[command(flatten)]
    pub(super) locks: LocksArgs,
    /// You have checked that no process of the worker runs. Needed if its agent did not start it.
    /// If this is wrong, more jobs may run than the budget allows
    #[arg(long)]
    pub(super) nothing_runs: bool,
    /// How long to try to reach a coordinator
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    #[arg(value_parser = duration(DurationRange::GRACE))]
    pub(super) timeout: Duration,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    /// How log lines are written to stderr
    #[arg(long, env = "LEASEHOLD_LOG_FORMAT", value_enum, default_value = "text")]
    pub(super) log_format: LogFormat,
}

/// The worker and its coordinators.
#[derive(Debug, Args)]
pub(super) struct WhoArgs {
    /// The coordinators' addresses; each is tried in turn until one leads
    #[arg(long, env = "LEASEHOLD_COORDINATOR", value_name = "HOST:PORT", required = true)]
    #[arg(value_delimiter = ',')]
    pub(super) coordinator: Vec<Address>,
    /// The worker's cluster: the name of a WorkerCluster
    #[arg(long, env = "LEASEHOLD_CLUSTER", value_name = "NAME")]
    pub(super) cluster: ClusterName,
    /// The worker's name, unique in its cluster
    #[arg(long, env = "LEASEHOLD_WORKER", value_name = "NAME")]
    #[arg(value_parser = WorkerName::present_name)]
    pub(super) worker: WorkerName,
}

/// How much the state folder's locks prove.
#[derive(Debug, Args)]
pub(super) struct LocksArgs {
    /// Use a --state-dir on NFS, SMB, FUSE, Ceph or AFS, where a lock can end while the process
    /// that took it runs. Only if you are certain that this one does not: otherwise a second agent
    /// may run on the folder, and more jobs than the budget allows
    #[arg(long, env = "LEASEHOLD_TRUST_STATE_DIR_LOCKS", requires = "state_dir")]
    pub(super) trust_state_dir_locks: bool,
}

impl From<LocksArgs> for Locks {
    fn from(args: LocksArgs) -> Self {
        if args.trust_state_dir_locks { Self::Trusted } else { Self::Checked }
    }
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) who: WhoArgs,
    /// The worker's rollout generation: in a rollout the highest is served first
    #[arg(long, env = "LEASEHOLD_GENERATION", value_name = "N", default_value = "0")]
    #[arg(value_parser = generation)]
    pub(super) generation: u64,
    /// The address at which workers of the previous nodes of a pipeline reach this worker; on
    /// Kubernetes the pod's IP
    #[arg(long, env = "LEASEHOLD_WORKER_ADDRESS", value_name = "HOST[:PORT]")]
    pub(super) worker_address: Option<String>,
    /// The port of --worker-address, if that contains none
    #[arg(long, env = "LEASEHOLD_WORKER_PORT", value_name = "PORT", requires = "worker_address")]
    #[arg(value_parser = number::<u16>(1..=65535, "a port", 8080).try_map(NonZeroU16::try_from))]
    pub(super) worker_port: Option<NonZeroU16>,
    /// The folder of the journal, from which a restarted agent restores what its worker holds
    #[arg(long, env = "LEASEHOLD_STATE_DIR", value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) locks: LocksArgs,
    /// The cell that this agent belongs to, as `leasehold status` shows it. Set it to move an agent
    /// that holds nothing to another cell, or to name the only one that it may ever obey [default:
    /// the first that welcomes it]
    #[arg(long, env = "LEASEHOLD_CELL", value_name = "ID")]
    pub(super) cell: Option<CellId>,
    /// Take the worker's name from another agent, which then drains; its slots count until it has
    /// left. Use it for one start, to correct a mistake. Without it, an agent with another
    /// --state-dir waits for as long as the previous agent of that name may run a job or hold a
    /// stream
    #[arg(long, env = "LEASEHOLD_TAKE_OVER")]
    pub(super) take_over: bool,
    /// Work again after a drain that the coordinator ordered of an agent before, and that is over.
    /// Use it for one start: a later order has to hold for the start after it. `leasehold undrain`
    /// takes back a drain that goes on
    #[arg(long, env = "LEASEHOLD_UNDRAIN", requires = "state_dir", conflicts_with = "sidecar")]
    pub(super) undrain: bool,
    /// The address of the worker API: HTTP/JSON and gRPC on one port
    #[arg(
        long,
        env = "LEASEHOLD_LISTEN",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:7411",
        value_parser = parse_listen::<SocketAddr>
    )]
    pub(super) listen: SocketAddr,
    /// Allow a --listen address that other machines can reach. The worker API has no password:
    /// anyone who reaches it can end the worker's jobs and release its streams
    #[arg(long, env = "LEASEHOLD_LISTEN_ANYWHERE")]
    pub(super) listen_anywhere: bool,
    /// A Unix socket that also serves the worker API
    #[arg(long, env = "LEASEHOLD_SOCKET", value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Who may use the socket: only this user (0600), or also its group (0660)
    #[arg(long, env = "LEASEHOLD_SOCKET_MODE", requires = "socket", value_enum)]
    pub(super) socket_mode: Option<SocketMode>,
    #[command(flatten)]
    pub(super) adapter: AdapterArgs,
    #[command(flatten)]
    pub(super) check: CheckArgs,
    /// How long a drain may take before COMMAND is ended, or without one the agent leaves although
    /// jobs still run; as a sidecar, before callers stop waiting. Without it, the cluster's
    /// drain.deadline
    #[arg(long, env = "LEASEHOLD_DRAIN_DEADLINE", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::DEADLINE))]
    pub(super) drain_deadline: Option<Duration>,
    /// The agent is a sidecar, which starts before its worker and gets SIGTERM after it: SIGTERM
    /// ends it at once without a drain, it keeps running after a drain, and after a drain's
    /// deadline it keeps reporting until the last job has ended
    #[arg(long, env = "LEASEHOLD_SIDECAR", conflicts_with = "command")]
    pub(super) sidecar: bool,
    /// An address that serves only /livez, /readyz, /healthz and /metrics, for a kubelet and for
    /// Prometheus
    #[arg(long, env = "LEASEHOLD_HEALTH_LISTEN", value_name = "[IP]:PORT")]
    #[arg(value_parser = health::listen_address)]
    pub(super) health_listen: Option<SocketAddr>,
    /// Copy this program to DIR/leasehold-agent first, so that the worker's container can run
    /// `drain`
    #[arg(long, env = "LEASEHOLD_SHARE_DIR", value_name = "DIR")]
    pub(super) share_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    /// Whether COMMAND restarts when it exits
    #[arg(long, env = "LEASEHOLD_RESTART", value_enum, requires = "command")]
    pub(super) restart: Option<Restart>,
    /// How long COMMAND may take to exit after SIGTERM before the agent logs it, or kills COMMAND
    #[arg(long, env = "LEASEHOLD_CHILD_GRACE", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::GRACE))]
    #[arg(requires = "command")]
    pub(super) child_grace: Option<Duration>,
    /// Kill COMMAND with SIGKILL after --child-grace. Without it the agent keeps waiting, so that
    /// no running job is killed
    #[arg(long, env = "LEASEHOLD_CHILD_KILL", requires = "command")]
    pub(super) child_kill: bool,
    /// Which processes get signals: the process group of COMMAND, or only COMMAND itself
    #[arg(long, env = "LEASEHOLD_CHILD_SIGNAL", value_enum, requires = "command")]
    pub(super) child_signal: Option<ChildSignal>,
    /// Kill the process group of COMMAND if this agent exits first, for whatever reason, so that no
    /// process of the worker outlives its agent. Running jobs are killed
    #[arg(long, env = "LEASEHOLD_CHILD_KILL_ON_PARENT_DEATH", requires = "command")]
    pub(super) child_kill_on_parent_death: bool,
    /// Make no cgroup for COMMAND: what leaves its process group, as a daemon does, is no part of
    /// the worker. By default it is, where the agent may make a cgroup
    #[arg(long, env = "LEASEHOLD_CHILD_NO_CGROUP", requires = "command")]
    pub(super) child_no_cgroup: bool,
    /// How log lines are written to stderr
    #[arg(long, env = "LEASEHOLD_LOG_FORMAT", value_enum, default_value = "text")]
    pub(super) log_format: LogFormat,
    /// The worker, started as this agent's child once the worker API listens; with --adapter
    /// process, the program of one stream
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<std::ffi::OsString>,
}

/// Options of the connection to the coordinator.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsArgs {
    /// Use TLS, and trust coordinator certificates that this CA (PEM) has signed
    #[arg(long, env = "LEASEHOLD_TLS_CA", value_name = "FILE")]
    pub(super) tls_ca: Option<PathBuf>,
    /// The agent's own certificate (PEM), for mutual TLS
    #[arg(long, env = "LEASEHOLD_TLS_CERT", value_name = "FILE")]
    #[arg(requires_all = ["tls_ca", "tls_key"])]
    pub(super) tls_cert: Option<PathBuf>,
    /// The key of the agent's certificate (PEM)
    #[arg(long, env = "LEASEHOLD_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub(super) tls_key: Option<PathBuf>,
    /// The name in the coordinators' certificates, if it differs from the host in --coordinator
    #[arg(long, env = "LEASEHOLD_TLS_SERVER_NAME", value_name = "NAME", requires = "tls_ca")]
    pub(super) tls_server_name: Option<String>,
    /// The file with the token that proves which pod this is, read again for every connection. The
    /// token is never sent without TLS
    #[arg(long, env = "LEASEHOLD_TOKEN_FILE", value_name = "FILE", requires = "tls_ca")]
    pub(super) token_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SocketMode {
    /// This user
    #[value(name = "0600")]
    Owner,
    /// This user and its group
    #[value(name = "0660")]
    Group,
}

/// Whether a child restarts when it exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Restart {
    /// After every exit
    Always,
    /// After an exit with a code other than 0
    OnFailure,
    /// Never: the agent exits with the child's exit code
    Never,
}

/// Which processes get a signal that ends the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChildSignal {
    /// Its process group: COMMAND and its child processes, unless they left the group
    Group,
    /// Only the process of COMMAND
    Process,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// Parses a generation. Empty is 0: a missing annotation of a pod becomes an empty variable.
fn generation(text: &str) -> Result<u64, String> {
    match text {
        "" => Ok(0),
        text => number(0..=u64::MAX, "a rollout generation", 7)(text),
    }
}

/// Parses the address of an agent's worker API: `http://HOST:PORT`.
fn agent_url(text: &str) -> Result<Url, String> {
    let url = text.parse().ok().filter(Url::is_bare);
    url.ok_or_else(|| {
        format!(
            "invalid address {text:?}: expected http://HOST:PORT, for example http://127.0.0.1:7411"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_an_agent_address_with_a_path_or_a_query() {
        for text in ["http://127.0.0.1:7411", "http://localhost:1/", "http://[::1]:7411"] {
            let authority = text.trim_start_matches("http://").trim_end_matches('/');
            assert_eq!(agent_url(text).expect(text).authority(), authority);
        }
        for text in ["", "127.0.0.1:7411", "https://a:1", "http://a:1/v1", "http://a:1?x", "/v1"] {
            agent_url(text).expect_err(text);
        }
    }
}
