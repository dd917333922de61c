//! Which adapter stands between the agent and its worker, and its options. Options of another
//! adapter than the chosen one are refused, not ignored.

mod file;
mod process;

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use file::FileArgs;
pub use file::{FileAdapter, FilePool, SignalTo, TakenUp};
pub use process::ProcessAdapter;
use process::ProcessArgs;

/// How the worker learns of its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// It asks.
    Api,
    /// It reads a file.
    File(FileAdapter),
    /// It is one process for each stream, a child of the agent.
    Process(ProcessAdapter),
}

impl Adapter {
    /// Whether the agent can stop its worker's use of a stream when the lease ends: where the
    /// worker asks for each step, or is its child.
    #[must_use]
    pub fn stops_worker(&self) -> bool {
        match self {
            Self::Api | Self::Process(_) => true,
            Self::File(_) => false,
        }
    }
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AdapterKind {
    /// The worker asks, over HTTP or gRPC
    Api,
    /// The worker reads a file
    File,
    /// COMMAND is started once for each stream, and ended with its lease
    Process,
}

impl AdapterArgs {
    /// The adapter, where its options make sense together and no other's are given.
    pub(super) fn check(self, command: &[OsString]) -> Result<Adapter, String> {
        let Self { adapter, file, process } = self;
        let given = [
            (AdapterKind::File, "file", file.given()),
            (AdapterKind::Process, "process", process.given()),
        ];
        for (kind, name, option) in given {
            if let Some(option) = option.filter(|_| kind != adapter) {
                return Err(format!("{option} is for --adapter {name} only"));
            }
        }
        match adapter {
            AdapterKind::Api => Ok(Adapter::Api),
            AdapterKind::File => file.check(!command.is_empty()).map(Adapter::File),
            AdapterKind::Process => process.check(command).map(Adapter::Process),
        }
    }
}
