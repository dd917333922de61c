//! Options of the adapter `command`.

use std::time::Duration;

use clap::Args;
use leasehold_types::duration;

use super::first_given;
use super::travis::interval;

/// How long a program may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The adapter `command`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAdapter {
    /// What counts and sizes the worker's jobs; none where it runs none.
    pub jobs: Option<JobPrograms>,
    /// What starts and stops streams; none where it consumes none.
    pub streams: Option<StreamPrograms>,
    /// How long a program may take.
    pub timeout: Duration,
    /// How often the jobs are counted.
    pub interval: Duration,
}

/// Programs for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPrograms {
    /// Prints how many run.
    pub count: String,
    /// Brings a pool size into effect.
    pub resize: String,
    /// Begins a drain.
    pub drain: Option<String>,
}

/// Programs for streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPrograms {
    /// Has the worker consume a stream.
    pub start: String,
    /// Has it let the stream go.
    pub stop: String,
}

/// Options of the adapter `command`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapter command")]
pub(super) struct CommandArgs {
    /// Run with sh -c: prints how many jobs run
    #[arg(long, env = "LEASEHOLD_COMMAND_COUNT", value_name = "COMMAND")]
    command_count: Option<String>,
    /// Its exit 0 says that the worker keeps to the pool size in LEASEHOLD_POOL_SIZE
    #[arg(long, env = "LEASEHOLD_COMMAND_RESIZE", value_name = "COMMAND")]
    command_resize: Option<String>,
    /// Begins a drain: after its exit 0 no job starts [default: --command-resize with size 0]
    #[arg(long, env = "LEASEHOLD_COMMAND_DRAIN", value_name = "COMMAND")]
    command_drain: Option<String>,
    /// Has the worker consume the stream LEASEHOLD_STREAM of the set LEASEHOLD_SET, whose fencing
    /// token is LEASEHOLD_TOKEN
    #[arg(long, env = "LEASEHOLD_COMMAND_STREAM_START", value_name = "COMMAND")]
    command_stream_start: Option<String>,
    /// Has it let the stream go; its exit 0 says that it has
    #[arg(long, env = "LEASEHOLD_COMMAND_STREAM_STOP", value_name = "COMMAND")]
    command_stream_stop: Option<String>,
    /// How long each of these may take before it is killed [default: 30s]
    #[arg(long, env = "LEASEHOLD_COMMAND_TIMEOUT", value_name = "DURATION")]
    #[arg(value_parser = duration::parse)]
    command_timeout: Option<Duration>,
    /// How often jobs are counted; five times as often while something is to change [default: 1s]
    #[arg(long, env = "LEASEHOLD_COMMAND_INTERVAL", value_name = "DURATION")]
    #[arg(value_parser = duration::parse)]
    command_interval: Option<Duration>,
}

impl CommandArgs {
    /// An option that was given.
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

    /// The adapter, where its options make sense together.
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
        let interval = interval("--command-interval", self.command_interval)?;
        Ok(CommandAdapter { jobs, streams, timeout, interval })
    }
}
