//! The Kubernetes platform: desired state from custom resources, leadership from a Lease, workers
//! known from their pods, agents proven by their service-account tokens. It decides nothing about
//! leases: it says what is wanted and what is, and shows what the core has decided.

mod campaign;
mod election;
pub mod names;
mod peer;
mod vigil;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use leasehold_coordinator_core::event::{Event, Exposure};
use leasehold_types::{TimeBounds, WorkerKey};
use tokio::sync::{mpsc, oneshot, watch};

use self::campaign::{Campaign, CampaignSettings, Exposures};
use self::election::Election;
use super::{Access, COMMANDS_MAX, EVENTS_MAX, Platform};

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
    let client = Client::try_default().await.context("no configuration of a cluster")?;
    let (event_sender, events) = mpsc::channel(EVENTS_MAX);
    let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
    let (problem_sender, problems) = watch::channel(Arc::default());
    let (ready, is_ready) = oneshot::channel();
    let Settings { namespace, identity, address, takeover_after, leadership, bounds, .. } =
        settings;
    // A word of this process's own, so that each start is another holder.
    let holder = format!("{identity}_{:012x}", fastrand::u64(..1 << 48));
    let election = Election::new(client, &namespace, holder, address.clone(), leadership);
    let settings =
        CampaignSettings { identity, address, takeover_after, leadership, bounds, trust: None };
    let campaign =
        Campaign::new(settings, election, Nothing, event_sender.clone(), command_receiver);
    tokio::spawn(campaign.run(is_ready));
    tokio::spawn(async move {
        let _ = event_sender.send(Event::Desired(Arc::default())).await;
        let _ = ready.send(());
        problem_sender.closed().await;
    });
    Ok(Platform { events, commands, problems, access: Access::Open, attend: None })
}

/// No workers.
#[derive(Clone)]
struct Nothing;

impl Exposures for Nothing {
    async fn list_exposed(&self) -> Result<BTreeMap<WorkerKey, Exposure>, kube::Error> {
        Ok(BTreeMap::new())
    }

    async fn expose(&self, entries: &[(WorkerKey, Exposure)]) -> Vec<bool> {
        vec![true; entries.len()]
    }

    async fn conceal(&self, _: &[WorkerKey]) {}
}

/// The custom resource definitions, as YAML documents.
///
/// # Errors
/// Where they cannot be written as YAML.
pub fn crds() -> anyhow::Result<String> {
    anyhow::bail!("none yet")
}
