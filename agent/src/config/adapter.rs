//! Which adapter stands between the agent and its worker, and its options. Options of another
//! adapter than the chosen one are refused, not ignored.

mod command;
mod file;
mod http;
mod process;
mod secret;
mod travis;

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use command::CommandArgs;
pub use command::{CommandAdapter, JobPrograms, StreamPrograms};
use file::FileArgs;
pub use file::{FileAdapter, FilePool, ReloadCheck, SignalTo};
use http::HttpArgs;
pub use http::{HttpAdapter, HttpRequest, Sizing};
pub use process::ProcessAdapter;
use process::ProcessArgs;
pub use secret::Secret;
use travis::TravisArgs;
pub use travis::{TravisAdapter, TravisAuth};

/// How the worker learns of its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// It asks.
    Api,
    /// It reads a file.
    File(FileAdapter),
    /// It is one process for each stream, a child of the agent.
    Process(ProcessAdapter),
    /// It is a Travis worker, steered through its remote controller.
    Travis(TravisAdapter),
    /// It has an HTTP interface of its own.
    Http(HttpAdapter),
    /// Commands query and steer it.
    Command(CommandAdapter),
}

impl Adapter {
    /// Whether the agent can stop its worker's use of a stream when the lease ends: where the
    /// worker asks for each step, or is its child.
    #[must_use]
    pub fn stops_worker(&self) -> bool {
        match self {
            Self::Api | Self::Process(_) => true,
            Self::File(_) | Self::Travis(_) | Self::Http(_) | Self::Command(_) => false,
        }
    }

    /// Whether the worker learns of its bindings, by asking: with every other adapter nobody could
    /// let one go that is revoked.
    #[must_use]
    pub fn shows_bindings(&self) -> bool {
        matches!(self, Self::Api)
    }
}

/// The first option that was given.
fn first_given(options: &[(&'static str, bool)]) -> Option<&'static str> {
    options.iter().find(|(_, given)| *given).map(|(option, _)| *option)
}

/// The adapter and the options of all.
#[derive(Debug, Args)]
pub(super) struct AdapterArgs {
    /// How the worker learns of its leases
    #[arg(long, env = "LEASEHOLD_ADAPTER", value_enum, default_value = "api")]
    adapter: AdapterKind,
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    travis: TravisArgs,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    command: CommandArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AdapterKind {
    /// The worker asks, over HTTP or gRPC
    Api,
    /// The worker reads a file
    File,
    /// COMMAND is started once for each stream, and ended with its lease
    Process,
    /// The worker is a Travis worker with its remote controller
    Travis,
    /// The worker has an HTTP interface of its own
    Http,
    /// Commands query and steer the worker
    Command,
}

impl AdapterArgs {
    /// The adapter, where its options are valid together and no other's are given.
    pub(super) fn check(self, worker: &[OsString]) -> Result<Adapter, String> {
        let Self { adapter, file, process, travis, http, command } = self;
        let given = [
            (AdapterKind::File, "file", file.given()),
            (AdapterKind::Process, "process", process.given()),
            (AdapterKind::Travis, "travis", travis.given()),
            (AdapterKind::Http, "http", http.given()),
            (AdapterKind::Command, "command", command.given()),
        ];
        for (kind, name, option) in given {
            if let Some(option) = option.filter(|_| kind != adapter) {
                return Err(format!("{option} is for --adapter {name} only"));
            }
        }
        match adapter {
            AdapterKind::Api => Ok(Adapter::Api),
            AdapterKind::File => file.check(!worker.is_empty()).map(Adapter::File),
            AdapterKind::Process => process.check(worker).map(Adapter::Process),
            AdapterKind::Travis => travis.check().map(Adapter::Travis),
            AdapterKind::Http => http.check().map(Adapter::Http),
            AdapterKind::Command => command.check().map(Adapter::Command),
        }
    }
}
