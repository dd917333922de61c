//! Which adapter stands between the agent and its worker, and its options. Options of another
//! adapter than the chosen one are refused, not ignored.

mod file;
mod secret;
mod travis;

use clap::{Args, ValueEnum};

use file::FileArgs;
pub use file::{FileAdapter, SignalTo, TakenUp};
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
    /// It is a Travis worker, and is told by its remote controller.
    Travis(TravisAdapter),
}

impl Adapter {
    /// Whether the agent can stop its worker's use of a stream when the lease ends: where the
    /// worker asks for each step.
    #[must_use]
    pub fn stops_worker(&self) -> bool {
        match self {
            Self::Api => true,
            Self::File(_) | Self::Travis(_) => false,
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
    travis: TravisArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AdapterKind {
    /// The worker asks, over HTTP or gRPC
    Api,
    /// The worker reads a file
    File,
    /// The worker is a Travis worker with its remote controller
    Travis,
}

impl AdapterArgs {
    /// The adapter, where its options make sense together and no other's are given.
    pub(super) fn check(self, has_child: bool) -> Result<Adapter, String> {
        let Self { adapter, file, travis } = self;
        let given = [
            (AdapterKind::File, "file", file.given()),
            (AdapterKind::Travis, "travis", travis.given()),
        ];
        for (kind, name, option) in given {
            if let Some(option) = option.filter(|_| kind != adapter) {
                return Err(format!("{option} is for --adapter {name} only"));
            }
        }
        match adapter {
            AdapterKind::Api => Ok(Adapter::Api),
            AdapterKind::File => file.check(has_child).map(Adapter::File),
            AdapterKind::Travis => travis.check().map(Adapter::Travis),
        }
    }
}
