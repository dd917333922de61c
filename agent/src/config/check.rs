//! The options by which the agent finds out whether its worker lives.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;
use leasehold_types::flag::{DurationRange, duration, number};

use super::{Adapter, Address};
use crate::http_client::Url;

/// The defaults; the help of their options repeats them.
const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(5);
const FAILURES_MAX: NonZeroU32 = NonZeroU32::new(3).expect("it is not 0");
const START_PERIOD: Duration = Duration::from_secs(30);

/// How the agent finds out whether its worker lives. By default nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// What the agent asks.
    pub probe: Option<Probe>,
    /// How long the worker may go without a call of the worker API.
    pub call_timeout: Option<Duration>,
}

/// What the agent asks, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What it asks.
    pub target: ProbeTarget,
    /// The time between two checks.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How many checks in a row must fail before the worker counts as failing.
    pub failures_max: NonZeroU32,
    /// How long after the worker's start failed checks do not count.
    pub start_period: Duration,
}

/// What the agent asks a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeTarget {
    /// A URL, whose answer must have a status from 200 to 399.
    Http(Url),
    /// A port, which must accept a connection.
    Tcp(Address),
    /// A command, which must exit with 0.
    Exec(String),
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Whether the worker lives")]
pub(super) struct CheckArgs {
    /// A URL that the worker answers with a status from 200 to 399 as long as it lives. A worker
    /// that fails its check gets no job, and its streams go to other workers; with --restart,
    /// COMMAND is ended, so that it restarts. Without a check, leases follow the agent, not the
    /// worker
    #[arg(long, env = "LEASEHOLD_WORKER_CHECK_HTTP", value_name = "URL")]
    #[arg(conflicts_with_all = ["worker_check_tcp", "worker_check_exec"])]
    worker_check_http: Option<Url>,
    /// The same, with an address to which a connection must succeed. It shows that the port is
    /// open, and not that the worker does anything
    #[arg(long, env = "LEASEHOLD_WORKER_CHECK_TCP", value_name = "HOST:PORT")]
    #[arg(conflicts_with = "worker_check_exec")]
    worker_check_tcp: Option<Address>,
    /// The same, with a command for `sh -c` that must exit with 0
    #[arg(long, env = "LEASEHOLD_WORKER_CHECK_EXEC", value_name = "COMMAND")]
    worker_check_exec: Option<String>,
    /// The time between two checks [default: 10s]
    #[arg(long, env = "LEASEHOLD_WORKER_CHECK_INTERVAL", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::OF_REQUESTS))]
    worker_check_interval: Option<Duration>,
    /// How long a check may take [default: 5s]
    #[arg(long, env = "LEASEHOLD_WORKER_CHECK_TIMEOUT", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::OF_REQUESTS))]
    worker_check_timeout: Option<Duration>,
    /// How many checks in a row must fail before the worker counts as failing [default: 3]
    #[arg(long, env = "LEASEHOLD_WORKER_CHECK_FAILURES", value_name = "N")]
    #[arg(value_parser = parse_failures)]
    worker_check_failures: Option<NonZeroU32>,
    /// How long failed checks do not count after the worker has started [default: 30s]
    #[arg(long, env = "LEASEHOLD_WORKER_CHECK_START_PERIOD", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::GRACE))]
    worker_check_start_period: Option<Duration>,
    /// The worker calls the worker API at least this often: it reads its lease, reports a job, or
    /// beats. If it does not, it counts as failing, as after a failed check
    #[arg(long, env = "LEASEHOLD_WORKER_TIMEOUT", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::DEADLINE))]
    worker_timeout: Option<Duration>,
}

impl CheckArgs {
    /// The configuration.
    ///
    /// # Errors
    /// If an option has no effect or is empty.
    pub(super) fn check(self, adapter: &Adapter) -> Result<Check, String> {
        if self.worker_check_exec.as_ref().is_some_and(|line| line.trim().is_empty()) {
            return Err("--worker-check-exec is empty: expected a command, for example \
                        'test -e /run/worker/ready'"
                .into());
        }
        if self.worker_timeout.is_some() && !adapter.callers_are_worker() {
            return Err(
                "--worker-timeout needs a worker that calls the worker API, and with this \
                        --adapter none does: use --worker-check-http or --worker-check-exec"
                    .into(),
            );
        }
        let target = self
            .worker_check_http
            .map(ProbeTarget::Http)
            .or(self.worker_check_tcp.map(ProbeTarget::Tcp))
            .or(self.worker_check_exec.map(ProbeTarget::Exec));
        let more = [
            ("--worker-check-interval", self.worker_check_interval.is_some()),
            ("--worker-check-timeout", self.worker_check_timeout.is_some()),
            ("--worker-check-failures", self.worker_check_failures.is_some()),
            ("--worker-check-start-period", self.worker_check_start_period.is_some()),
        ];
        if let (None, Some((option, _))) = (&target, more.iter().find(|(_, given)| *given)) {
            return Err(format!(
                "{option} needs --worker-check-http, --worker-check-tcp or --worker-check-exec"
            ));
        }
        let probe = target.map(|target| Probe {
            target,
            interval: self.worker_check_interval.unwrap_or(INTERVAL),
            timeout: self.worker_check_timeout.unwrap_or(TIMEOUT),
            failures_max: self.worker_check_failures.unwrap_or(FAILURES_MAX),
            start_period: self.worker_check_start_period.unwrap_or(START_PERIOD),
        });
        Ok(Check { probe, call_timeout: self.worker_timeout })
    }
}

/// Reads how many checks must fail.
fn parse_failures(text: &str) -> Result<NonZeroU32, String> {
    let failures = number::<u32>(1..=u32::MAX.into(), "a number of checks", 3)(text)?;
    Ok(NonZeroU32::new(failures).expect("1 or more"))
}
