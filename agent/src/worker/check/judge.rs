//! What follows from the results of checks, from the worker's calls and from its starts. No clock:
//! each takes `now`.

use std::time::Duration;

use leasehold_types::{Moment, duration};

use crate::backoff::RAN_WELL;
use crate::config::Probe;
use crate::reaper::Exit;

/// So many starts in a row end soon before the worker counts as failing.
const SHORT_RUNS_MAX: u32 = 3;
/// How long a worker that is polled for its jobs may give no answer.
const UNANSWERED_MAX: Duration = Duration::from_secs(30);
/// So many polls at least must have failed in that time.
const UNANSWERED_POLLS_MIN: u32 = 3;
/// An agent that looks at a deadline later than this was paused itself: it judges nobody.
const LATE: Duration = Duration::from_secs(1);

/// Judges by the agent's own checks.
#[derive(Debug)]
pub(super) struct ProbeJudge {
    failures_max: u32,
    start_period: Duration,
    /// When the worker's present process started.
    started: Moment,
    /// It has passed since then.
    has_passed: bool,
    /// Failures in a row.
    failures: u32,
    /// What the last one found, once they are too many.
    failure: Option<String>,
    /// There was a result that counts.
    is_decided: bool,
}

impl ProbeJudge {
    pub(super) fn new(probe: &Probe, now: Moment) -> Self {
        Self {
            failures_max: probe.failures_max.get(),
            start_period: probe.start_period,
            started: now,
            has_passed: false,
            failures: 0,
            failure: None,
            is_decided: false,
        }
    }

    /// A process of the worker has started. One that failed before fails until it has passed.
    pub(super) fn started(&mut self, now: Moment) {
        (self.started, self.has_passed) = (now, false);
        self.failures = 0;
    }

    pub(super) fn passed(&mut self) {
        (self.has_passed, self.is_decided) = (true, true);
        (self.failures, self.failure) = (0, None);
    }

    /// A check has failed. Returns whether the worker's present process fails.
    pub(super) fn failed(&mut self, why: String, now: Moment) -> bool {
        if !self.has_passed && now < self.started + self.start_period {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures < self.failures_max {
            return false;
        }
        self.is_decided = true;
        self.failure = Some(why);
        true
    }

    /// Whether nothing is known yet: a worker that failed under an earlier agent still does.
    pub(super) fn is_undecided(&self) -> bool {
        !self.is_decided
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.clone()
    }
}

/// Judges by the worker's calls of the worker API.
#[derive(Debug)]
pub(super) struct CallJudge {
    /// The longest time between two calls that the configuration allows.
    configured: Option<Duration>,
    /// What the worker itself promises.
    promised: Option<Duration>,
    last: Moment,
    /// A verdict was given that it fails.
    failing: bool,
}

impl CallJudge {
    /// `promised`: what the worker has promised to an earlier agent.
    pub(super) fn new(
        configured: Option<Duration>,
        promised: Option<Duration>,
        now: Moment,
    ) -> Self {
        Self { configured, promised, last: now, failing: false }
    }

    /// The worker has called, and its agent may let it wait for this long: until then it expects
    /// no other call, unless the worker promises one. Returns whether it failed before.
    pub(super) fn called(&mut self, wait: Duration, now: Moment) -> bool {
        let wait = if self.promised.is_some() { Duration::ZERO } else { wait };
        self.last = self.last.max(now + wait);
        std::mem::replace(&mut self.failing, false)
    }

    pub(super) fn promised(&mut self, within: Option<Duration>, now: Moment) {
        self.promised = within;
        self.last = now;
        self.failing = false;
    }

    /// A process has started, which has promised nothing.
    pub(super) fn started(&mut self, now: Moment) {
        self.promised(None, now);
    }

    /// What the worker promises holds before what its agent is told.
    fn limit(&self) -> Option<Duration> {
        self.promised.or(self.configured)
    }

    fn deadline(&self) -> Option<Moment> {
        self.limit().map(|limit| self.last + limit)
    }

    /// Whether the time has passed, and no verdict says so yet. An agent that looks far too late
    /// begins the wait again: it was paused itself.
    pub(super) fn is_due(&mut self, now: Moment) -> bool {
        let Some(deadline) = self.deadline().filter(|_| !self.failing) else { return false };
        if deadline + LATE < now {
            self.last = now;
        }
        deadline <= now && now <= deadline + LATE
    }

    /// The worker fails, if it has not called since [`Self::is_due`].
    pub(super) fn judge(&mut self, now: Moment) {
        self.failing |= self.deadline().is_some_and(|deadline| deadline <= now);
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failing
    }

    pub(super) fn failure(&self) -> Option<String> {
        let limit = self.limit().filter(|_| self.failing)?;
        Some(format!("it has not called the worker API for {}", duration::format(limit)))
    }

    pub(super) fn next_change(&self) -> Option<Moment> {
        self.deadline().filter(|_| !self.failing)
    }
}

/// Judges by whether a worker that the agent polls for its jobs answers.
#[derive(Debug, Default)]
pub(super) struct PollJudge {
    /// When the first poll without an answer failed, and how many have since.
    unanswered: Option<(Moment, u32)>,
    failure: Option<String>,
}

impl PollJudge {
    /// Returns whether the worker failed before.
    pub(super) fn answered(&mut self) -> bool {
        self.unanswered = None;
        self.failure.take().is_some()
    }

    /// A process has started, which nobody has polled yet.
    pub(super) fn started(&mut self) {
        self.unanswered = None;
    }

    pub(super) fn unanswered(&mut self, why: &str, now: Moment) {
        let (since, polls) = self.unanswered.unwrap_or((now, 0));
        self.unanswered = Some((since, polls.saturating_add(1)));
        if polls + 1 >= UNANSWERED_POLLS_MIN && since + UNANSWERED_MAX <= now {
            let limit = duration::format(UNANSWERED_MAX);
            self.failure = Some(format!("it has not answered its agent for {limit}: {why}"));
        }
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.clone()
    }
}

/// Judges by how long each process of COMMAND runs.
#[derive(Debug, Default)]
pub(super) struct StartJudge {
    /// Runs in a row that ended soon.
    short_runs: u32,
    last_exit: Option<Exit>,
    /// When the present process started, if one runs.
    runs_since: Option<Moment>,
}

impl StartJudge {
    pub(super) fn started(&mut self, now: Moment) {
        self.runs_since = Some(now);
    }

    pub(super) fn exited(&mut self, exit: Exit, ran: Duration) {
        self.runs_since = None;
        self.last_exit = Some(exit);
        // One that ends well has done its work.
        let is_short = ran < RAN_WELL && exit != Exit(0);
        self.short_runs = if is_short { self.short_runs.saturating_add(1) } else { 0 };
    }

    pub(super) fn failure(&self, now: Moment) -> Option<String> {
        if self.short_runs < SHORT_RUNS_MAX || self.end().is_some_and(|end| end <= now) {
            return None;
        }
        let Exit(code) = self.last_exit?;
        Some(format!("COMMAND exits again and again soon after its start, last with code {code}"))
    }

    /// When the present process has run long enough.
    fn end(&self) -> Option<Moment> {
        self.runs_since.map(|since| since + RAN_WELL)
    }

    pub(super) fn next_change(&self, now: Moment) -> Option<Moment> {
        self.end().filter(|end| now < *end)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::config::ProbeTarget;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    fn probe_judge() -> ProbeJudge {
        let probe = Probe {
            target: ProbeTarget::Exec("true".into()),
            interval: SECOND,
            timeout: SECOND,
            failures_max: NonZeroU32::new(2).expect("not 0"),
            start_period: 10 * SECOND,
        };
        ProbeJudge::new(&probe, at(0))
    }

    #[test]
    fn failures_count_after_the_start_period_or_once_a_check_has_passed() {
        let mut judge = probe_judge();
        assert!(!judge.failed("a".into(), at(5)) && !judge.failed("a".into(), at(9)));
        assert!(judge.is_undecided());
        assert!(!judge.failed("b".into(), at(10)), "the first that counts");
        assert!(judge.failed("c".into(), at(11)), "the second");
        assert_eq!(judge.failure(), Some("c".into()));
        assert!(judge.failed("d".into(), at(12)), "and it goes on to fail");
        judge.passed();
        assert_eq!(judge.failure(), None);
        let mut judge = probe_judge();
        judge.passed();
        assert!(!judge.failed("a".into(), at(2)) && judge.failed("a".into(), at(3)));
    }

    #[test]
    fn a_restarted_worker_fails_until_it_passes_and_has_a_start_period_again() {
        let mut judge = probe_judge();
        judge.passed();
        assert!(!judge.failed("a".into(), at(20)) && judge.failed("a".into(), at(21)));
        judge.started(at(22));
        assert_eq!(judge.failure(), Some("a".into()));
        assert!(!judge.failed("b".into(), at(31)), "in its start period");
        assert!(!judge.failed("b".into(), at(32)) && judge.failed("b".into(), at(33)));
        judge.started(at(34));
        judge.passed();
        assert_eq!(judge.failure(), None);
    }

    #[test]
    fn one_pass_forgets_earlier_failures() {
        let mut judge = probe_judge();
        judge.passed();
        for second in 0..10 {
            assert!(!judge.failed("a".into(), at(second)));
            judge.passed();
        }
        assert_eq!(judge.failure(), None);
    }

    #[test]
    fn a_worker_must_call_within_the_time_that_it_promises_or_its_agent_is_told() {
        let mut judge = CallJudge::new(Some(10 * SECOND), None, at(0));
        assert!(!judge.is_due(at(9)) && judge.next_change() == Some(at(10)));
        assert!(judge.is_due(at(10)));
        judge.judge(at(10));
        assert_eq!(judge.failure(), Some("it has not called the worker API for 10s".into()));
        assert!(judge.called(Duration::ZERO, at(11)), "it failed before");
        judge.promised(Some(20 * SECOND), at(12));
        assert_eq!(judge.next_change(), Some(at(32)), "its promise holds before the flag");
        assert!(!judge.called(60 * SECOND, at(12)));
        assert_eq!(judge.next_change(), Some(at(32)), "it keeps its promise while it waits");
        judge.started(at(13));
        assert_eq!(judge.next_change(), Some(at(23)), "the next process promises nothing");
        assert!(!judge.called(60 * SECOND, at(14)));
        assert_eq!(judge.next_change(), Some(at(84)), "its agent lets it wait for a minute");
        let mut judge = CallJudge::new(None, None, at(0));
        assert!(!judge.is_due(at(99)) && judge.next_change().is_none());
        judge.promised(Some(SECOND), at(99));
        judge.promised(None, at(100));
        assert!(!judge.is_due(at(101)), "it has taken its promise back");
    }

    #[test]
    fn a_call_that_was_read_late_counts_and_so_does_a_pause_of_the_agent() {
        let mut judge = CallJudge::new(None, Some(10 * SECOND), at(0));
        assert!(judge.is_due(at(10)));
        judge.called(Duration::ZERO, at(10));
        judge.judge(at(10));
        assert_eq!(judge.failure(), None, "it called before the verdict");
        assert!(!judge.is_due(at(60)) && judge.next_change() == Some(at(70)), "once more");
        assert!(judge.is_due(at(70)));
        judge.judge(at(70));
        assert!(!judge.is_due(at(90)) && judge.failure().is_some(), "it goes on to fail");
    }

    #[test]
    fn a_polled_worker_that_gives_no_answer_for_long_fails_until_it_answers() {
        let mut judge = PollJudge::default();
        judge.unanswered("refused", at(0));
        judge.unanswered("refused", at(90));
        assert_eq!(judge.failure(), None, "two polls say little");
        judge.unanswered("no answer", at(91));
        assert!(judge.failure().expect("three polls").ends_with("for 30s: no answer"));
        assert!(judge.answered() && judge.failure().is_none());
        (0..29).for_each(|second| judge.unanswered("refused", at(100 + second)));
        judge.started();
        judge.unanswered("refused", at(130));
        assert!(!judge.answered(), "it was not away for long");
    }

    #[test]
    fn a_command_that_exits_soon_three_times_fails_until_it_runs_well() {
        let mut judge = StartJudge::default();
        for _ in 0..2 {
            judge.started(at(0));
            judge.exited(Exit(3), SECOND);
        }
        assert_eq!(judge.failure(at(0)), None);
        judge.started(at(100));
        judge.exited(Exit(3), SECOND);
        judge.started(at(102));
        let failure = judge.failure(at(103)).expect("three in a row");
        assert!(failure.contains("code 3"), "{failure}");
        let well = at(102) + RAN_WELL;
        assert_eq!((judge.next_change(at(103)), judge.failure(well)), (Some(well), None));
        judge.exited(Exit(3), RAN_WELL);
        assert_eq!(judge.failure(well), None);
        (0..9).for_each(|_| judge.exited(Exit(0), SECOND));
        assert_eq!(judge.failure(well), None, "one that ends well has done its work");
    }
}
