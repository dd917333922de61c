//! One run of the agent, from its command line to its exit code.

mod leave;
mod logging;
mod with_child;
mod without_child;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use leasehold_agent_core::Memory;
use leasehold_types::WorkerKey;

use crate::api::Listeners;
use crate::child::{ChildPid, ChildRunner};
use crate::clock;
use crate::config::{Adapter, Check, Config, Leave, Tls};
use crate::driver::{Driver, DriverHandle, DriverStopped, Outcome};
use crate::identity;
use crate::journal::{AgentJournal, FileJournal};
use crate::link;
use crate::metrics::Metrics;
use crate::reaper::Reaper;
use crate::share_dir;
use crate::signals::{Signals, exit_code};
use crate::state_dir::{StateDir, boot_id};
use crate::worker::adapter::{AdapterContext, Predecessor};
use crate::worker::api::WorkerApi;
use crate::worker::check::{HealthBefore, WorkerHealth};
use crate::worker::shell_command;
use crate::{launcher, runtime, watchdog};
use with_child::ChildSupervisor;

/// Runs the helper process that argv[0] names. Returns none if this process is not a helper.
#[must_use]
pub fn run_helper() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let name = args.next()?;
    match Path::new(&name).file_name()?.to_str()? {
        launcher::NAME => Some(launcher::main(args)),
        watchdog::NAME => Some(watchdog::main()),
        shell_command::NAME => Some(shell_command::main(args)),
        _ => None,
    }
}

/// Runs the agent and returns the exit code of this process.
#[must_use]
pub fn main(config: Config) -> ExitCode {
    logging::start(config.log_format, "info");
    end_with(run(config))
}

/// Reports for an agent that has ended that its worker has ended too, and returns the exit code.
#[must_use]
pub fn leave(config: Config, leave: Leave) -> ExitCode {
    // The command prints its own result; the INFO lines of the driver describe a running worker.
    logging::start(config.log_format, "warn");
    end_with(leave::run(config, leave))
}

/// The exit code if the coordinator ordered the drain before this start: a supervisor need not
/// restart the agent.
const EXIT_DRAIN_ORDERED: u8 = 3;

fn end_with(work: impl Future<Output = anyhow::Result<u8>>) -> ExitCode {
    match runtime::block_on(work) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(1)
        }
    }
}

async fn run(config: Config) -> anyhow::Result<u8> {
    let mut signals = Signals::take().context("cannot install signal handlers")?;
    let reaper = Reaper::start().context("cannot install a SIGCHLD handler")?;
    let who = WorkerKey { cluster: config.cluster.clone(), worker: config.worker.clone() };
    let (memory, journal, state_dir) = open_journal(&config, &who)?;
    let drain_ordered = memory.drain_ordered;
    if let Some(tls) = &config.tls {
        check_tls(tls, config.sidecar).await?;
    }
    if let Some(dir) = &config.share_dir {
        share_dir::install(dir).with_context(|| format!("--share-dir {}", dir.display()))?;
    }
    let listeners = Listeners::bind(&config).await?;
    let address = listeners.address();
    let predecessor = tokio::select! {
        biased;
        found = Predecessor::find(&config.adapter, &memory, state_dir.as_ref()) => found?,
        // Programs of the previous agent that cannot be killed must not keep this one.
        signal = signals.shutdown() => return Ok(exit_code(signal)),
    };
    let before = health_before(&config, &memory);
    let identity = identity::of(state_dir.as_ref());
    let (driver, handle) =
        Driver::new(&config, memory, journal, identity, Arc::new(Metrics::default()));
    let driver = tokio::spawn(driver.run());
    let health = WorkerHealth::new(&config.check, before, clock::now());
    let promises = config.adapter.callers_are_worker();
    let api = WorkerApi::new(handle.clone(), health.clone(), who.clone(), config.sidecar, promises);
    let server = listeners.serve(&api, config.listen_anywhere);
    tracing::info!(%address, worker = %who, "the worker API listens");

    let child_pid = ChildPid::default();
    let environment = environment(&config, &who, address);
    let context = AdapterContext {
        worker: &who.worker,
        driver: &handle,
        health: &health,
        reaper: &reaper,
        child: &child_pid,
        environment: &environment,
        state_dir: state_dir.as_ref(),
        predecessor,
    };
    let mut adapter = context.start(&config.adapter).await;
    tokio::spawn(health.clone().run(config.check.clone(), handle.clone(), reaper.clone()));
    let code = match config.child.clone() {
        None if config.sidecar => Ok(without_child::run_sidecar(&handle, &mut signals).await),
        None => Ok(without_child::run(&handle, &mut signals, drain_ordered).await),
        Some(spec) => {
            let record = state_dir.as_ref().map(|dir| dir.file("child"));
            let reads_file = matches!(config.adapter, Adapter::File(_));
            let runner = ChildRunner::new(spec, environment, record, reaper, child_pid, reads_file);
            let driver = handle.clone();
            ChildSupervisor::new(driver, health, runner, &mut signals, drain_ordered).run().await
        }
    };
    adapter.stop_programs().await?;
    let closing = async {
        handle.stop().await;
        drop(handle);
        let stopped = driver.await;
        adapter.finish().await;
        server.stop().await;
        stopped.context("the driver has failed")?;
        code
    };
    tokio::select! {
        code = closing => code,
        signal = signals.shutdown() => {
            tracing::warn!(signal = signal.as_raw(), "a further signal: the agent exits now");
            Ok(exit_code(signal))
        }
    }
}

/// What an earlier agent has found out about the worker. That it failed counts only where
/// something can show that it lives again.
fn health_before(config: &Config, memory: &Memory) -> HealthBefore {
    let promised = memory.promised.filter(|_| config.adapter.callers_are_worker());
    let can_show =
        promised.is_some() || config.check != Check::default() || config.adapter.is_polled();
    HealthBefore { fails: memory.failing && can_show, promised }
}

/// Checks the TLS files, so that an invalid one is reported at the start. They are read again at
/// every dial.
async fn check_tls(tls: &Tls, sidecar: bool) -> anyhow::Result<()> {
    match link::client_tls(tls).await {
        // The kubelet mounts the file once a coordinator has published it.
        Err(why) if sidecar && !tls.ca.exists() => tracing::warn!("cannot use TLS yet: {why:#}"),
        tried => drop(tried?),
    }
    if let Some(path) = &tls.token {
        link::token::bearer(path).await?;
    }
    Ok(())
}

/// Opens the journal, and locks its folder.
fn open_journal(
    config: &Config,
    who: &WorkerKey,
) -> anyhow::Result<(Memory, AgentJournal, Option<StateDir>)> {
    let Some(path) = &config.state_dir else {
        tracing::warn!(
            "no --state-dir: the agent keeps no journal. If it restarts while its worker runs, the \
             worker gets no new leases until the old ones have expired"
        );
        let memory = Memory { cell: config.cell, ..Memory::default() };
        return Ok((memory, AgentJournal::None, None));
    };
    let dir = StateDir::open(path, config.state_dir_locks)?;
    let (mut memory, journal) = FileJournal::open(&dir, who, config.cell, boot_id().as_deref())?;
    check_ordered_drain(&mut memory, config, who);
    Ok((memory, AgentJournal::File(Box::new(journal)), Some(dir)))
}

/// Says that an order to drain is in force, and how it ends. Forgets it where the drain is over and
/// the command line says so: then the drain does not apply to this start, as one that was asked for
/// here.
fn check_ordered_drain(memory: &mut Memory, config: &Config, who: &WorkerKey) {
    if !memory.drain_ordered {
        return;
    }
    let (worker, is_over) = (&who.worker, memory.drain_ended || memory.left);
    if !is_over {
        tracing::warn!(
            "the coordinator ordered this worker to drain, and the drain is not over: `leasehold \
             undrain {worker}` takes the order back, unless another agent was started with \
             --take-over and has the worker's name now"
        );
    } else if config.undrain {
        memory.drain_ordered = false;
        tracing::info!("the drain that the coordinator ordered is over: the worker works again");
    } else {
        tracing::warn!(
            "the coordinator ordered this worker to drain, and the order is still in force: to let \
             the worker work again, start its agent with --undrain, for this one start"
        );
    }
}

/// The environment variables of the child.
fn environment(
    config: &Config,
    who: &WorkerKey,
    address: std::net::SocketAddr,
) -> Vec<(&'static str, String)> {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    let socket = config.socket.as_ref().map(|socket| {
        let path: PathBuf = std::path::absolute(&socket.path).unwrap_or(socket.path.clone());
        ("LEASEHOLD_SOCKET", path.display().to_string())
    });
    let always = [
        ("LEASEHOLD_ADDR", format!("http://{address}")),
        ("LEASEHOLD_CLUSTER", who.cluster.to_string()),
        ("LEASEHOLD_WORKER", who.worker.to_string()),
    ];
    always.into_iter().chain(socket).collect()
}

/// The agent's own exit code. `drain_ordered`: the coordinator ordered the drain before this start.
fn own_code(outcome: Result<Outcome, DriverStopped>, drain_ordered: bool) -> u8 {
    match outcome {
        Ok(Outcome::Drained { .. }) if drain_ordered => EXIT_DRAIN_ORDERED,
        Ok(Outcome::Drained { .. }) => 0,
        Ok(Outcome::Superseded) | Err(DriverStopped) => 1,
    }
}

/// Begins a drain. A driver that has stopped is handled elsewhere.
async fn drain(handle: &DriverHandle) {
    let _ = handle.drain().await;
}
