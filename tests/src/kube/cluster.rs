//! The cluster that the tests of one binary share. Each test takes a namespace of its own; a test
//! that kills the API server starts a [`ControlPlane`] of its own.

use std::path::PathBuf;
use std::sync::OnceLock;

use super::access::Access;
use super::binaries;
use super::control_plane::ControlPlane;
use super::namespace::Namespace;

/// With `1`, the tests run in the cluster that `KUBECONFIG` names. Without it they never do.
pub const EXISTING_VARIABLE: &str = "LEASEHOLD_TEST_CLUSTER";

/// The one that [`Cluster::shared`] returns.
static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();

/// A cluster to test in.
#[derive(Debug)]
pub enum Cluster {
    /// One that was there before the tests.
    Existing(Access),
    /// One of the tests' own.
    Own(Box<ControlPlane>),
}

impl Cluster {
    /// The cluster of this test binary, started when it is first asked for, or `None` if binaries
    /// are missing. It ends with the process.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn shared() -> Option<&'static Self> {
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// Whether this is the way into the cluster of this test binary.
    pub(super) fn is_shared(access: &Access) -> bool {
        let shared = SHARED.get().and_then(Option::as_ref);
        shared.is_some_and(|shared| shared.access().kubeconfig() == access.kubeconfig())
    }

    /// The administrator's way in.
    #[must_use]
    pub fn access(&self) -> &Access {
        match self {
            Self::Existing(access) => access,
            Self::Own(plane) => plane.access(),
        }
    }

    /// Creates a namespace whose name begins with `prefix`.
    ///
    /// # Panics
    /// If the API server refuses it.
    #[must_use]
    pub fn namespace(&self, prefix: &str) -> Namespace {
        Namespace::create_with_prefix(self.access(), prefix)
    }

    fn start() -> Option<Self> {
        match existing() {
            Some(kubeconfig) if binaries::all(&["kubectl"]) => {
                Some(Self::Existing(Access::new(kubeconfig)))
            }
            Some(_) => None,
            None => ControlPlane::start().map(|plane| Self::Own(Box::new(plane))),
        }
    }
}

fn existing() -> Option<PathBuf> {
    std::env::var(EXISTING_VARIABLE).ok().filter(|value| value == "1")?;
    let kubeconfig = std::env::var_os("KUBECONFIG");
    let kubeconfig = kubeconfig.unwrap_or_else(|| panic!("{EXISTING_VARIABLE}=1, no KUBECONFIG"));
    Some(PathBuf::from(kubeconfig))
}
