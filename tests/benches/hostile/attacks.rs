//! The hostile client: a process that makes every attack at once, and prints what it has tried and
//! what was answered.

mod beats;
mod connections;
mod endless_bodies;
mod false_tokens;
mod hellos;
mod others_names;
mod session;
mod slow_requests;
mod unread_windows;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::counts::{AttackReport, Counts};
use crate::target::{Network, OwnWorker, Target};

/// Between two lines of the client.
const LINES_EVERY: Duration = Duration::from_secs(5);
/// The workers that the client has, in this order: those that say hello, those that beat, those
/// that read nothing, those that send endless messages, and those that say that they are others.
const HELLOING: usize = 8;
const BEATING: usize = 4;
const UNREADING: usize = 4;
const REPORTING: usize = 4;
const POSING: usize = 4;
pub(crate) const OWN_WORKERS: usize = HELLOING + BEATING + UNREADING + REPORTING + POSING;

/// What the client prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientReport {
    /// The most connections that said nothing or half of a handshake, open at once.
    pub(crate) open_max: u64,
    pub(crate) attacks: Vec<AttackReport>,
}

/// Attacks what the file describes for as long as it says.
pub(crate) async fn run(file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let target: Target = serde_json::from_str(&text)?;
    let until = Instant::now() + Duration::from_secs(target.seconds);
    let network = Network::new(target)?;
    let mut tasks = JoinSet::new();
    let attacks = start(&network, &mut tasks)?;
    let mut lines = interval(LINES_EVERY);
    let mut open_max = 0;
    while Instant::now() < until {
        lines.tick().await;
        let open = attacks.iter().take(connections::KINDS).map(|counts| counts.open()).sum();
        open_max = open_max.max(open);
        let attacks = attacks.iter().map(|counts| counts.report()).collect();
        println!("{}", serde_json::to_string(&ClientReport { open_max, attacks })?);
    }
    Ok(())
}

fn start(network: &Arc<Network>, tasks: &mut JoinSet<()>) -> Result<Vec<Arc<Counts>>> {
    let mut own = network.target.own.iter().cloned();
    let mut take = |count| own.by_ref().take(count).collect::<Vec<OwnWorker>>();
    let mut attacks = connections::start(network, tasks)?;
    attacks.push(slow_requests::headers(network, tasks));
    attacks.push(slow_requests::bodies(network, tasks));
    attacks.push(false_tokens::start(network, tasks));
    attacks.push(hellos::start(network, take(HELLOING), tasks));
    attacks.push(beats::start(network, take(BEATING), tasks));
    attacks.push(unread_windows::start(network, take(UNREADING), tasks));
    attacks.push(endless_bodies::start(network, take(REPORTING), tasks));
    attacks.push(others_names::start(network, take(POSING), tasks));
    Ok(attacks)
}
