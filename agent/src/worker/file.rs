//! The adapter `file`: writes the worker's streams, and optionally its pool size, into k8s-swarm's
//! `config.yml`, for a worker that only reads and reloads a file.
//!
//! Invariant: a stream is released, and a smaller pool size reported, only when the file on disk
//! shows it and the worker has reloaded it; a larger pool size is reported before it is written.

pub(crate) mod config_yml;
mod pool;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, bail};
use leasehold_agent_core::{Lease, RequestError};
use leasehold_types::{StreamKey, StreamName};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, MissedTickBehavior};

use super::shell_command::{CommandFailed, ShellCommand};
use crate::backoff;
use crate::child::ChildPid;
use crate::config::{FileAdapter, ReloadCheck, SignalTo};
use crate::driver::{DriverHandle, DriverRequest};
use crate::reaper::Reaper;
use config_yml::Entry;
use pool::Pool;

/// How often the agent checks whether the file is unchanged.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time limit of --file-command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes the file of one worker.
#[derive(Debug)]
pub(crate) struct FileWorker {
    worker: String,
    adapter: FileAdapter,
    driver: DriverHandle,
    reaper: Reaper,
    child: ChildPid,
    /// The journal is empty.
    no_memory: bool,
    /// The content that this agent has written.
    written: Option<Entry>,
    /// The worker's pool, if the file contains its size.
    pool: Option<Pool>,
    version: u64,
    /// The worker was not notified of the last change yet.
    unnotified: bool,
    /// Streams to release that the file no longer lists, and when the worker was notified.
    removed: BTreeMap<StreamKey, Option<Instant>>,
    failures: u32,
    retry_at: Option<Instant>,
    /// How often another process has changed the file.
    foreign_changes: u32,
}

/// What the journal has of a worker that reads a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remembered {
    /// The pool size that it last used.
    pub(crate) pool_size: u32,
}

impl FileWorker {
    /// A writer for this worker. `remembered` is absent if the journal is empty.
    pub(crate) fn new(
        worker: String,
        adapter: FileAdapter,
        driver: DriverHandle,
        reaper: Reaper,
        child: ChildPid,
        remembered: Option<Remembered>,
    ) -> Self {
        let in_file = config_yml::pool_size_in(&adapter.path);
        let in_effect = in_file.max(remembered.map_or(0, |remembered| remembered.pool_size));
        let pool = adapter.pool.as_ref().map(|pool| Pool::new(pool.count.clone(), in_effect));
        Self {
            worker,
            adapter,
            driver,
            reaper,
            child,
            no_memory: remembered.is_none(),
            pool,
            written: None,
            version: 0,
            unnotified: false,
            removed: BTreeMap::new(),
            failures: 0,
            retry_at: None,
            foreign_changes: 0,
        }
    }

    /// Runs until the driver ends.
    pub(crate) async fn run(mut self) {
        self.version = config_yml::version_in(&self.adapter.path);
        if self.no_memory && self.pool.is_none() {
            // A worker without a pool runs no jobs: the agent must report it.
            if let Err(why) = self.driver.report_no_jobs().await {
                tracing::warn!(why, "cannot record that the worker runs no jobs");
            }
        }
        let mut changes = self.driver.changes();
        changes.mark_changed();
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let backing_off = tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => false,
                    Err(_) => return,
                },
                () = backoff::until(self.next_check()) => {
                    self.retry_at.is_some_and(|at| at > Instant::now())
                }
                _ = checks.tick() => {
                    if self.is_as_written() {
                        continue;
                    }
                    self.note_foreign_change();
                    false
                },
            };
            let Ok(snapshot) = self.driver.lease().await else { return };
            if !backing_off {
                match self.step(&snapshot.lease).await {
                    Err(error) => self.note_failure(&error),
                    Ok(()) => {
                        (self.failures, self.retry_at) = (0, None);
                        self.driver.metrics().set_file_problem(None);
                    }
                }
            }
            self.release(&snapshot.lease).await;
            if let Err(error) = self.report_count().await {
                self.note_failure(&error);
            }
        }
    }

    /// Brings the file up to date and notifies the worker.
    async fn step(&mut self, lease: &Lease) -> anyhow::Result<()> {
        let held = lease.streams.iter().filter(|held| !lease.draining && held.revoked.is_none());
        let streams: BTreeSet<StreamName> = held.map(|held| held.stream.stream.clone()).collect();
        let pool_size = self.pool.as_ref().map(|_| lease.pool.size);
        if let (Some(pool), Some(size)) = (&mut self.pool, pool_size) {
            pool.may_grow(size);
            self.report_count().await?;
        }
        let wanted = Entry { streams, pool_size };
        if self.written.as_ref() != Some(&wanted) {
            let written = self.write(&wanted).await;
            if written.is_err() {
                self.driver.metrics().file_failures.fetch_add(1, Relaxed);
            }
            written?;
            self.written = Some(wanted);
            self.unnotified = true;
            self.pool.iter_mut().for_each(Pool::note_change);
        }
        self.driver.metrics().file_shows.store(lease.version, Relaxed);
        self.note_removed(lease);
        if self.unnotified {
            self.notify_worker().await?;
            self.unnotified = false;
        }
        let now = Instant::now();
        for reloaded_at in self.removed.values_mut() {
            reloaded_at.get_or_insert(now);
        }
        self.pool.iter_mut().for_each(|pool| pool.note_notified(now));
        Ok(())
    }

    /// Reports to the holder how many jobs run and which pool size the worker uses.
    async fn report_count(&mut self) -> anyhow::Result<()> {
        let (settle, in_file) = (self.settle(), self.pool_size_in_file());
        let Some(pool) = &mut self.pool else { return Ok(()) };
        let (running, in_effect) = pool.count(in_file, settle, Instant::now());
        let reported = self
            .driver
            .ask(|reply| DriverRequest::ObservedCount { running, in_effect, reply })
            .await;
        match reported {
            Ok(Ok(())) | Err(_) => Ok(()),
            Ok(Err(refused)) => {
                bail!("cannot report {running} jobs with pool size {in_effect}: {refused:?}")
            }
        }
    }

    /// The pool size in the file; the maximum before this agent has written it, so that no smaller
    /// size is reported too early.
    fn pool_size_in_file(&self) -> u32 {
        self.written.as_ref().map_or(u32::MAX, |written| written.pool_size.unwrap_or(0))
    }

    /// Finds the streams to release that the file does not list.
    fn note_removed(&mut self, lease: &Lease) {
        let written = self.written.iter().flat_map(|written| &written.streams);
        let named = written.collect::<BTreeSet<_>>();
        let back = lease.streams.iter().filter(|held| lease.draining || held.revoked.is_some());
        let back = back.filter(|held| !named.contains(&held.stream.stream));
        let keys: BTreeSet<StreamKey> = back.map(|held| held.stream.clone()).collect();
        self.removed.retain(|key, _| keys.contains(key));
        for key in keys {
            self.removed.entry(key).or_insert(None);
        }
    }

    async fn write(&mut self, wanted: &Entry) -> anyhow::Result<()> {
        let path = self.adapter.path.clone();
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        if old == config_yml::render(&self.worker, wanted, self.version) {
            return Ok(());
        }
        let version = self.version + 1;
        let text = config_yml::render(&self.worker, wanted, version);
        let shown = path.display().to_string();
        let written = tokio::task::spawn_blocking(move || config_yml::replace(&path, &text)).await;
        written.context("the task that writes the file failed")?.with_context(|| shown.clone())?;
        self.version = version;
        let (streams, pool_size) = (wanted.streams.len(), wanted.pool_size);
        tracing::info!(path = shown, version, streams, pool_size, "the worker's file changed");
        Ok(())
    }

    async fn notify_worker(&self) -> anyhow::Result<()> {
        match &self.adapter.signal {
            None => {}
            Some((signal, SignalTo::Child)) => self.child.send(*signal)?,
            Some((signal, SignalTo::PidFile(path))) => send_to(path, *signal)?,
        }
        match &self.adapter.reload_check {
            ReloadCheck::After(_) => Ok(()),
            ReloadCheck::Command(command) => self.run_command(command).await,
        }
    }

    async fn run_command(&self, command: &str) -> anyhow::Result<()> {
        let environment = [
            ("LEASEHOLD_FILE", self.adapter.path.clone().into_os_string()),
            ("LEASEHOLD_FILE_VERSION", self.version.to_string().into()),
        ];
        let outputs = [Stdio::inherit(), Stdio::inherit()];
        let mut shell = ShellCommand::start(command, environment, outputs, &self.reaper)
            .context("--file-command: cannot start a process")?;
        match tokio::time::timeout(COMMAND_TIMEOUT, &mut shell.exit).await {
            Ok(Ok(exit)) if exit.0 == 0 => Ok(()),
            Ok(Ok(exit)) => {
                bail!(CommandFailed { option: "--file-command", exit, detail: String::new() })
            }
            Ok(Err(_)) => bail!("--file-command: its exit code is unknown"),
            Err(_) => bail!("--file-command did not exit within {COMMAND_TIMEOUT:?}"),
        }
    }

    fn settle(&self) -> Duration {
        match self.adapter.reload_check {
            ReloadCheck::After(settle) => settle,
            ReloadCheck::Command(_) => Duration::ZERO,
        }
    }

    /// Releases the streams that the worker no longer uses.
    async fn release(&mut self, lease: &Lease) {
        let now = Instant::now();
        let back = lease.streams.iter().filter(|held| lease.draining || held.revoked.is_some());
        for held in back {
            let reloaded_at = self.removed.get(&held.stream).copied().flatten();
            if reloaded_at.is_none_or(|at| now < at + self.settle()) {
                continue;
            }
            let (stream, token) = (held.stream.clone(), held.token);
            let released =
                self.driver.ask(|reply| DriverRequest::Release { stream, token, reply }).await;
            match released {
                Err(_) => return,
                Ok(Ok(()) | Err(RequestError::NotHeld { .. })) => {
                    self.removed.remove(&held.stream);
                }
                Ok(Err(refused)) => {
                    tracing::error!(?refused, stream = %held.stream, "cannot release the stream");
                    self.back_off();
                }
            }
        }
    }

    /// Whether the file still has the content that this agent wrote last.
    fn is_as_written(&self) -> bool {
        let Some(written) = &self.written else { return true };
        let text = std::fs::read_to_string(&self.adapter.path);
        text.is_ok_and(|text| text == config_yml::render(&self.worker, written, self.version))
    }

    /// Handles a change by another process. The worker may have read it, so earlier notifications
    /// no longer count.
    fn note_foreign_change(&mut self) {
        let path = &self.adapter.path;
        self.foreign_changes = self.foreign_changes.saturating_add(1);
        if self.foreign_changes.is_power_of_two() {
            let (shown, times) = (path.display().to_string(), self.foreign_changes);
            let what = if path.exists() { "changed" } else { "deleted" };
            tracing::warn!(
                path = shown,
                times,
                "another process {what} the worker's file: restored"
            );
        }
        self.version = self.version.max(config_yml::version_in(path));
        if let Some(pool) = &mut self.pool {
            pool.may_grow(config_yml::pool_size_in(path));
        }
        self.written = None;
        self.removed.values_mut().for_each(|reloaded_at| *reloaded_at = None);
    }

    fn note_failure(&mut self, error: &anyhow::Error) {
        self.driver.metrics().set_file_problem(Some(format!("{error:#}")));
        if self.failures.is_power_of_two() || self.failures == 0 {
            let path = self.adapter.path.display().to_string();
            let failures = self.failures + 1;
            tracing::error!(path, failures, "the worker's streams are out of date: {error:#}");
        }
        self.back_off();
    }

    fn back_off(&mut self) {
        let wait = backoff::RETRY.wait(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(Instant::now() + wait);
    }

    /// When to run the next step unless the lease changes.
    fn next_check(&self) -> Option<Instant> {
        let settle = self.settle();
        let removed = self.removed.values().flatten().map(|at| *at + settle);
        let in_file = self.pool_size_in_file();
        let smaller = self.pool.as_ref().and_then(|pool| pool.settles(in_file, settle));
        let settled = removed.chain(smaller).min();
        let next = match (self.retry_at, settled) {
            (Some(retry), Some(settled)) => Some(retry.max(settled)),
            (retry, settled) => retry.or(settled),
        };
        let counted = self.pool.as_ref().is_some_and(Pool::is_counted);
        next.into_iter().chain(counted.then(|| Instant::now() + pool::COUNT_INTERVAL)).min()
    }
}

/// Sends a signal to the process whose id is in a file.
fn send_to(path: &Path, signal: Signal) -> anyhow::Result<()> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read --file-pid {shown}"))?;
    let Some(pid) = text.trim().parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
        bail!("--file-pid {shown} holds {:?}: expected a process id", text.trim());
    };
    kill_process(pid, signal)
        .with_context(|| format!("--file-pid {shown}: cannot signal process {pid:?}"))
}
