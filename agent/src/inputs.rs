//! What an agent decodes that others have written: the requests of its worker, what workers and
//! their commands answer to the adapters, the file that an adapter shares with its worker, and its
//! own journal. For the fuzzers (`tests/fuzz`), which reach nothing else of the agent.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use leasehold_agent_core::Memory;
use leasehold_types::{StreamName, WorkerKey};

use crate::config::Config;
use crate::driver::Driver;
use crate::journal::AgentJournal;
use crate::metrics::Metrics;
use crate::worker::api::WorkerApi;
use crate::worker::check::{HealthBefore, WorkerHealth};
use crate::worker::file::config_yml::{self, Entry};
use crate::worker::travis::controller;
use crate::worker::{command, http};
use crate::{api, clock, identity, journal};

/// The worker API of a new agent, which keeps no journal. Its driver runs on the current runtime.
pub fn worker_api(config: &Config) -> Router {
    let (journal, metrics) = (AgentJournal::None, Arc::<Metrics>::default());
    let (driver, handle) =
        Driver::new(config, Memory::default(), journal, identity::of(None), metrics);
    tokio::spawn(driver.run());
    let before = HealthBefore { fails: false, promised: None };
    let health = WorkerHealth::new(&config.check, before, clock::now());
    let who = WorkerKey { cluster: config.cluster.clone(), worker: config.worker.clone() };
    api::router(&WorkerApi::new(handle, health, who, config.sidecar, true))
}

/// The numbers in a Travis worker's answer: its processors, those that take jobs, and those of them
/// that run one.
///
/// # Errors
/// If it is no such answer.
pub fn travis_answer(body: &[u8]) -> anyhow::Result<[u32; 3]> {
    let figures = controller::read(body)?.figures;
    Ok([figures.size, figures.expected, figures.processing])
}

/// The number of jobs at a JSON pointer in a worker's answer to the adapter `http`.
///
/// # Errors
/// If there is none.
pub fn http_answer(body: &[u8], pointer: &str) -> anyhow::Result<u32> {
    http::number_at(&serde_json::from_slice(body)?, "--http-count-field", pointer)
}

/// The number of jobs that a command of the adapter `command` has printed.
///
/// # Errors
/// If it printed something else.
pub fn command_output(text: &str) -> anyhow::Result<u32> {
    command::count_in("--command-count", text)
}

/// The version and the pool size in a file of the adapter `file`.
#[must_use]
pub fn config_file(text: &str) -> (u64, u32) {
    (config_yml::version_of(text), config_yml::pool_size_of(text))
}

/// The file of the adapter `file` for a worker with these streams.
#[must_use]
pub fn config_file_of(
    worker: &str,
    streams: BTreeSet<StreamName>,
    pool_size: u32,
    version: u64,
) -> String {
    config_yml::render(worker, &Entry { streams, pool_size: Some(pool_size) }, version)
}

/// A journal as the agent that has read it would write it anew.
///
/// # Errors
/// Where it is damaged.
pub fn journal(bytes: &[u8]) -> Result<Vec<u8>, String> {
    journal::rewritten(bytes)
}
