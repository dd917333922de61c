//! The task that starts and stops the programs.
//!
//! Invariant: a program runs only after it is recorded and the watchdog knows when it must end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use leasehold_agent_core::{RequestError, StreamLease};
use leasehold_types::{Moment, StreamKey};
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};

use super::ProcessContext;
use super::action::{Action, LeadTimes, Rules};
use super::program::{Program, StreamEntry};
use super::record::{self, ProgramRecord, Record};
use crate::clock;
use crate::driver::{DriverRequest, Snapshot};
use crate::file_limit::FileLimit;
use crate::launcher::Launch;
use crate::process_group::ProcessGroup;
use crate::reaper::Exit;
use crate::watchdog::Watchdog;
use crate::watchdog::WatchedGroup;

/// Concurrent programs.
const PROGRAMS_MAX: usize = 4096;
/// How often the agent checks whether the remaining processes of a group have exited.
const GROUP_POLL: Duration = Duration::from_millis(20);
/// How often the agent checks whether an adopted program has exited.
const ADOPTED_POLL: Duration = Duration::from_millis(200);
/// The clock is read at least this often: a timer does not count the time during which the host is
/// suspended.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The pause after a failure of the watchdog, the record or the journal.
const RETRY: Duration = Duration::from_secs(1);

/// The first process of a program has exited.
type Ended = (StreamKey, i32, Exit);
/// The held streams.
type Held<'a> = BTreeMap<&'a StreamKey, &'a StreamLease>;

#[derive(Debug)]
pub(super) struct Supervisor {
    context: ProcessContext,
    record: Record,
    rules: Rules,
    leads: LeadTimes,
    watchdog: Option<Watchdog>,
    /// The one before, until the newer one has acknowledged its groups. If it was stopped, it would
    /// kill programs at the old ends of their leases.
    lost_watchdog: Option<Watchdog>,
    /// The previous agent's watchdog, which would kill programs although their leases are renewed.
    old_watchdog: Option<ProcessGroup>,
    entries: BTreeMap<StreamKey, StreamEntry>,
    exit_sender: mpsc::Sender<Ended>,
    exits: mpsc::Receiver<Ended>,
    /// Programs that are started in one step.
    starts_max: usize,
    /// No program is started before this moment.
    retry_at: Option<Moment>,
}

impl Supervisor {
    pub(super) fn new(mut context: ProcessContext) -> Self {
        let now = clock::now();
        let leftovers = std::mem::take(&mut context.leftovers);
        let adopt = |program: ProgramRecord| {
            let ProgramRecord { stream, token, group } = program;
            tracing::warn!(%stream, %token, pid = group.id,
                "a program of the previous agent still runs: this agent adopts it");
            let mut entry = StreamEntry::default();
            entry.program = Some(Program::new(group, token, true, now));
            (stream, entry)
        };
        let (exit_sender, exits) = mpsc::channel(PROGRAMS_MAX);
        let rules = Rules { grace: context.adapter.grace, kill: context.adapter.kill };
        Self {
            record: leftovers.record,
            rules,
            leads: LeadTimes::new(None, rules),
            watchdog: None,
            lost_watchdog: None,
            old_watchdog: leftovers.watchdog,
            entries: leftovers.programs.into_iter().map(adopt).collect(),
            exit_sender,
            exits,
            starts_max: FileLimit::of_this_process().starts(),
            retry_at: None,
            context,
        }
    }

    /// Runs until the driver ends or it is stopped, then kills all programs.
    pub(super) async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let driver = self.context.driver.clone();
        if self.context.no_memory
            && let Err(why) = driver.report_no_jobs().await
        {
            tracing::warn!(why, "cannot record that the worker runs no jobs");
        }
        let mut changes = driver.changes();
        changes.mark_changed();
        let mut next = None;
        loop {
            let pause = next.map_or(SLEEP_MAX, |at: Moment| at.since(clock::now()).min(SLEEP_MAX));
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { break },
                Some(end) = self.exits.recv() => self.note_end(end),
                () = tokio::time::sleep(pause), if next.is_some() => {}
                _ = &mut stopped => break,
            }
            while let Ok(end) = self.exits.try_recv() {
                self.note_end(end);
            }
            let Ok(snapshot) = driver.lease().await else { break };
            next = self.step(&snapshot).await;
        }
        self.end_all().await;
    }

    fn note_end(&mut self, (stream, pid, exit): Ended) {
        let program = self.entries.get_mut(&stream).and_then(|entry| entry.program.as_mut());
        if let Some(program) = program.filter(|program| program.group.id == pid) {
            program.note_leader_exit(Some(exit));
        }
    }

    /// Carries out the next action of each stream. Returns when to run the next step.
    async fn step(&mut self, snapshot: &Snapshot) -> Option<Moment> {
        self.leads = LeadTimes::new(snapshot.ttl, self.rules);
        let streams = snapshot.lease.streams.iter();
        let held: Held<'_> = streams.map(|held| (&held.stream, held)).collect();
        let metrics = self.context.driver.metrics();
        for (stream, entry) in &mut self.entries {
            entry.reap(stream, self.rules, metrics, clock::now());
        }
        let mut wakeups = Vec::new();
        let mut starts = Vec::new();
        for (stream, action) in self.decide(&held) {
            match action {
                Action::Wait(at) => wakeups.extend(at),
                Action::Start => starts.extend(held.get(&stream).copied()),
                Action::Release => wakeups.extend(self.release(&held, &stream).await),
                Action::Terminate(why) => {
                    self.entry(&stream).terminate(&stream, why, clock::now());
                    wakeups.push(clock::now() + GROUP_POLL);
                }
                Action::Kill(why) => {
                    if self.entry(&stream).kill(&stream, why, clock::now()) {
                        self.context.driver.metrics().process_kills.fetch_add(1, Relaxed);
                    }
                    wakeups.push(clock::now() + GROUP_POLL);
                }
                Action::Forget => {
                    self.entries.remove(&stream);
                }
            }
        }
        wakeups.extend(self.start_programs(&starts, &held).await);
        wakeups.extend(self.next_poll());
        wakeups.into_iter().min()
    }

    fn decide(&self, held: &Held<'_>) -> Vec<(StreamKey, Action)> {
        let now = clock::now();
        let all: BTreeSet<&StreamKey> = held.keys().copied().chain(self.entries.keys()).collect();
        let none = StreamEntry::default();
        let decide = |stream: &StreamKey| {
            let entry = self.entries.get(stream).unwrap_or(&none);
            entry.decide(held.get(stream).copied(), self.rules, self.leads, now)
        };
        all.into_iter().map(|stream| (stream.clone(), decide(stream))).collect()
    }

    fn entry(&mut self, stream: &StreamKey) -> &mut StreamEntry {
        self.entries.entry(stream.clone()).or_default()
    }

    /// Releases a stream. Returns when to try again if that failed.
    async fn release(&mut self, held: &Held<'_>, stream: &StreamKey) -> Option<Moment> {
        let (stream, token) = (stream.clone(), held.get(stream)?.token);
        let shown = stream.clone();
        let driver = &self.context.driver;
        match driver.ask(|reply| DriverRequest::Release { stream, token, reply }).await {
            Err(_) | Ok(Ok(()) | Err(RequestError::NotHeld { .. })) => None,
            Ok(Err(refused)) => {
                tracing::error!(?refused, stream = %shown, "cannot release the stream");
                Some(clock::now() + RETRY)
            }
        }
    }

    /// Starts programs and updates the watchdog; returns when to try again.
    async fn start_programs(&mut self, starts: &[&StreamLease], held: &Held<'_>) -> Option<Moment> {
        let now = clock::now();
        let early = self.retry_at.filter(|at| *at > now);
        let starts = if early.is_some() { &[] } else { starts };
        let started = self.start(starts, held).await;
        match &started {
            Ok(()) if early.is_some() => {}
            Ok(()) => self.retry_at = None,
            Err(error) => {
                tracing::error!("cannot start programs: {error:#}");
                self.retry_at = Some(clock::now() + RETRY);
            }
        }
        self.update_metrics(held, started.err());
        // There may be more programs to start than one step allows.
        let more = starts.len() > self.starts_max && self.running() < PROGRAMS_MAX;
        self.retry_at.or(more.then_some(now))
    }

    async fn start(&mut self, starts: &[&StreamLease], held: &Held<'_>) -> anyhow::Result<()> {
        if starts.is_empty() && self.running() == 0 {
            self.watchdog.iter().for_each(|watchdog| watchdog.watch(Vec::new()));
            self.lost_watchdog.take().iter().for_each(Watchdog::end);
            return Ok(());
        }
        self.ensure_watchdog()?;
        let room = PROGRAMS_MAX.saturating_sub(self.running()).min(self.starts_max);
        let mut launches = Vec::new();
        for held in starts.iter().take(room) {
            match self.prepare_launch(held) {
                Ok(launch) => launches.push((held.stream.clone(), launch)),
                Err(error) => {
                    self.abandon(&launches);
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.record_and_watch(&launches, held).await {
            self.abandon(&launches);
            return Err(error);
        }
        let open = |(stream, launch): (StreamKey, Launch)| async {
            (stream, launch.exec(None, false).await)
        };
        for (stream, opened) in join_all(launches.into_iter().map(open)).await {
            self.note_start(&stream, opened);
        }
        Ok(())
    }

    /// Starts a launcher for the stream's program.
    fn prepare_launch(&mut self, held: &StreamLease) -> anyhow::Result<Launch> {
        let (stream, token) = (&held.stream, held.token);
        let (set, name) = (stream.set.to_string(), stream.stream.to_string());
        let command = self.context.adapter.command_of(&set, &name);
        let mut environment = self.context.environment.clone();
        environment.push(("LEASEHOLD_SET", set));
        environment.push(("LEASEHOLD_STREAM", name));
        environment.push(("LEASEHOLD_TOKEN", token.to_string()));
        let (launch, process) = Launch::prepare(&command, &environment, &self.context.reaper)?;
        let pid = process.pid.as_raw_pid();
        let (sender, key) = (self.exit_sender.clone(), stream.clone());
        tokio::spawn(async move {
            if let Ok(exit) = process.exit.await {
                let _ = sender.send((key, pid, exit)).await;
            }
        });
        let group = ProcessGroup::of(process.pid).context("a process has exited at once")?;
        let program = Program::new(group, token, false, clock::now());
        self.entry(stream).program = Some(program);
        Ok(launch)
    }

    /// Records all programs and sends them to the watchdog before new ones run.
    async fn record_and_watch(
        &mut self,
        launches: &[(StreamKey, Launch)],
        held: &Held<'_>,
    ) -> anyhow::Result<()> {
        let groups = self.watched_groups(held);
        let programs = self.programs();
        let replaces = self.old_watchdog.is_some() || self.lost_watchdog.is_some();
        let watchdog = self.watchdog.as_mut().expect("a watchdog runs");
        watchdog.watch(groups);
        if launches.is_empty() && !replaces {
            return Ok(());
        }
        if !launches.is_empty() {
            self.record.write(&watchdog.group, programs)?;
        }
        watchdog.acknowledged().await?;
        if let Some(watchdog) = self.old_watchdog.take() {
            // The new watchdog has taken over its groups.
            watchdog.signal(Signal::KILL);
        }
        if let Some(lost) = self.lost_watchdog.take() {
            tracing::info!(pid = watchdog.group.id, "another watchdog watches the programs now");
            lost.end();
        }
        Ok(())
    }

    fn abandon(&mut self, launches: &[(StreamKey, Launch)]) {
        for (stream, _) in launches {
            if let Some(program) = self.entry(stream).program.as_mut() {
                program.abandon(clock::now());
            }
        }
    }

    fn note_start(&mut self, stream: &StreamKey, opened: anyhow::Result<()>) {
        let program = self.context.adapter.command[0].display().to_string();
        let entry = self.entry(stream);
        entry.problem = opened.err().map(|error| format!("cannot start {program}: {error:#}"));
        if let (None, Some(Program { group, state, .. })) = (&entry.problem, &entry.program) {
            let (pid, token) = (group.id, state.token);
            tracing::info!(%stream, %token, pid, program, "the program has started");
        }
    }

    /// Starts a watchdog if none runs.
    fn ensure_watchdog(&mut self) -> anyhow::Result<()> {
        if let Some(lost) = self.watchdog.take_if(|watchdog| watchdog.is_lost()) {
            tracing::error!(
                "the watchdog of the programs has exited or does not answer: the agent starts \
                 another one"
            );
            match self.lost_watchdog {
                Some(_) => lost.end(),
                None => self.lost_watchdog = Some(lost),
            }
        }
        if self.watchdog.is_none() {
            let watchdog = Watchdog::start(&self.context.reaper, self.record.is_kept())?;
            tracing::debug!(pid = watchdog.group.id, "a watchdog has started");
            self.record.write(&watchdog.group, self.programs())?;
            self.watchdog = Some(watchdog);
        }
        Ok(())
    }

    fn watched_groups(&self, held: &Held<'_>) -> Vec<WatchedGroup> {
        let all = self.entries.iter().filter_map(|(stream, entry)| {
            let program = entry.program.as_ref()?;
            let held = held.get(stream).filter(|held| held.token == program.state.token);
            // Without a lease the program is being killed.
            let until = held.map_or(Some(Moment::EARLIEST), |held| held.until);
            let end = until.map(|until| self.leads.watchdog_deadline(until).0);
            Some(WatchedGroup { group: program.group.clone(), end })
        });
        all.collect()
    }

    fn programs(&self) -> Vec<ProgramRecord> {
        let all = self.entries.iter().filter_map(|(stream, entry)| {
            let Program { group, state, .. } = entry.program.as_ref()?;
            Some(ProgramRecord { stream: stream.clone(), token: state.token, group: group.clone() })
        });
        all.collect()
    }

    fn running(&self) -> usize {
        self.entries.values().filter(|entry| entry.program.is_some()).count()
    }

    fn update_metrics(&self, held: &Held<'_>, error: Option<anyhow::Error>) {
        let metrics = self.context.driver.metrics();
        let running = self.running();
        let lacks = |stream: &StreamKey| {
            self.entries.get(stream).is_none_or(|entry| entry.program.is_none())
        };
        let missing =
            held.values().filter(|lease| lease.revoked.is_none() && lacks(&lease.stream)).count();
        metrics.processes.store(running as u64, Relaxed);
        metrics.processes_missing.store(missing as u64, Relaxed);
        let of_entry = |(stream, entry): (&StreamKey, &StreamEntry)| {
            entry.problem.as_ref().map(|problem| format!("stream {stream}: {problem}"))
        };
        let full = running >= PROGRAMS_MAX && missing > 0;
        let problem = match error {
            Some(error) => Some(format!("cannot start programs: {error:#}")),
            None if self.retry_at.is_some() => return,
            None if full => Some(format!(
                "the limit of {PROGRAMS_MAX} programs is reached: {missing} streams have none; add \
                 workers"
            )),
            None => self.entries.iter().find_map(of_entry),
        };
        metrics.set_process_problem(problem);
    }

    fn next_poll(&self) -> Option<Moment> {
        let now = clock::now();
        let programs = self.entries.values().filter_map(|entry| entry.program.as_ref());
        let next = |program: &Program| match program {
            _ if program.state.leader_exited => GROUP_POLL,
            _ if program.adopted => ADOPTED_POLL,
            _ => SLEEP_MAX,
        };
        programs.map(next).min().map(|next| now + next)
    }

    async fn end_all(&mut self) {
        let left = self.entries.values().filter_map(|entry| entry.program.as_ref());
        let left: Vec<ProcessGroup> = left.map(|program| program.group.clone()).collect();
        if !left.is_empty() {
            tracing::warn!(
                programs = left.len(),
                "the agent exits: it kills the programs that still run"
            );
        }
        match record::end(left.iter()).await {
            Ok(()) => self.record.remove(),
            Err(error) => tracing::error!("{error:#}"),
        }
    }
}
