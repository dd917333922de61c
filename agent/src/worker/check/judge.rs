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
    /// The present process is to be restarted.
    restarts: bool,
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
            restarts: false,
        }
    }

    /// A process of the worker has started. One that failed before fails until it has passed.
    pub(super) fn started(&mut self, now: Moment) {
        (self.started, self.has_passed) = (now, false);
        (self.failures, self.restarts) = (0, false);
    }

    pub(super) fn passed(&mut self) {
        (self.has_passed, self.is_decided) = (true, true);
        (self.failures, self.failure) = (0, None);
    }

    /// A check has failed. Returns whether the worker's process is to be restarted because of it.
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
        !std::mem::replace(&mut self.restarts, true)
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
    pub(super) fn new(configured: Option<Duration>, now: Moment) -> Self {
        Self { configured, promised: None, last: now, failing: false }
    }

    /// The worker has called. Returns whether it failed before.
    pub(super) fn called(&mut self, now: Moment) -> bool {
        self.last = now;
        std::mem::replace(&mut self.failing, false)
    }

    pub(super) fn promised(&mut self, within: Option<Duration>, now: Moment) {
        self.promised = within;
        self.called(now);
    }

    /// A process has started, which has promised nothing.
    pub(super) fn started(&mut self, now: Moment) {
        self.promised(None, now);
    }

    fn limit(&self) -> Option<Duration> {
        self.promised.into_iter().chain(self.configured).min()
    }

    fn deadline(&self) -> Option<Moment> {
        self.limit().map(|limit| self.last + limit)
    }

    /// Begins the wait again if the agent looks too late: a call may wait to be read.
    pub(super) fn forgive_if_late(&mut self, now: Moment) {
        let is_late = self.deadline().is_some_and(|deadline| deadline + LATE < now);
        if is_late && !self.failing {
            self.last = now;
        }
        self.failing = self.deadline().is_some_and(|deadline| deadline <= now);
    }

    pub(super) fn failure(&self, now: Moment) -> Option<String> {
        let (limit, deadline) = (self.limit()?, self.deadline()?);
        (deadline <= now)
            .then(|| format!("it has not called the worker API for {}", duration::format(limit)))
    }

    pub(super) fn next_change(&self, now: Moment) -> Option<Moment> {
        self.deadline().filter(|deadline| now < *deadline)
    }
}

/// Judges by whether a worker that the agent polls for its jobs answers.
#[derive(Debug, Default)]
pub(super) struct PollJudge {
    /// Since when it has not answered, and why.
    unanswered: Option<(Moment, String)>,
}

impl PollJudge {
    /// Returns whether the worker failed before.
    pub(super) fn answered(&mut self, now: Moment) -> bool {
        let failed = self.failure(now).is_some();
        self.unanswered = None;
        failed
    }

    pub(super) fn unanswered(&mut self, why: &str, now: Moment) {
        let since = self.unanswered.take().map_or(now, |(since, _)| since);
        self.unanswered = Some((since, why.to_owned()));
    }

    fn end(&self) -> Option<Moment> {
        self.unanswered.as_ref().map(|(since, _)| *since + UNANSWERED_MAX)
    }

    pub(super) fn failure(&self, now: Moment) -> Option<String> {
        let (_, why) = self.unanswered.as_ref().filter(|_| self.end() <= Some(now))?;
        let limit = duration::format(UNANSWERED_MAX);
        Some(format!("it has not answered its agent for {limit}: {why}"))
    }

    pub(super) fn next_change(&self, now: Moment) -> Option<Moment> {
        self.end().filter(|end| now < *end)
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
        self.short_runs = if ran < RAN_WELL { self.short_runs.saturating_add(1) } else { 0 };
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
        assert!(!judge.failed("d".into(), at(12)), "it is being restarted already");
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
    fn a_worker_must_call_within_the_shorter_of_both_times() {
        let mut judge = CallJudge::new(Some(10 * SECOND), at(0));
        assert_eq!((judge.failure(at(9)), judge.next_change(at(9))), (None, Some(at(10))));
        judge.forgive_if_late(at(10));
        assert_eq!(judge.failure(at(10)), Some("it has not called the worker API for 10s".into()));
        assert!(judge.called(at(11)), "it failed before");
        judge.promised(Some(2 * SECOND), at(12));
        assert_eq!(judge.next_change(at(12)), Some(at(14)));
        judge.started(at(13));
        assert_eq!(judge.next_change(at(13)), Some(at(23)), "the next process promises nothing");
        let mut judge = CallJudge::new(None, at(0));
        assert_eq!((judge.failure(at(99)), judge.next_change(at(99))), (None, None));
        judge.promised(Some(SECOND), at(99));
        judge.promised(None, at(100));
        assert_eq!(judge.failure(at(200)), None, "it has taken its promise back");
    }

    #[test]
    fn an_agent_that_was_paused_itself_waits_once_more() {
        let mut judge = CallJudge::new(Some(10 * SECOND), at(0));
        judge.forgive_if_late(at(60));
        assert_eq!((judge.failure(at(60)), judge.next_change(at(60))), (None, Some(at(70))));
        judge.forgive_if_late(at(70));
        assert!(judge.failure(at(70)).is_some());
        judge.forgive_if_late(at(90));
        assert!(judge.failure(at(90)).is_some(), "it goes on to fail");
    }

    #[test]
    fn a_polled_worker_that_gives_no_answer_for_long_fails_until_it_answers() {
        let mut judge = PollJudge::default();
        judge.unanswered("refused", at(0));
        judge.unanswered("no answer", at(29));
        assert_eq!((judge.failure(at(29)), judge.next_change(at(29))), (None, Some(at(30))));
        assert!(judge.failure(at(30)).expect("30 s").ends_with("for 30s: no answer"));
        assert!(judge.answered(at(31)) && judge.failure(at(90)).is_none());
        judge.unanswered("refused", at(91));
        assert!(!judge.answered(at(92)), "it was not away for long");
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
    }
}
