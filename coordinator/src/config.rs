//! The command line. A combination that cannot work is refused here, before anything starts.

mod etcd;
#[cfg(feature = "kubernetes")]
mod operator;

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
#[cfg(feature = "kubernetes")]
use leasehold_driver::trust::authority_beside;
use leasehold_server::tls::{ClientCaFile, TlsFiles};
use leasehold_types::flag::{DurationRange, duration, join_negative_values, number};
use leasehold_types::limits::{SESSIONS_MAX_DEFAULT, WORKERS_MAX};
use leasehold_types::{CellId, TimeBounds, is_host_and_port, parse_listen, why_undialable};

pub use self::etcd::{EtcdArgs, EtcdSettings};
#[cfg(feature = "kubernetes")]
pub use self::operator::{KubernetesSettings, OperatorArgs};

/// Bytes of an identity or an image.
const NAME_BYTES_MAX: usize = 512;
/// The most drift that may be assumed of clocks: a tenth, in parts per million.
const DRIFT_PPM_MAX: u32 = 100_000;
/// From the shortest leadership that a store on a disk can keep alive, to the longest one: a
/// failover without confirmation waits for it.
const LEADERSHIP: DurationRange =
    DurationRange { min: Duration::from_secs(1), max: Duration::from_secs(3600) };
/// How long a leader may send no heartbeat.
const TAKEOVER_AFTER: DurationRange =
    DurationRange { min: Duration::from_millis(1), max: LEADERSHIP.max };
/// The defaults on files of --takeover-after and --leadership.
const TAKEOVER_ON_FILES: Duration = Duration::from_millis(1_500);
const LEADERSHIP_ON_FILES: Duration = Duration::from_secs(30);
/// The defaults on etcd: standbys wait longer, since a renewal takes a round trip to the quorum and
/// is seen at the next read, and leadership outlasts a loss of the quorum of some minutes.
const TAKEOVER_ON_ETCD: Duration = Duration::from_secs(2);
const LEADERSHIP_ON_ETCD: Duration = Duration::from_secs(300);
/// How long a removal waits.
const CONFIRM_REMOVALS: DurationRange =
    DurationRange { min: Duration::ZERO, max: Duration::from_secs(3600) };
/// What is added to the time of another process.
const MARGIN: DurationRange = DurationRange { min: Duration::ZERO, max: Duration::from_secs(60) };

/// Grants pool-size and stream leases to fleets of workers.
#[derive(Debug, Parser)]
#[command(name = "leasehold-coordinator", version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  \
    leasehold-coordinator run --manifests ./manifests --state-dir ./state")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The command line's definition, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

impl Cli {
    /// Parses a command line and the environment.
    ///
    /// # Errors
    /// If they are invalid.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(join_negative_values(args))
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one replica on files or on etcd: it leads, or stands by until the leader fails.
    Run(Box<RunArgs>),
    /// Run one replica on Kubernetes, as its operator.
    #[cfg(feature = "kubernetes")]
    Operator(Box<OperatorArgs>),
    /// Read the manifests as `run` would, and print every problem, or what they define.
    Check(CheckArgs),
    /// Print the custom resource definitions of Kubernetes.
    #[cfg(feature = "kubernetes")]
    Crds(CrdsArgs),
    /// Commands that only a build with the feature `kubernetes` has.
    #[cfg(not(feature = "kubernetes"))]
    #[command(hide = true, alias = "crds")]
    Operator(NotBuiltArgs),
}

/// Ignores the flags of a command that this build does not have.
#[cfg(not(feature = "kubernetes"))]
#[derive(Args, Debug)]
pub struct NotBuiltArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _flags: Vec<String>,
}

/// The flags of `check`.
#[derive(Args, Debug)]
#[command(after_help = "Prints FILE:LINE:COLUMN: FIELD: MESSAGE for each problem, \
    or how many objects of each kind are defined. Exit code: 0 without problems, 1 with some.\n\n\
    Example:\n  \
    leasehold-coordinator check --manifests ./manifests")]
pub struct CheckArgs {
    /// Folder of the manifests (YAML).
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_MANIFESTS")]
    pub manifests: PathBuf,
}

/// The flags of `crds`: none.
#[cfg(feature = "kubernetes")]
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  leasehold-coordinator crds | kubectl apply --server-side -f -")]
pub struct CrdsArgs {}

/// The flags of `run`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Two replicas on one state folder, one of which leads:\n  \
    leasehold-coordinator run --manifests ./manifests --state-dir ./state\n  \
    leasehold-coordinator run --manifests ./manifests --state-dir ./state \\\n    \
        --listen 127.0.0.1:7410 --http-listen 127.0.0.1:7412\n\n\
    One replica of several hosts, on etcd, which has the manifests, too:\n  \
    leasehold-coordinator run --etcd https://10.0.0.1:2379,https://10.0.0.2:2379 \\\n    \
        --etcd-ca ca.pem --etcd-cert c.pem --etcd-key c.key --state-dir ./state \\\n    \
        --listen 0.0.0.0:7400 --advertise host-1.example:7400")]
pub struct RunArgs {
    /// Folder of the manifests (YAML); it is watched. With --etcd it may be left out: the manifests
    /// are then those in etcd.
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_MANIFESTS")]
    #[arg(required_unless_present = "etcd")]
    pub manifests: Option<PathBuf>,
    /// Folder that the replicas share: election, epochs and what workers may hold. With --etcd it
    /// only has the last valid manifests: each replica needs one of its own.
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_STATE_DIR")]
    pub state_dir: PathBuf,
    /// How long manifests that take away a whole object, a whole budget, or a quarter of a set's
    /// streams or of a class's workers wait before they are in force; 0s means not at all.
    #[arg(long, value_name = "DURATION", env = "LEASEHOLD_CONFIRM_REMOVALS")]
    #[arg(default_value = "5s", value_parser = duration(CONFIRM_REMOVALS))]
    pub confirm_removals: Duration,
    /// Use a --state-dir on NFS, SMB, FUSE, Ceph or AFS, where a lock can end while the process
    /// that took it runs. Only if you are certain that this one does not: otherwise two replicas
    /// may lead at once.
    #[arg(long, env = "LEASEHOLD_TRUST_STATE_DIR_LOCKS", conflicts_with = "etcd")]
    pub trust_state_dir_locks: bool,
    /// The cell that --state-dir, or the keys in etcd, are the store of, as agents know it. A new
    /// store is given this identity, where the old one is lost; one of another cell is refused
    /// [default: a new store begins a cell of its own].
    #[arg(long, value_name = "ID", env = "LEASEHOLD_CELL")]
    pub cell: Option<CellId>,
    /// The flags of etcd.
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// The flags of every replica.
    #[command(flatten)]
    pub replica: ReplicaArgs,
}

/// The flags of every replica, whatever its platform.
#[derive(Args, Clone, Debug)]
pub struct ReplicaArgs {
    /// Address for gRPC: agents, admin, health, reflection.
    #[arg(long, value_name = "IP:PORT", env = "LEASEHOLD_LISTEN")]
    #[arg(default_value = "127.0.0.1:7400", value_parser = parse_listen::<SocketAddr>)]
    pub listen: SocketAddr,
    /// Address for HTTP: /livez, /readyz, /healthz, /metrics.
    #[arg(long, value_name = "IP:PORT", env = "LEASEHOLD_HTTP_LISTEN")]
    #[arg(default_value = "127.0.0.1:7401", value_parser = parse_listen::<SocketAddr>)]
    pub http_listen: SocketAddr,
    /// Where agents reach this replica when it leads [default: the address of --listen].
    #[arg(long, value_name = "HOST:PORT", env = "LEASEHOLD_ADVERTISE")]
    pub advertise: Option<String>,
    /// This replica's name, unique among the replicas [default: HOST-PID].
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_IDENTITY")]
    pub identity: Option<String>,
    /// How long a leader may send no heartbeat before a standby takes over [default: 1.5s;
    /// with --etcd: 2s; operator: 1s].
    #[arg(long, value_name = "DURATION", env = "LEASEHOLD_TAKEOVER_AFTER")]
    #[arg(value_parser = duration(TAKEOVER_AFTER))]
    pub takeover_after: Option<Duration>,
    /// How long leadership lasts without renewal [default: 30s; with --etcd and for the operator:
    /// 5m, so that a shorter outage of etcd or of the API server ends no lease].
    #[arg(long, value_name = "DURATION", env = "LEASEHOLD_LEADERSHIP")]
    #[arg(value_parser = duration(LEADERSHIP))]
    pub leadership: Option<Duration>,
    /// How far two clocks may drift apart, in parts per million.
    #[arg(long, value_name = "PPM", env = "LEASEHOLD_DRIFT_PPM", default_value_t = 10_000)]
    #[arg(value_parser = number::<u32>(0..=DRIFT_PPM_MAX.into(), "parts per million", 10_000))]
    pub drift_ppm: u32,
    /// Added to the time after which another process's lease counts as expired.
    #[arg(long, value_name = "DURATION", env = "LEASEHOLD_MARGIN")]
    #[arg(default_value = "500ms", value_parser = duration(MARGIN))]
    pub margin: Duration,
    /// Certificate chain (PEM) for gRPC over TLS. Without it the operator issues its own.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of --tls-cert.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities (PEM) that must have signed the client certificates: mutual TLS. Without
    /// Kubernetes the URI in a certificate says what its owner may do:
    /// leasehold://worker/CLUSTER/WORKER, leasehold://admin, leasehold://viewer or
    /// leasehold://autoscaler.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_TLS_CLIENT_CA", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// The most agents that may be connected; more are refused.
    #[arg(long, value_name = "N", env = "LEASEHOLD_SESSIONS_MAX")]
    #[arg(default_value_t = SESSIONS_MAX_DEFAULT)]
    #[arg(value_parser = number::<u32>(1..=WORKERS_MAX as u64, "a number of agents", 1_000))]
    pub sessions_max: u32,
    /// Format of the log on standard error; RUST_LOG sets the level.
    #[arg(long, value_name = "FORMAT", env = "LEASEHOLD_LOG_FORMAT")]
    #[arg(value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The validated flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the desired state and leadership come from.
    pub platform: PlatformSettings,
    /// Address for gRPC.
    pub listen: SocketAddr,
    /// Address for HTTP.
    pub http_listen: SocketAddr,
    /// Where agents reach this replica; without it the bound address of `listen`.
    pub advertise: Option<String>,
    /// This replica's name.
    pub identity: String,
    /// How long a leader may send no heartbeat.
    pub takeover_after: Duration,
    /// How long leadership lasts without renewal.
    pub leadership: Duration,
    /// How far clocks may drift apart.
    pub bounds: TimeBounds,
    /// The files for TLS, if it is enabled.
    pub tls: Option<TlsFiles>,
    /// The most agents that may be connected.
    pub sessions_max: usize,
    /// How the log is written.
    pub log_format: LogFormat,
}

/// Where the desired state and leadership come from.
#[derive(Clone, Debug)]
pub enum PlatformSettings {
    /// Two folders.
    Files {
        /// Folder of the manifests.
        manifests: PathBuf,
        /// How long manifests that take much away wait.
        confirm_removals: Duration,
        /// Folder that the replicas share.
        state_dir: PathBuf,
        /// Whether locks there prove that a process runs, whatever the file system.
        trusts_locks: bool,
        /// The cell that the folder is, or becomes, the store of.
        cell: Option<CellId>,
    },
    /// etcd.
    Etcd(Box<EtcdSettings>),
    /// The API server.
    #[cfg(feature = "kubernetes")]
    Kubernetes(Box<KubernetesSettings>),
}

impl PlatformSettings {
    /// The authority of clients' certificates without --tls-client-ca. On Kubernetes that is the
    /// one that has signed the replicas' certificates, so that replicas can prove who they are.
    #[cfg_attr(
        not(feature = "kubernetes"),
        expect(unused_variables, reason = "only Kubernetes does")
    )]
    fn client_ca_beside(&self, cert: &Path) -> ClientCaFile {
        match self {
            Self::Files { .. } | Self::Etcd(_) => ClientCaFile::None,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => ClientCaFile::Optional(authority_beside(cert)),
        }
    }
}

/// Invalid flags: one sentence that names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl RunArgs {
    /// The flags, checked against each other.
    ///
    /// # Errors
    /// [`UsageError`] if two of them conflict, or one is out of its range.
    pub fn settings(self) -> Result<Settings, UsageError> {
        let Self {
            manifests,
            confirm_removals,
            state_dir,
            trust_state_dir_locks: trusts_locks,
            cell,
            etcd,
            replica,
        } = self;
        if let Some((connection, prefix)) = etcd.connection()? {
            let times =
                DefaultTimes { takeover_after: TAKEOVER_ON_ETCD, leadership: LEADERSHIP_ON_ETCD };
            let etcd =
                EtcdSettings { connection, prefix, manifests, confirm_removals, state_dir, cell };
            return replica.settings(PlatformSettings::Etcd(Box::new(etcd)), &times);
        }
        let Some(manifests) = manifests else { return refuse("--manifests or --etcd is missing") };
        let times =
            DefaultTimes { takeover_after: TAKEOVER_ON_FILES, leadership: LEADERSHIP_ON_FILES };
        let files =
            PlatformSettings::Files { manifests, confirm_removals, state_dir, trusts_locks, cell };
        replica.settings(files, &times)
    }
}

/// The default times of a platform.
struct DefaultTimes {
    takeover_after: Duration,
    leadership: Duration,
}

impl ReplicaArgs {
    fn settings(
        mut self,
        platform: PlatformSettings,
        times: &DefaultTimes,
    ) -> Result<Settings, UsageError> {
        let takeover_after = *self.takeover_after.get_or_insert(times.takeover_after);
        let leadership = *self.leadership.get_or_insert(times.leadership);
        self.check_addresses()?;
        self.check_times(takeover_after, leadership)?;
        let identity = self.identity.unwrap_or_else(default_identity);
        if identity.is_empty()
            || identity.len() > NAME_BYTES_MAX
            || identity.chars().any(|c| c.is_control() || c.is_whitespace())
        {
            return refuse("--identity must be a word without spaces, of at most 512 bytes");
        }
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(cert), Some(key)) => {
                let clients = self
                    .tls_client_ca
                    .map_or_else(|| platform.client_ca_beside(&cert), ClientCaFile::Required);
                Some(TlsFiles { cert, key, clients })
            }
            (None, None) if self.tls_client_ca.is_none() => None,
            _ => {
                return refuse(
                    "--tls-cert and --tls-key need each other, and --tls-client-ca needs both: add \
                 the missing flag",
                );
            }
        };
        Ok(Settings {
            platform,
            listen: self.listen,
            http_listen: self.http_listen,
            advertise: self.advertise,
            identity,
            takeover_after,
            leadership,
            bounds: TimeBounds { drift_ppm: self.drift_ppm, margin: self.margin },
            tls,
            sessions_max: self.sessions_max as usize,
            log_format: self.log_format,
        })
    }

    fn check_addresses(&self) -> Result<(), UsageError> {
        let (grpc, http) = (self.listen, self.http_listen);
        if share_a_port(grpc, http) {
            return refuse(format!(
                "--listen {grpc} and --http-listen {http} are the same address: change one of them"
            ));
        }
        match &self.advertise {
            Some(address) => check_advertised(address),
            None if grpc.ip().is_unspecified() => refuse(format!(
                "agents cannot dial --listen {grpc}, which stands for every address of this \
                 machine: add --advertise HOST:PORT"
            )),
            None => Ok(()),
        }
    }

    fn check_times(
        &self,
        takeover_after: Duration,
        leadership: Duration,
    ) -> Result<(), UsageError> {
        if takeover_after >= leadership {
            return refuse(format!(
                "--takeover-after {takeover_after:?} must be shorter than --leadership \
                 {leadership:?}"
            ));
        }
        Ok(())
    }
}

fn check_advertised(address: &str) -> Result<(), UsageError> {
    if let Some(why) = why_undialable(address) {
        return refuse(format!(
            "agents cannot dial --advertise {address}: {why}; give the HOST:PORT at which they \
             reach this replica, for example leasehold-0.example:7400"
        ));
    }
    if !is_host_and_port(address) {
        return refuse(format!(
            "invalid --advertise {address:?}: expected HOST:PORT, for example \
             leasehold-0.example:7400"
        ));
    }
    Ok(())
}

fn refuse<T>(why: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError(why.into()))
}

fn default_identity() -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy().replace(char::is_whitespace, "-");
    format!("{host}-{}", std::process::id())
}

/// Whether two sockets cannot be bound together.
fn share_a_port(one: SocketAddr, other: SocketAddr) -> bool {
    let one_host =
        one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && one_host
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(flags: &[&str]) -> Result<Settings, String> {
        let base = ["leasehold-coordinator", "run", "--manifests", "m", "--state-dir", "s"];
        let words = base.iter().chain(flags).map(OsString::from);
        let cli = Cli::read(words).map_err(|e| e.to_string())?;
        match cli.command {
            Command::Run(arguments) => arguments.settings().map_err(|usage| usage.to_string()),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_valid_and_flags_override_them() {
        let settings = settings(&["--takeover-after", "500ms", "--leadership", "1m"]);
        let settings = settings.expect("valid");
        assert_eq!(settings.listen.to_string(), "127.0.0.1:7400");
        assert_eq!(settings.takeover_after, Duration::from_millis(500));
        assert_eq!(settings.leadership, Duration::from_secs(60));
        assert_eq!(settings.sessions_max, 10_000);
        assert!(!settings.identity.is_empty());
    }

    #[test]
    fn invalid_flags_are_refused_with_an_error_that_names_them() {
        for (flags, named) in [
            (&["--tls-cert", "c"][..], "--tls-key"),
            (&["--tls-key", "k"], "--tls-cert"),
            (&["--tls-client-ca", "k"], "--tls-cert"),
            (&["--http-listen", "127.0.0.1:7400"], "--http-listen"),
            (&["--http-listen", "0.0.0.0:7400"], "--http-listen"),
            (&["--listen", "0.0.0.0:7400"], "--advertise"),
            (&["--listen", "7410"], "expected IP:PORT, for example"),
            (&["--listen", ":7410"], "expected IP:PORT, for example"),
            (&["--http-listen", "localhost"], "expected IP:PORT, for example"),
            (&["--advertise", "nowhere"], "--advertise"),
            (&["--advertise", "host:0"], "--advertise"),
            (&["--advertise", "0.0.0.0:7400"], "agents cannot dial --advertise 0.0.0.0:7400"),
            (&["--advertise", "[::]:7400"], "for example leasehold-0.example:7400"),
            (&["--takeover-after", "30s"], "--takeover-after"),
            (
                &["--takeover-after", "0s"],
                "'--takeover-after <DURATION>': expected a duration from 1ms",
            ),
            (&["--takeover-after", "soon"], "--takeover-after"),
            (&["--takeover-after", "99999999999999999h"], "--takeover-after"),
            (&["--leadership", "10ms", "--takeover-after", "1ms"], "from 1s to 1h"),
            (
                &["--margin", "2m"],
                "'2m' for '--margin <DURATION>': expected a duration from 0 to 1m",
            ),
            (&["--drift-ppm", "-1"], "'-1' for '--drift-ppm <PPM>': expected parts per million"),
            (&["--drift-ppm", "100001"], "from 0 to 100000, for example 10000"),
            (&["--margin", "-1s"], "'-1s' for '--margin"),
            (
                &["--sessions-max", "0"],
                "expected a number of agents: a whole number from 1 to 20000",
            ),
            (&["--identity", "a b"], "--identity"),
            (&["--listen", "localhost"], "--listen"),
            (&["--nonsense"], "--nonsense"),
            (&["--confirm-removals", "61m"], "from 0 to 1h"),
        ] {
            let error = settings(flags).expect_err(&format!("{flags:?} was taken"));
            assert!(error.contains(named), "{flags:?}: {error}");
        }
    }

    #[test]
    fn every_flag_has_an_environment_variable_and_every_command_an_example() {
        use clap::CommandFactory;
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands_mut().filter(|c| c.get_name() != "help") {
            assert!(command.render_long_help().to_string().contains("leasehold-coordinator "));
            for argument in command.get_arguments().filter(|a| a.get_id() != "help") {
                let flag = argument.get_long().expect("a long flag");
                let wanted = format!("LEASEHOLD_{}", flag.replace('-', "_").to_uppercase());
                let env = argument.get_env().and_then(|env| env.to_str());
                assert_eq!(env, Some(wanted.as_str()), "--{flag}");
            }
        }
    }
}
