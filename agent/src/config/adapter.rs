//! The adapter between the agent and its worker, and its options. An option of an adapter that is
//! not selected is an error.

mod command;
mod file;
mod http;
mod process;
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
use travis::TravisArgs;
pub use travis::{Secret, TravisAdapter, TravisAuth};

/// How the worker learns of its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// It uses the worker API.
    Api,
    /// It reads a file.
    File(FileAdapter),
    /// It is one child process of the agent per stream.
    Process(ProcessAdapter),
    /// It is a Travis worker, controlled through its remote controller.
    Travis(TravisAdapter),
    /// It has its own HTTP interface.
    Http(HttpAdapter),
    /// Commands query and control it.
    Command(CommandAdapter),
}

impl Adapter {
    /// Whether the agent can stop its worker's use of a stream when the lease ends: the worker uses
    /// the API, or is a child of the agent.
    #[must_use]
    pub fn stops_worker(&self) -> bool {
        match self {
            Self::Api | Self::Process(_) => true,
            Self::File(_) | Self::Travis(_) | Self::Http(_) | Self::Command(_) => false,
        }
    }

    /// Whether those that call the worker API act for the worker as a whole. With the other ones
    /// they may be the programs of single streams.
    pub(crate) fn callers_are_worker(&self) -> bool {
        !matches!(self, Self::Process(_) | Self::Command(_))
    }

    /// Whether the agent polls the worker for its jobs.
    pub(crate) fn is_polled(&self) -> bool {
        match self {
            Self::Http(_) | Self::Travis(_) => true,
            Self::Command(command) => command.jobs.is_some(),
            Self::Api | Self::File(_) | Self::Process(_) => false,
        }
    }

    /// Whether the worker sees its bindings. Only a worker that uses the API can release a revoked
    /// one.
    #[must_use]
    pub fn exposes_bindings(&self) -> bool {
        matches!(self, Self::Api)
    }
}

/// The first option that is set.
fn first_given(options: &[(&'static str, bool)]) -> Option<&'static str> {
    options.iter().find(|(_, given)| *given).map(|(option, _)| *option)
}

/// The selected adapter, and the options of all adapters.
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
    /// The worker uses the worker API, over HTTP or gRPC
    Api,
    /// The worker reads a file
    File,
    /// The agent runs COMMAND once per stream, and stops it with the lease
    Process,
    /// The worker is a Travis worker with its remote controller
    Travis,
    /// The worker has its own HTTP interface
    Http,
    /// Commands query and control the worker
    Command,
}

impl AdapterArgs {
    /// Validates the options, and returns the selected adapter.
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
                return Err(format!(
                    "{option} is valid only with --adapter {name}: remove it, or select that \
                     adapter"
                ));
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
