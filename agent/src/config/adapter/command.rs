//! Options of the adapter `command`.

use std::time::Duration;

use clap::Args;
use leasehold_types::flag::{DurationRange, duration};

use super::first_given;
use super::travis::INTERVAL;

/// The default time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The adapter `command`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAdapter {
    /// The commands for jobs; none if the worker runs no jobs.
    pub jobs: Option<JobPrograms>,
    /// The commands for streams; none if the worker consumes no streams.
    pub streams: Option<StreamPrograms>,
    /// The time limit of a command.
    pub timeout: Duration,
    /// How often the jobs are counted.
    pub interval: Duration,
}

/// Programs for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPrograms {
    /// Prints the number of running jobs.
    pub count: String,
    /// Sets the pool size.
    pub resize: String,
    /// Begins a drain.
    pub drain: Option<String>,
}

/// Programs for streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPrograms {
    /// Lets the worker consume a stream.
    pub start: String,
    /// Lets the worker stop consuming it.
    pub stop: String,
}

/// Options of the adapter `command`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapter command")]
pub(super) struct CommandArgs {
    /// Run with sh -c, as all these commands: prints the number of running jobs
    #[arg(long, env = "LEASEHOLD_COMMAND_COUNT", value_name = "COMMAND")]
    command_count: Option<String>,
    /// Sets the pool size in LEASEHOLD_POOL_SIZE; exits with 0 once the worker respects it
    #[arg(long, env = "LEASEHOLD_COMMAND_RESIZE", value_name = "COMMAND")]
    command_resize: Option<String>,
    /// Begins a drain; exits with 0 once no job starts [default: --command-resize with size 0]
    #[arg(long, env = "LEASEHOLD_COMMAND_DRAIN", value_name = "COMMAND")]
    command_drain: Option<String>,
    /// Lets the worker consume the stream LEASEHOLD_STREAM of the set LEASEHOLD_SET, with the
    /// fencing token LEASEHOLD_TOKEN
    #[arg(long, env = "LEASEHOLD_COMMAND_STREAM_START", value_name = "COMMAND")]
    command_stream_start: Option<String>,
    /// Lets the worker stop consuming the stream; exits with 0 once it has
    #[arg(long, env = "LEASEHOLD_COMMAND_STREAM_STOP", value_name = "COMMAND")]
    command_stream_stop: Option<String>,
    /// The time limit of each command, after which it is killed [default: 30s]
    #[arg(long, env = "LEASEHOLD_COMMAND_TIMEOUT", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::OF_REQUESTS))]
    command_timeout: Option<Duration>,
    /// How often jobs are counted; five times as often during a change [default: 1s]
    #[arg(long, env = "LEASEHOLD_COMMAND_INTERVAL", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::OF_REQUESTS))]
    command_interval: Option<Duration>,
}

impl CommandArgs {
    /// The first option of this adapter that is set.
    pub(super) fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--command-count", self.command_count.is_some()),
            ("--command-resize", self.command_resize.is_some()),
            ("--command-drain", self.command_drain.is_some()),
            ("--command-stream-start", self.command_stream_start.is_some()),
            ("--command-stream-stop", self.command_stream_stop.is_some()),
            ("--command-timeout", self.command_timeout.is_some()),
            ("--command-interval", self.command_interval.is_some()),
        ])
    }

    /// Validates the options.
    pub(super) fn check(self) -> Result<CommandAdapter, String> {
        let jobs = match (self.command_count, self.command_resize, self.command_drain) {
            (Some(count), Some(resize), drain) => Some(JobPrograms { count, resize, drain }),
            (None, None, None) => None,
            (None, _, _) => return Err("--command-resize needs --command-count".into()),
            (_, None, _) => return Err("--command-count needs --command-resize".into()),
        };
        let streams = match (self.command_stream_start, self.command_stream_stop) {
            (Some(start), Some(stop)) => Some(StreamPrograms { start, stop }),
            (None, None) => None,
            (None, _) => return Err("--command-stream-stop needs --command-stream-start".into()),
            (_, None) => return Err("--command-stream-start needs --command-stream-stop".into()),
        };
        if jobs.is_none() && streams.is_none() {
            return Err("--adapter command needs --command-count and --command-resize, or \
                        --command-stream-start and --command-stream-stop"
                .into());
        }
        let timeout = self.command_timeout.unwrap_or(TIMEOUT);
        let interval = self.command_interval.unwrap_or(INTERVAL);
        Ok(CommandAdapter { jobs, streams, timeout, interval })
    }
}
