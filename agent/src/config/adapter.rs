//! Which adapter stands between the agent and its worker, and its options. Options of another
//! adapter than the chosen one are refused, not ignored.

mod file;

use clap::{Args, ValueEnum};

use file::FileArgs;
pub use file::{FileAdapter, SignalTo, TakenUp};

/// How the worker learns of its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// It asks.
    Api,
    /// It reads a file.
    File(FileAdapter),
}

impl Adapter {
    /// Whether the agent can stop its worker's use of a stream when the lease ends: where the
    /// worker asks for each step.
    #[must_use]
    pub fn stops_worker(&self) -> bool {
        match self {
            Self::Api => true,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AdapterKind {
    /// The worker asks, over HTTP or gRPC
    Api,
    /// The worker reads a file
    File,
}

impl AdapterArgs {
    /// The adapter, where its options make sense together and no other's are given.
    pub(super) fn check(self, has_child: bool) -> Result<Adapter, String> {
        let Self { adapter, file } = self;
        let given = [(AdapterKind::File, "file", file.given())];
        for (kind, name, option) in given {
            if let Some(option) = option.filter(|_| kind != adapter) {
                return Err(format!("{option} is for --adapter {name} only"));
            }
        }
        match adapter {
            AdapterKind::Api => Ok(Adapter::Api),
            AdapterKind::File => file.check(has_child).map(Adapter::File),
        }
    }
}
