//! The command line and environment, checked: every [`Invocation`] is valid.

mod adapter;
mod args;
mod check;
mod health;
mod worker_address;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use leasehold_types::flag::join_negative_values;
use leasehold_types::share::WorkerAddress;
use leasehold_types::{CellId, ClusterName, WorkerName};

pub use adapter::{
    Adapter, CommandAdapter, FileAdapter, FilePool, HttpAdapter, HttpRequest, JobPrograms,
    ProcessAdapter, ReloadCheck, Secret, SignalTo, Sizing, StreamPrograms, TravisAdapter,
    TravisAuth,
};
use args::{Action, Cli, DrainArgs, LeaveArgs, RunArgs, SocketMode, TlsArgs};
pub use args::{ChildSignal, LogFormat, Restart};
pub use check::{Check, Probe, ProbeTarget};
pub use health::HealthProbe;

use crate::http_client::Url;
pub use crate::state_dir::Locks;

/// How long a child may take to exit after SIGTERM.
const CHILD_GRACE: Duration = Duration::from_secs(30);

/// How long an agent that has drained tries to report it to a coordinator that it cannot reach.
const GOODBYE_MAX: Duration = Duration::from_secs(5);

/// The command to run.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// Run the agent of a worker.
    Run(Box<Config>),
    /// Start a drain of the worker's agent.
    Drain(DrainOptions),
    /// Wait until the agent of this container handles SIGTERM.
    PreStop,
    /// Ask an agent whether it lives.
    Probe(HealthProbe),
    /// Report for an agent that has ended that its worker has ended too.
    Leave(Box<Config>, Leave),
}

/// The options of the command `drain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainOptions {
    /// The address of the agent.
    pub agent: Url,
    /// Whether to wait for the end of the drain.
    pub wait: bool,
    /// Whether to keep the drain in force for as long as this process lives.
    pub hold: bool,
    /// How long to retry and to wait.
    pub timeout: Option<Duration>,
    /// The command to run afterwards; empty for none.
    pub command: Vec<OsString>,
}

impl From<DrainArgs> for DrainOptions {
    fn from(args: DrainArgs) -> Self {
        let DrainArgs { addr, wait, hold, timeout, then: _, command } = args;
        Self { agent: addr, wait, hold, timeout, command }
    }
}

/// The options of the command `leave`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// A person confirms that no process of the worker runs.
    pub nothing_runs: bool,
}

/// The configuration of one run of the agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The coordinators, tried in turn.
    pub coordinators: Vec<Address>,
    /// The worker's cluster.
    pub cluster: ClusterName,
    /// The worker.
    pub worker: WorkerName,
    /// The worker's rollout generation.
    pub generation: u64,
    /// The address at which workers of the previous nodes of a pipeline reach the worker.
    pub worker_address: Option<WorkerAddress>,
    /// The folder of the journal; without it the agent has no memory.
    pub state_dir: Option<PathBuf>,
    /// How much the locks in that folder prove.
    pub state_dir_locks: Locks,
    /// The cell that the agent belongs to; none for the one that welcomed it first.
    pub cell: Option<CellId>,
    /// Whether it takes the worker's name from another running agent.
    pub take_over: bool,
    /// Whether an order to drain whose drain is over no longer holds.
    pub undrain: bool,
    /// The address of the worker API.
    pub listen: SocketAddr,
    /// Whether other machines may use the worker API.
    pub listen_anywhere: bool,
    /// The Unix socket of the worker API.
    pub socket: Option<Socket>,
    /// How the worker learns of its leases.
    pub adapter: Adapter,
    /// How the agent finds out whether its worker lives.
    pub check: Check,
    /// How long a drain may take; none if the coordinator decides.
    pub drain_deadline: Option<Duration>,
    /// How long an agent that has drained tries to report it to a coordinator that it cannot reach.
    pub goodbye_max: Duration,
    /// Whether it tries that although no coordinator can hold anything of it.
    pub insists_on_report: bool,
    /// Whether it is a sidecar, which starts before its worker and gets SIGTERM after it.
    pub sidecar: bool,
    /// The address that serves only health and metrics.
    pub health_listen: Option<SocketAddr>,
    /// The folder for a copy of this program for the worker.
    pub share_dir: Option<PathBuf>,
    /// TLS to the coordinator.
    pub tls: Option<Tls>,
    /// The worker as a child.
    pub child: Option<Child>,
    /// How log lines are written.
    pub log_format: LogFormat,
}

/// A Unix socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    /// Its permissions.
    pub mode: u32,
}

/// TLS to the coordinator. The files are read at every dial, so that they can be renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The trusted CA certificates.
    pub ca: PathBuf,
    /// The agent's own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the coordinators' certificates.
    pub server_name: Option<String>,
    /// The token that proves which pod this is. It is part of this type, so that it is never sent
    /// without TLS.
    pub token: Option<PathBuf>,
}

/// The worker as a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Whether it restarts when it exits.
    pub restart: Restart,
    /// How long it may take to exit after SIGTERM.
    pub grace: Duration,
    /// Whether it gets SIGKILL after that.
    pub kill: bool,
    /// Which of its processes get signals.
    pub signal: ChildSignal,
    /// Whether it is killed when its agent exits first.
    pub dies_with_agent: bool,
    /// Whether it gets a cgroup of its own where the agent may make one.
    pub cgroup: bool,
}

/// The address of a coordinator: `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("invalid address {text:?}: expected HOST:PORT, for example coordinator:7400")
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host_ok = match bare {
            Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let part_of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                !host.is_empty() && host.len() <= 253 && host.chars().all(part_of_name)
            }
        };
        if host_ok && port.parse::<u16>().is_ok_and(|port| port > 0) {
            Ok(Self(text.into()))
        } else {
            Err(wrong())
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The command line's definition, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

impl Invocation {
    /// Parses this process's command line and environment. Exits with code 2 and an error if they
    /// are invalid.
    #[must_use]
    pub fn parse() -> Self {
        Self::try_parse_from(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Parses a command line and the environment.
    ///
    /// # Errors
    /// If they are invalid.
    pub fn try_parse_from<T: Into<OsString>>(
        args: impl IntoIterator<Item = T>,
    ) -> Result<Self, clap::Error> {
        match Cli::try_parse_from(join_negative_values(args.into_iter().map(Into::into)))?.action {
            Action::Drain(args) => Ok(Self::Drain(args.into())),
            Action::PreStop => Ok(Self::PreStop),
            Action::Probe(args) => Ok(Self::Probe(args.into())),
            Action::Leave(args) => {
                let leave = Leave { nothing_runs: args.nothing_runs };
                Ok(Self::Leave(Box::new(leave_config(*args)), leave))
            }
            Action::Run(args) => match check(*args) {
                Ok(config) => Ok(Self::Run(Box::new(config))),
                // The usage says nothing about what is wrong here.
                Err(why) => Err(clap::Error::raw(ErrorKind::ArgumentConflict, format!("{why}\n"))),
            },
        }
    }
}

fn check(args: RunArgs) -> Result<Config, String> {
    if !args.listen.ip().is_loopback() && !args.listen_anywhere {
        let ip = args.listen.ip();
        return Err(format!(
            "other machines can reach --listen {ip}, and the worker API has no password: anyone \
             who reaches it can end the worker's jobs and release its streams. Listen on \
             127.0.0.1 or [::1], or add --listen-anywhere"
        ));
    }
    let adapter = args.adapter.check(&args.command)?;
    let per_stream = matches!(adapter, Adapter::Process(_));
    let child_options = [
        args.restart.is_some(),
        args.child_grace.is_some(),
        args.child_kill,
        args.child_signal.is_some(),
        args.child_kill_on_parent_death,
        args.child_no_cgroup,
    ];
    if per_stream && child_options.contains(&true) {
        return Err(
            "--restart and the options --child-* apply only if COMMAND is the worker. With \
                    --adapter process COMMAND is the program of one stream: the agent always \
                    restarts it, and --process-grace and --process-kill control how it ends"
                .into(),
        );
    }
    let check = args.check.check(&adapter)?;
    let child = (!per_stream && !args.command.is_empty()).then(|| Child {
        command: args.command,
        restart: args.restart.unwrap_or(Restart::Never),
        grace: args.child_grace.unwrap_or(CHILD_GRACE),
        kill: args.child_kill,
        signal: args.child_signal.unwrap_or(ChildSignal::Group),
        dies_with_agent: args.child_kill_on_parent_death,
        cgroup: !args.child_no_cgroup,
    });
    let mode = match args.socket_mode.unwrap_or(SocketMode::Owner) {
        SocketMode::Owner => 0o600,
        SocketMode::Group => 0o660,
    };
    let address =
        args.worker_address.map(|address| worker_address::parse(&address, args.worker_port));
    Ok(Config {
        coordinators: args.who.coordinator,
        cluster: args.who.cluster,
        worker: args.who.worker,
        generation: args.generation,
        worker_address: address.transpose()?,
        state_dir: args.state_dir,
        state_dir_locks: args.locks.into(),
        cell: args.cell,
        take_over: args.take_over,
        undrain: args.undrain,
        listen: args.listen,
        listen_anywhere: args.listen_anywhere,
        socket: args.socket.map(|path| Socket { path, mode }),
        adapter,
        check,
        drain_deadline: args.drain_deadline,
        goodbye_max: GOODBYE_MAX,
        insists_on_report: false,
        sidecar: args.sidecar,
        health_listen: args.health_listen,
        share_dir: args.share_dir,
        tls: tls(args.tls),
        child,
        log_format: args.log_format,
    })
}

/// The configuration of the command `leave`, which serves no worker.
fn leave_config(args: LeaveArgs) -> Config {
    Config {
        coordinators: args.who.coordinator,
        cluster: args.who.cluster,
        worker: args.who.worker,
        generation: 0,
        worker_address: None,
        state_dir: Some(args.state_dir),
        state_dir_locks: args.locks.into(),
        cell: None,
        take_over: false,
        undrain: false,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        listen_anywhere: false,
        socket: None,
        adapter: Adapter::Api,
        check: Check::default(),
        drain_deadline: None,
        goodbye_max: args.timeout,
        insists_on_report: true,
        sidecar: false,
        health_listen: None,
        share_dir: None,
        tls: tls(args.tls),
        child: None,
        log_format: args.log_format,
    }
}

fn tls(args: TlsArgs) -> Option<Tls> {
    Some(Tls {
        ca: args.tls_ca?,
        identity: args.tls_cert.zip(args.tls_key),
        server_name: args.tls_server_name,
        token: args.token_file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<Config, String> {
        let fixed = "leasehold-agent run --coordinator a:7400,[::1]:7401 --cluster c --worker w";
        let words = fixed.split(' ').chain(more.split(' ').filter(|word| !word.is_empty()));
        match Invocation::try_parse_from(words) {
            Ok(Invocation::Run(config)) => Ok(*config),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.exit_code(), 2);
                Err(error.to_string())
            }
        }
    }

    #[test]
    fn a_minimal_command_line_gets_the_defaults() {
        let config = parse("").expect("valid");
        let addresses: Vec<_> = config.coordinators.iter().map(Address::as_str).collect();
        assert_eq!(addresses, ["a:7400", "[::1]:7401"]);
        assert_eq!(config.listen.to_string(), "127.0.0.1:7411");
        let local = parse("--listen localhost:7440").expect("an address");
        assert_eq!(local.listen.to_string(), "127.0.0.1:7440");
        assert_eq!(config.adapter, Adapter::Api);
        assert_eq!(config.child, None);
        for every in [":7412", "[::]:7412"] {
            let config = parse(&format!("--health-listen {every}")).expect("an address");
            assert_eq!(
                config.health_listen.map(|address| address.to_string()),
                Some("[::]:7412".into())
            );
        }
        let child = parse("--restart on-failure -- sh -c true").expect("a child");
        assert_eq!(child.child.expect("it is there").restart, Restart::OnFailure);
        let streams = parse("--adapter process -- feed {stream}").expect("a program");
        assert_eq!(streams.child, None, "COMMAND is the program of one stream, not the worker");
        assert!(streams.adapter.stops_worker());
    }

    #[test]
    fn an_empty_generation_is_0() {
        assert_eq!(parse("--generation=").expect("nothing").generation, 0);
        assert_eq!(parse("--generation 7").expect("a number").generation, 7);
        assert!(parse("--generation x").expect_err("no number").contains("for example 7"));
    }

    #[test]
    fn the_port_is_added_to_the_workers_address() {
        let address = |more: &str| parse(more).expect("valid").worker_address;
        assert_eq!(address(""), None);
        let given = address("--worker-address fd00::7 --worker-port 8080");
        assert_eq!(given.map(|address| address.to_string()), Some("[fd00::7]:8080".into()));
    }

    #[test]
    fn refuses_invalid_options_and_names_them() {
        for (more, word) in [
            ("--listen 0.0.0.0:7411", "--listen-anywhere"),
            ("--listen nowhere", "--listen"),
            ("--listen 7440", "expected IP:PORT, for example"),
            ("--adapter file", "--file-path"),
            ("--worker-check-failures 2", "--worker-check-http"),
            ("--worker-check-exec=", "is empty"),
            ("--worker-check-tcp a:1 --worker-check-interval 1ms", "from 100ms to 1h"),
            ("--adapter process --worker-timeout 9s -- true", "--worker-check-http"),
            ("--file-path x", "--adapter file"),
            ("--adapter file --file-path x --file-signal HUP", "--file-pid"),
            ("--adapter file --file-path x --file-pid p", "--file-signal"),
            ("--adapter file --file-path x --file-signal KILL --file-pid p", "KILL"),
            ("--adapter file --file-path x --file-command a --file-settle 1s", "--file-settle"),
            ("--file-count c", "--file-pool"),
            ("--file-pool", "--adapter file"),
            ("--adapter process", "COMMAND"),
            ("--process-kill -- true", "--adapter process"),
            ("--adapter process --restart always -- true", "--process-grace"),
            ("--travis-url http://a", "--adapter travis"),
            ("--adapter travis --travis-url https://a", "http://"),
            ("--adapter travis --travis-url http://a/b", "without a path"),
            ("--adapter travis --travis-auth a:b --travis-auth-file c", "--travis-auth-file"),
            ("--adapter travis --travis-interval 0s", "--travis-interval"),
            ("--adapter http", "--http-count-url"),
            ("--adapter http --http-count-url http://a --http-count-field n", "begins with /"),
            ("--adapter http --http-count-url http://a --http-count-field /n", "--http-size-max"),
            ("--adapter http --http-size-max 3", "--http-drain-url"),
            ("--adapter command", "--command-count"),
            ("--adapter command --command-count c", "--command-resize"),
            ("--adapter command --command-stream-start c", "--command-stream-stop"),
            ("--restart always", "COMMAND"),
            ("--child-kill", "COMMAND"),
            ("--child-signal group", "COMMAND"),
            ("--sidecar -- sh", "--sidecar"),
            ("--health-listen 7412", "for example :7412"),
            ("--tls-cert c --tls-key k", "--tls-ca"),
            ("--tls-ca a --tls-cert c", "--tls-key"),
            ("--token-file t", "--tls-ca"),
            ("--socket-mode 0600", "--socket"),
            ("--drain-deadline 5", "invalid duration"),
            ("--drain-deadline 0s", "'0s' for '--drain-deadline <DURATION>': expected a duration"),
            ("--drain-deadline 400d", "expected a duration from 100ms to 8784h, for example 30s"),
            ("--child-grace 400d -- true", "from 0 to 8784h"),
            ("--coordinator http://a:7400", "HOST:PORT"),
            ("--coordinator a", "HOST:PORT"),
            ("--coordinator a:0", "HOST:PORT"),
            ("--worker w2", "multiple times"),
            ("--worker-port 8080", "--worker-address"),
            ("--worker-address a --worker-port 0", "from 1 to 65535, for example 8080"),
            ("--worker-address a --worker-port -1", "--worker-port"),
            (
                "--worker-check-failures -1",
                "expected a number of checks: a whole number of 1 or more",
            ),
            (
                "--adapter http --http-size-max 20000",
                "expected a number of jobs: a whole number from 0 to 10000",
            ),
            ("--drain-deadline -5s", "invalid duration \"-5s\""),
            ("--worker-address http://a", "--worker-address"),
            ("--worker-address 19562", "nobody can dial --worker-address 19562"),
            ("--worker-address 0.0.0.0:80", "HOST:PORT at which other workers reach"),
            ("--socket s --socket-mode 0777", "0660"),
            ("--unknown", "--unknown"),
        ] {
            let error = parse(more).expect_err(more);
            assert!(error.contains(word), "{more}: {error}");
        }
    }
}
