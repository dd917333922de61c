//! One stream's program, and what is remembered of those before it.

use leasehold_agent_core::StreamLease;
use leasehold_types::{Moment, StreamKey, Token};
use rustix::process::Signal;

use super::verdict::{self, Leads, Rules, Running, Verdict};
use crate::backoff;
use crate::group::Group;
use crate::init::Exit;
use crate::metrics::Metrics;

/// A stream's place.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) program: Option<Program>,
    /// Ends in a row that nobody wanted.
    failures: u32,
    /// When it may be started again.
    again: Option<Moment>,
    /// Why it cannot be started.
    pub(super) problem: Option<String>,
}

/// A program that runs.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) group: Group,
    pub(super) state: Running,
    since: Moment,
    /// Another agent has started it: nobody tells its end.
    pub(super) adopted: bool,
    exit: Option<Exit>,
    /// It began to end without having been told to.
    unasked: bool,
    /// The log was told that it takes long to end.
    reminded: bool,
}

impl Program {
    pub(super) fn new(group: Group, token: Token, adopted: bool, now: Moment) -> Self {
        let state = Running { token, headless: false, told: None, killed: None };
        let (exit, unasked, reminded) = (None, false, false);
        Self { group, state, since: now, adopted, exit, unasked, reminded }
    }

    /// Its first process has ended.
    pub(super) fn has_lost_its_head(&mut self, exit: Option<Exit>) {
        if !self.state.headless {
            self.state.headless = true;
            self.unasked = self.state.told.is_none() && self.state.killed.is_none();
        }
        self.exit = self.exit.or(exit);
    }

    /// It was never let run.
    pub(super) fn abandon(&mut self, now: Moment) {
        self.state.killed = Some(now);
        self.group.signal(Signal::KILL);
    }
}

impl Slot {
    /// What is to happen now.
    pub(super) fn judge(
        &self,
        held: Option<&StreamLease>,
        rules: Rules,
        leads: Leads,
        now: Moment,
    ) -> Verdict {
        match &self.program {
            Some(program) => verdict::with_program(held, program.state, rules, leads, now),
            None => verdict::without_program(held, self.again, leads, now),
        }
    }

    /// Tells the program to end.
    pub(super) fn terminate(&mut self, stream: &StreamKey, why: &str, now: Moment) {
        let Some(program) = &mut self.program else { return };
        tracing::info!(%stream, pid = program.group.id, why, "the program is told to end");
        program.state.told = Some(now);
        program.group.signal(Signal::TERM);
        // One that is stopped would not hear it.
        program.group.signal(Signal::CONT);
    }

    /// Makes the program end; whether it is the first time.
    pub(super) fn kill(&mut self, stream: &StreamKey, why: &str, now: Moment) -> bool {
        let Some(program) = &mut self.program else { return false };
        tracing::warn!(%stream, pid = program.group.id, why, "the program is killed");
        program.group.signal(Signal::KILL);
        program.state.killed.replace(now).is_none()
    }

    /// Takes leave of a program of which nothing runs any more; whether it still has one.
    pub(super) fn bury(
        &mut self,
        stream: &StreamKey,
        rules: Rules,
        metrics: &Metrics,
        now: Moment,
    ) {
        let Some(program) = &mut self.program else { return };
        if program.adopted && !program.group.is_led() {
            program.has_lost_its_head(None);
        }
        if !program.state.headless || program.group.exists() {
            program.remind(stream, rules, now);
            return;
        }
        let ran = now.since(program.since);
        let (pid, code) = (program.group.id, program.exit.map(|exit| exit.0));
        let unasked = program.unasked;
        self.program = None;
        if !unasked {
            tracing::info!(%stream, pid, code, "the program has ended");
            (self.failures, self.again) = (0, None);
            return;
        }
        metrics.process_exits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.failures = if ran >= backoff::RAN_WELL { 0 } else { self.failures.saturating_add(1) };
        let wait = backoff::RESTART.wait(self.failures);
        self.again = Some(now + wait);
        // A program that ends again and again must not fill the log.
        if self.failures.is_power_of_two() || self.failures == 0 {
            let (failures, why) = (self.failures, self.problem.as_deref());
            tracing::warn!(%stream, pid, code, failures, why, ?ran, ?wait,
                "the program has ended by itself: it is started again");
        }
    }
}

impl Program {
    fn remind(&mut self, stream: &StreamKey, rules: Rules, now: Moment) {
        let late = self.state.told.is_some_and(|told| told + rules.grace <= now);
        if late && !self.reminded && !rules.kill {
            self.reminded = true;
            tracing::warn!(%stream, pid = self.group.id,
                "the program has not ended on SIGTERM; the stream stays until it has, or its \
                 lease ends");
        }
    }
}
