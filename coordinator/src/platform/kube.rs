//! The Kubernetes platform: desired state from custom resources, leadership from a Lease, workers
//! known from their pods, agents proven by their service-account tokens. It decides nothing about
//! leases: it says what is wanted and what is, and shows what the core has decided.

mod access;
pub mod authority;
mod crd;
mod exposure;
pub mod names;
mod pods;
pub mod resources;
pub mod status;

use std::time::Duration;

use leasehold_types::TimeBounds;

use super::Platform;

/// How a replica runs on Kubernetes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the coordinator's own objects: the election's Lease, the certificates.
    pub namespace: String,
    /// The namespaces that are served; all where it is empty.
    pub watched: Vec<String>,
    /// The Service that agents dial, in `namespace`.
    pub service: String,
    /// The audience that tokens must be made for.
    pub audience: String,
    /// This replica's name; a word of this process's own is added, so that each start has another.
    pub identity: String,
    /// Where agents and people reach this replica: HOST:PORT.
    pub address: String,
    /// How long a leader may show no sign of life before a standby takes over.
    pub takeover_after: Duration,
    /// How long leadership lasts after a renewal was sent.
    pub leadership: Duration,
    /// How far clocks may be apart.
    pub bounds: TimeBounds,
}

/// Starts the platform on the present runtime.
///
/// # Errors
/// Where no configuration of a cluster is found. Whatever goes wrong later is logged and tried
/// again.
pub async fn start(settings: Settings) -> anyhow::Result<Platform> {
    anyhow::bail!("{settings:?}")
}

/// The custom resource definitions, as YAML documents.
///
/// # Errors
/// Where they cannot be written as YAML.
pub fn crds() -> anyhow::Result<String> {
    crd::yaml()
}
