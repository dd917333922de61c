//! The task that starts and ends the programs.
//!
//! Invariant: a program runs only once it is in the record and the guard knows its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use leasehold_agent_core::{Refused, StreamLease};
use leasehold_types::{Moment, StreamKey};
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};

use super::Setting;
use super::program::{Program, Slot};
use super::record::{self, Record, Written};
use super::verdict::{Leads, Rules, Verdict};
use crate::clock;
use crate::driver::{Command, Snapshot};
use crate::gate::Gate;
use crate::group::Group;
use crate::guard::Guarded;
use crate::init::Exit;
use crate::warden::Warden;

/// Programs that may run at once.
const PROGRAMS_MAX: usize = 4096;
/// Programs that are started in one go.
const STARTS_MAX: usize = 64;
/// How often it is looked whether the rest of a group has ended.
const GROUP_LOOK: Duration = Duration::from_millis(20);
/// How often it is looked whether a program has ended that another agent has started.
const ADOPTED_LOOK: Duration = Duration::from_millis(200);
/// The clock is read at least this often: a timer does not count the time that a suspended host
/// slept.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The wait after the guard, the record or the journal failed.
const RETRY: Duration = Duration::from_secs(1);

/// The first process of a program has ended.
type Ended = (StreamKey, i32, Exit);
/// What is held now.
type Held<'a> = BTreeMap<&'a StreamKey, &'a StreamLease>;

#[derive(Debug)]
pub(super) struct Supervisor {
    setting: Setting,
    record: Record,
    rules: Rules,
    leads: Leads,
    warden: Option<Warden>,
    /// The guard of the agent before, which ends what it does not know to be renewed.
    old_guard: Option<Group>,
    slots: BTreeMap<StreamKey, Slot>,
    tell_end: mpsc::Sender<Ended>,
    ends: mpsc::Receiver<Ended>,
    /// Nothing is started before this moment.
    retry_at: Option<Moment>,
}

impl Supervisor {
    pub(super) fn new(mut setting: Setting) -> Self {
        let now = clock::now();
        let leftovers = std::mem::take(&mut setting.leftovers);
        let adopt = |program: Written| {
            let Written { stream, token, group } = program;
            tracing::warn!(%stream, %token, pid = group.id,
                "a program of the agent before still runs: adopted");
            let mut slot = Slot::default();
            slot.program = Some(Program::new(group, token, true, now));
            (stream, slot)
        };
        let (tell_end, ends) = mpsc::channel(PROGRAMS_MAX);
        let rules = Rules { grace: setting.adapter.grace, kill: setting.adapter.kill };
        Self {
            record: leftovers.record,
            rules,
            leads: Leads::new(None, rules),
            warden: None,
            old_guard: leftovers.guard,
            slots: leftovers.programs.into_iter().map(adopt).collect(),
            tell_end,
            ends,
            retry_at: None,
            setting,
        }
    }

    /// Runs until the driver ends or it is told to stop; then nothing of any program runs.
    pub(super) async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let door = self.setting.door.clone();
        if self.setting.forgot
            && let Err(why) = door.start_anew().await
        {
            tracing::warn!(why, "that no jobs run could not be noted");
        }
        let mut changes = door.changes();
        changes.mark_changed();
        let mut look = None;
        loop {
            let pause = look.map_or(SLEEP_MAX, |at: Moment| at.since(clock::now()).min(SLEEP_MAX));
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { break },
                Some(end) = self.ends.recv() => self.note_end(end),
                () = tokio::time::sleep(pause), if look.is_some() => {}
                _ = &mut stopped => break,
            }
            while let Ok(end) = self.ends.try_recv() {
                self.note_end(end);
            }
            let Ok(snapshot) = door.lease().await else { break };
            look = self.step(&snapshot).await;
        }
        self.end_all().await;
    }

    fn note_end(&mut self, (stream, pid, exit): Ended) {
        let program = self.slots.get_mut(&stream).and_then(|slot| slot.program.as_mut());
        if let Some(program) = program.filter(|program| program.group.id == pid) {
            program.has_lost_its_head(Some(exit));
        }
    }

    /// Does for every stream what is to be done now; when to look again.
    async fn step(&mut self, snapshot: &Snapshot) -> Option<Moment> {
        self.leads = Leads::new(snapshot.ttl, self.rules);
        let streams = snapshot.lease.streams.iter();
        let held: Held<'_> = streams.map(|held| (&held.stream, held)).collect();
        let metrics = self.setting.door.metrics();
        for (stream, slot) in &mut self.slots {
            slot.bury(stream, self.rules, metrics, clock::now());
        }
        let mut looks = Vec::new();
        let mut starts = Vec::new();
        for (stream, verdict) in self.judge(&held) {
            match verdict {
                Verdict::Wait(at) => looks.extend(at),
                Verdict::Start => starts.extend(held.get(&stream).copied()),
                Verdict::Release => looks.extend(self.release(&held, &stream).await),
                Verdict::Terminate(why) => {
                    self.slot(&stream).terminate(&stream, why, clock::now());
                    looks.push(clock::now() + GROUP_LOOK);
                }
                Verdict::Kill(why) => {
                    if self.slot(&stream).kill(&stream, why, clock::now()) {
                        self.setting.door.metrics().process_kills.fetch_add(1, Relaxed);
                    }
                    looks.push(clock::now() + GROUP_LOOK);
                }
                Verdict::Forget => {
                    self.slots.remove(&stream);
                }
            }
        }
        looks.extend(self.supply(&starts, &held).await);
        looks.extend(self.next_look());
        looks.into_iter().min()
    }

    fn judge(&self, held: &Held<'_>) -> Vec<(StreamKey, Verdict)> {
        let now = clock::now();
        let all: BTreeSet<&StreamKey> = held.keys().copied().chain(self.slots.keys()).collect();
        let none = Slot::default();
        let judge = |stream: &StreamKey| {
            let slot = self.slots.get(stream).unwrap_or(&none);
            slot.judge(held.get(stream).copied(), self.rules, self.leads, now)
        };
        all.into_iter().map(|stream| (stream.clone(), judge(stream))).collect()
    }

    fn slot(&mut self, stream: &StreamKey) -> &mut Slot {
        self.slots.entry(stream.clone()).or_default()
    }

    /// Gives a stream back; when to try again, where that failed.
    async fn release(&mut self, held: &Held<'_>, stream: &StreamKey) -> Option<Moment> {
        let (stream, token) = (stream.clone(), held.get(stream)?.token);
        let shown = stream.clone();
        let door = &self.setting.door;
        match door.ask(|reply| Command::Release { stream, token, reply }).await {
            Err(_) | Ok(Ok(()) | Err(Refused::NotHeld { .. })) => None,
            Ok(Err(refused)) => {
                tracing::error!(?refused, stream = %shown, "not released");
                Some(clock::now() + RETRY)
            }
        }
    }

    /// Starts what is to be started and tells the guard of all that runs; when to try again.
    async fn supply(&mut self, starts: &[&StreamLease], held: &Held<'_>) -> Option<Moment> {
        let now = clock::now();
        let early = self.retry_at.filter(|at| *at > now);
        let starts = if early.is_some() { &[] } else { starts };
        let supplied = self.start(starts, held).await;
        match &supplied {
            Ok(()) if early.is_some() => {}
            Ok(()) => self.retry_at = None,
            Err(error) => {
                tracing::error!("no program can be started: {error:#}");
                self.retry_at = Some(clock::now() + RETRY);
            }
        }
        self.tell_figures(held, supplied.err());
        // More may wait than are started in one go.
        let more = starts.len() > STARTS_MAX && self.running() < PROGRAMS_MAX;
        self.retry_at.or(more.then_some(now))
    }

    async fn start(&mut self, starts: &[&StreamLease], held: &Held<'_>) -> anyhow::Result<()> {
        if starts.is_empty() && self.running() == 0 {
            self.warden.iter().for_each(|warden| warden.tell(Vec::new()));
            return Ok(());
        }
        self.mind_warden()?;
        let room = PROGRAMS_MAX.saturating_sub(self.running()).min(STARTS_MAX);
        let mut gates = Vec::new();
        for held in starts.iter().take(room) {
            match self.close_gate(held) {
                Ok(gate) => gates.push((held.stream.clone(), gate)),
                Err(error) => {
                    self.abandon(&gates);
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.entrust(&gates, held).await {
            self.abandon(&gates);
            return Err(error);
        }
        let open = |(stream, gate): (StreamKey, Gate)| async { (stream, gate.open(None).await) };
        for (stream, opened) in join_all(gates.into_iter().map(open)).await {
            self.note_start(&stream, opened);
        }
        Ok(())
    }

    /// Starts a process that will be the stream's program.
    fn close_gate(&mut self, held: &StreamLease) -> anyhow::Result<Gate> {
        let (stream, token) = (&held.stream, held.token);
        let (set, name) = (stream.set.to_string(), stream.stream.to_string());
        let command = self.setting.adapter.command_of(&set, &name);
        let mut environment = self.setting.environment.clone();
        environment.push(("LEASEHOLD_SET", set));
        environment.push(("LEASEHOLD_STREAM", name));
        environment.push(("LEASEHOLD_TOKEN", token.to_string()));
        let (gate, process) = Gate::close(&command, &environment, &self.setting.reaper)?;
        let pid = process.pid.as_raw_pid();
        let (tell, key) = (self.tell_end.clone(), stream.clone());
        tokio::spawn(async move {
            if let Ok(exit) = process.exit.await {
                let _ = tell.send((key, pid, exit)).await;
            }
        });
        let group = Group::of(process.pid).context("a process has ended at once")?;
        let program = Program::new(group, token, false, clock::now());
        self.slot(stream).program = Some(program);
        Ok(gate)
    }

    /// Lets the record and the guard know of all programs before new ones run.
    async fn entrust(
        &mut self,
        gates: &[(StreamKey, Gate)],
        held: &Held<'_>,
    ) -> anyhow::Result<()> {
        let guarded = self.guarded(held);
        let (programs, old_guard) = (self.programs(), self.old_guard.clone());
        let warden = self.warden.as_mut().expect("it was minded");
        warden.tell(guarded);
        if gates.is_empty() && old_guard.is_none() {
            return Ok(());
        }
        if !gates.is_empty() {
            self.record.write(&warden.group, programs)?;
        }
        warden.has_taken_up().await?;
        if let Some(guard) = self.old_guard.take() {
            // What it guarded is now in better hands.
            guard.signal(Signal::KILL);
        }
        Ok(())
    }

    fn abandon(&mut self, gates: &[(StreamKey, Gate)]) {
        for (stream, _) in gates {
            if let Some(program) = self.slot(stream).program.as_mut() {
                program.abandon(clock::now());
            }
        }
    }

    fn note_start(&mut self, stream: &StreamKey, opened: anyhow::Result<()>) {
        let program = self.setting.adapter.command[0].display().to_string();
        let slot = self.slot(stream);
        slot.problem = opened.err().map(|error| format!("{program} cannot be started: {error:#}"));
        if let (None, Some(Program { group, state, .. })) = (&slot.problem, &slot.program) {
            let (pid, token) = (group.id, state.token);
            tracing::info!(%stream, %token, pid, program, "the program has started");
        }
    }

    /// Sees to it that a guard runs.
    fn mind_warden(&mut self) -> anyhow::Result<()> {
        if self.warden.as_ref().is_some_and(Warden::has_ended) {
            tracing::error!("the guard of the programs has ended: another one is started");
            self.warden = None;
        }
        if self.warden.is_none() {
            let warden = Warden::start(&self.setting.reaper, self.record.is_kept())?;
            tracing::debug!(pid = warden.group.id, "a guard has started");
            self.record.write(&warden.group, self.programs())?;
            self.warden = Some(warden);
        }
        Ok(())
    }

    fn guarded(&self, held: &Held<'_>) -> Vec<Guarded> {
        let all = self.slots.iter().filter_map(|(stream, slot)| {
            let program = slot.program.as_ref()?;
            let held = held.get(stream).filter(|held| held.token == program.state.token);
            // Without a lease it is being killed already.
            let until = held.map_or(Some(Moment(0)), |held| held.until);
            let end = until.map(|until| self.leads.guarded(until).0);
            Some(Guarded { group: program.group.clone(), end })
        });
        all.collect()
    }

    fn programs(&self) -> Vec<Written> {
        let all = self.slots.iter().filter_map(|(stream, slot)| {
            let Program { group, state, .. } = slot.program.as_ref()?;
            Some(Written { stream: stream.clone(), token: state.token, group: group.clone() })
        });
        all.collect()
    }

    fn running(&self) -> usize {
        self.slots.values().filter(|slot| slot.program.is_some()).count()
    }

    fn tell_figures(&self, held: &Held<'_>, error: Option<anyhow::Error>) {
        let metrics = self.setting.door.metrics();
        let running = self.running();
        let lacks =
            |stream: &StreamKey| self.slots.get(stream).is_none_or(|it| it.program.is_none());
        let missing = held.values().filter(|it| it.revoked.is_none() && lacks(&it.stream)).count();
        metrics.processes.store(running as u64, Relaxed);
        metrics.processes_missing.store(missing as u64, Relaxed);
        let of_slot = |(stream, slot): (&StreamKey, &Slot)| {
            slot.problem.as_ref().map(|problem| format!("stream {stream}: {problem}"))
        };
        let full = running >= PROGRAMS_MAX && missing > 0;
        let problem = match error {
            Some(error) => Some(format!("no program can be started: {error:#}")),
            None if self.retry_at.is_some() => return,
            None if full => Some(format!(
                "at most {PROGRAMS_MAX} programs run at once: {missing} streams have none"
            )),
            None => self.slots.iter().find_map(of_slot),
        };
        metrics.set_process_problem(problem);
    }

    fn next_look(&self) -> Option<Moment> {
        let now = clock::now();
        let programs = self.slots.values().filter_map(|slot| slot.program.as_ref());
        let look = |program: &Program| match program {
            _ if program.state.headless => GROUP_LOOK,
            _ if program.adopted => ADOPTED_LOOK,
            _ => SLEEP_MAX,
        };
        programs.map(look).min().map(|look| now + look)
    }

    async fn end_all(&mut self) {
        let left = self.slots.values().filter_map(|slot| slot.program.as_ref());
        let left: Vec<Group> = left.map(|program| program.group.clone()).collect();
        if !left.is_empty() {
            tracing::warn!(programs = left.len(), "the agent ends: programs that run are killed");
        }
        match record::end(left.iter()).await {
            Ok(()) => self.record.remove(),
            Err(error) => tracing::error!("{error:#}"),
        }
    }
}
