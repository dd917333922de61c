//! One stream's program, and the failures of its previous runs.

use leasehold_agent_core::StreamLease;
use leasehold_types::duration::format_short;
use leasehold_types::{Moment, StreamKey, Token};
use rustix::process::Signal;

use super::action::{self, Action, LeadTimes, Rules, Running};
use crate::backoff;
use crate::metrics::Metrics;
use crate::process_group::ProcessGroup;
use crate::reaper::Exit;

/// The state of one stream.
#[derive(Debug, Default)]
pub(super) struct StreamEntry {
    pub(super) program: Option<Program>,
    /// Unexpected exits in a row.
    failures: u32,
    /// When it may restart.
    restart_at: Option<Moment>,
    /// Why it cannot be started.
    pub(super) problem: Option<String>,
}

/// A program that runs.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) group: ProcessGroup,
    pub(super) state: Running,
    since: Moment,
    /// Another agent has started it, so the kernel does not report its exit to this one.
    pub(super) adopted: bool,
    exit: Option<Exit>,
    /// It exited without a signal of the agent.
    unexpected: bool,
    /// The log says that it takes long to exit.
    reminded: bool,
}

impl Program {
    pub(super) fn new(group: ProcessGroup, token: Token, adopted: bool, now: Moment) -> Self {
        let state = Running { token, leader_exited: false, terminated_at: None, killed_at: None };
        let (exit, unexpected, reminded) = (None, false, false);
        Self { group, state, since: now, adopted, exit, unexpected, reminded }
    }

    /// Notes that its first process has exited.
    pub(super) fn note_leader_exit(&mut self, exit: Option<Exit>) {
        if !self.state.leader_exited {
            self.state.leader_exited = true;
            self.unexpected = self.state.terminated_at.is_none() && self.state.killed_at.is_none();
        }
        self.exit = self.exit.or(exit);
    }

    /// Kills a launcher that did not run its program.
    pub(super) fn abandon(&mut self, now: Moment) {
        self.state.killed_at = Some(now);
        self.group.signal(Signal::KILL);
    }
}

impl StreamEntry {
    /// The next action.
    pub(super) fn decide(
        &self,
        held: Option<&StreamLease>,
        rules: Rules,
        leads: LeadTimes,
        now: Moment,
    ) -> Action {
        match &self.program {
            Some(program) => action::action_for_program(held, program.state, rules, leads, now),
            None => action::action_without_program(held, self.restart_at, leads, now),
        }
    }

    /// Sends the program SIGTERM.
    pub(super) fn terminate(&mut self, stream: &StreamKey, why: &str, now: Moment) {
        let Some(program) = &mut self.program else { return };
        tracing::info!(%stream, pid = program.group.id, why, "sent SIGTERM to the program");
        program.state.terminated_at = Some(now);
        program.group.signal(Signal::TERM);
        // A stopped process handles SIGTERM only after SIGCONT.
        program.group.signal(Signal::CONT);
    }

    /// Sends the program SIGKILL; returns whether that is the first time.
    pub(super) fn kill(&mut self, stream: &StreamKey, why: &str, now: Moment) -> bool {
        let Some(program) = &mut self.program else { return false };
        tracing::warn!(%stream, pid = program.group.id, why, "sent SIGKILL to the program");
        program.group.signal(Signal::KILL);
        program.state.killed_at.replace(now).is_none()
    }

    /// Removes the program if none of its processes runs, and schedules a restart.
    pub(super) fn reap(
        &mut self,
        stream: &StreamKey,
        rules: Rules,
        metrics: &Metrics,
        now: Moment,
    ) {
        let Some(program) = &mut self.program else { return };
        if program.adopted && !program.group.has_leader() {
            program.note_leader_exit(None);
        }
        if !program.state.leader_exited || program.group.exists() {
            program.remind(stream, rules, now);
            return;
        }
        let ran = now.since(program.since);
        let (pid, code) = (program.group.id, program.exit.map(|exit| exit.0));
        let unexpected = program.unexpected;
        self.program = None;
        if !unexpected {
            tracing::info!(%stream, pid, code, "the program has exited");
            (self.failures, self.restart_at) = (0, None);
            return;
        }
        metrics.process_exits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.failures = if ran >= backoff::RAN_WELL { 0 } else { self.failures.saturating_add(1) };
        let wait = backoff::RESTART.wait(self.failures);
        self.restart_at = Some(now + wait);
        // Limit the log of a program that exits repeatedly.
        if self.failures.is_power_of_two() || self.failures == 0 {
            let (failures, why) = (self.failures, self.problem.as_deref());
            let (ran, restarts_in) = (format_short(ran), format_short(wait));
            tracing::warn!(%stream, pid, code, failures, why, ran, restarts_in,
                "the program has exited by itself: it restarts");
        }
    }
}

impl Program {
    fn remind(&mut self, stream: &StreamKey, rules: Rules, now: Moment) {
        let late = self.state.terminated_at.is_some_and(|at| at + rules.grace <= now);
        if late && !self.reminded && !rules.kill {
            self.reminded = true;
            tracing::warn!(%stream, pid = self.group.id,
                "the program has not exited after SIGTERM; the stream stays until it has, or \
                 until its lease ends");
        }
    }
}
