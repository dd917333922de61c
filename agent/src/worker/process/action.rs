//! The next action for one stream's program: a pure function of its lease, the program and the
//! time.
//!
//! Invariant: a program is killed before its lease ends, and no lease is released before its
//! program has ended.

use std::time::Duration;

use leasehold_agent_core::StreamLease;
use leasehold_types::{Moment, Token};

/// The interval between repeated SIGKILLs.
const KILL_AGAIN: Duration = Duration::from_secs(1);
/// The lease time if no coordinator has sent it yet.
const TTL_UNKNOWN: Duration = Duration::from_secs(5);
/// SIGKILL is sent between this and [`KILL_LEAD_MIN`] before the end of the lease.
const KILL_LEAD_MAX: Duration = Duration::from_secs(1);
/// See [`KILL_LEAD_MAX`].
const KILL_LEAD_MIN: Duration = Duration::from_millis(50);

/// How programs are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// How long a program may take to exit after SIGTERM.
    pub(super) grace: Duration,
    /// Whether it is killed after that.
    pub(super) kill: bool,
}

/// How long before the end of a lease its program gets SIGTERM and SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeadTimes {
    pub(super) term: Duration,
    pub(super) kill: Duration,
}

impl LeadTimes {
    /// The lead times for leases of this duration. An agent without an answer tries another
    /// coordinator after three fifths of it, which leaves a fifth for a renewal by that one.
    pub(super) fn new(ttl: Option<Duration>, rules: Rules) -> Self {
        let ttl = ttl.unwrap_or(TTL_UNKNOWN);
        let kill = (ttl / 20).clamp(KILL_LEAD_MIN, KILL_LEAD_MAX);
        Self { term: rules.grace.min(ttl / 5).max(kill), kill }
    }

    /// When the watchdog kills a program that the agent has not.
    pub(super) fn watchdog_deadline(&self, until: Moment) -> Moment {
        before(until, self.kill / 2)
    }
}

/// The state of a running program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Running {
    /// The token that it was started with.
    pub(super) token: Token,
    /// Its first process has exited, and processes that it has started still run.
    pub(super) leader_exited: bool,
    /// When it got SIGTERM.
    pub(super) terminated_at: Option<Moment>,
    /// When it last got SIGKILL.
    pub(super) killed_at: Option<Moment>,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Wait for a change or for this moment.
    Wait(Option<Moment>),
    /// Start the program.
    Start,
    /// Send it SIGTERM.
    Terminate(&'static str),
    /// Send it SIGKILL.
    Kill(&'static str),
    /// The program has exited: release the stream.
    Release,
    /// Neither a lease nor a program: remove the entry.
    Forget,
}

/// The action for a stream without a program, which may restart at `restart_at`.
pub(super) fn action_without_program(
    held: Option<&StreamLease>,
    restart_at: Option<Moment>,
    leads: LeadTimes,
    now: Moment,
) -> Action {
    let Some(held) = held else { return Action::Forget };
    if held.revoked.is_some() {
        return Action::Release;
    }
    if held.until.is_some_and(|until| before(until, leads.term) <= now) {
        // The lease ends too soon: wait for a renewal.
        return Action::Wait(None);
    }
    match restart_at.filter(|at| *at > now) {
        None => Action::Start,
        later => Action::Wait(later),
    }
}

/// The action for a stream whose program runs.
pub(super) fn action_for_program(
    held: Option<&StreamLease>,
    program: Running,
    rules: Rules,
    leads: LeadTimes,
    now: Moment,
) -> Action {
    let held = held.filter(|held| held.token == program.token);
    let kill_at = held.and_then(|held| held.until).map(|until| before(until, leads.kill));
    if let Some(killed) = program.killed_at {
        return if killed + KILL_AGAIN <= now {
            Action::Kill("it has not exited after SIGKILL")
        } else {
            Action::Wait(Some(killed + KILL_AGAIN))
        };
    }
    let Some(held) = held else { return Action::Kill("its lease has ended") };
    if kill_at.is_some_and(|at| at <= now) {
        return Action::Kill("its lease ends");
    }
    let Some(terminated_at) = program.terminated_at else {
        let term_at = held.until.map(|until| before(until, leads.term));
        return if held.revoked.is_some() {
            Action::Terminate("the stream is revoked")
        } else if program.leader_exited {
            Action::Terminate("its first process has exited")
        } else if term_at.is_some_and(|at| at <= now) {
            Action::Terminate("its lease ends soon without renewal")
        } else {
            Action::Wait(term_at)
        };
    };
    let grace_at = rules.kill.then_some(terminated_at + rules.grace);
    if grace_at.is_some_and(|at| at <= now) {
        Action::Kill("it has not exited after SIGTERM")
    } else {
        Action::Wait(grace_at.into_iter().chain(kill_at).min())
    }
}

fn before(moment: Moment, span: Duration) -> Moment {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Moment(moment.0.saturating_sub(nanos))
}

#[cfg(test)]
mod tests {
    use leasehold_types::{Epoch, StreamKey};

    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const RULES: Rules = Rules { grace: Duration::from_secs(30), kill: false };

    fn at(secs: u64) -> Moment {
        Moment(secs * 1_000_000_000)
    }

    fn token(seq: u64) -> Token {
        Token { epoch: Epoch(1), seq }
    }

    fn lease(until: Option<u64>, revoked: bool) -> StreamLease {
        let name = "a".parse().expect("a name");
        let stream = StreamKey { set: "set".parse().expect("a name"), stream: name };
        let revoked = revoked.then(|| at(500));
        StreamLease { stream, token: token(1), until: until.map(at), revoked }
    }

    fn running() -> Running {
        Running { token: token(1), leader_exited: false, terminated_at: None, killed_at: None }
    }

    fn decide(held: &StreamLease, program: Running, now: u64) -> Action {
        action_for_program(Some(held), program, RULES, LeadTimes::new(Some(TTL), RULES), at(now))
    }

    #[test]
    fn without_renewal_a_program_gets_sigterm_then_sigkill_before_its_lease_ends() {
        let held = lease(Some(110), false);
        assert_eq!(decide(&held, running(), 100), Action::Wait(Some(at(108))));
        assert!(matches!(decide(&held, running(), 108), Action::Terminate(_)));
        let terminated_at = Running { terminated_at: Some(at(108)), ..running() };
        let kill_at = Moment(at(110).0 - 500_000_000);
        assert_eq!(decide(&held, terminated_at, 109), Action::Wait(Some(kill_at)));
        let leads = LeadTimes::new(Some(TTL), RULES);
        assert!(matches!(
            action_for_program(Some(&held), terminated_at, RULES, leads, kill_at),
            Action::Kill(_)
        ));
        let watchdog_deadline = leads.watchdog_deadline(at(110));
        assert!(
            kill_at < watchdog_deadline && watchdog_deadline < at(110),
            "{watchdog_deadline:?}"
        );
        let killed = Running { killed_at: Some(at(109)), ..terminated_at };
        assert_eq!(decide(&held, killed, 109), Action::Wait(Some(at(110))));
        assert!(matches!(decide(&held, killed, 110), Action::Kill(_)), "repeated");
    }

    #[test]
    fn a_revoked_program_gets_sigterm_and_sigkill_only_if_configured() {
        let pinned = lease(None, true);
        assert!(matches!(decide(&pinned, running(), 100), Action::Terminate(_)));
        let terminated_at = Running { terminated_at: Some(at(100)), ..running() };
        assert_eq!(decide(&pinned, terminated_at, 1_000), Action::Wait(None));
        let rules = Rules { kill: true, ..RULES };
        let leads = LeadTimes::new(Some(TTL), rules);
        let action = |now| action_for_program(Some(&pinned), terminated_at, rules, leads, at(now));
        assert_eq!(action(129), Action::Wait(Some(at(130))));
        assert!(matches!(action(130), Action::Kill(_)));
    }

    #[test]
    fn a_program_without_a_lease_of_its_token_is_killed_at_once() {
        let leads = LeadTimes::new(None, RULES);
        let action = action_for_program(None, running(), RULES, leads, at(1));
        assert!(matches!(action, Action::Kill(_)));
        let old = Running { token: token(0), ..running() };
        assert!(matches!(decide(&lease(Some(110), false), old, 100), Action::Kill(_)));
    }

    #[test]
    fn starts_a_program_only_with_enough_lease_time_and_releases_only_without_a_program() {
        let leads = LeadTimes::new(Some(TTL), RULES);
        let held = lease(Some(110), false);
        let decide = |held, again, now| action_without_program(held, again, leads, at(now));
        assert_eq!(decide(Some(&held), None, 100), Action::Start);
        assert_eq!(decide(Some(&held), Some(at(105)), 100), Action::Wait(Some(at(105))));
        assert_eq!(decide(Some(&held), Some(at(105)), 105), Action::Start);
        assert_eq!(decide(Some(&held), None, 109), Action::Wait(None), "its lease ends soon");
        let revoked = lease(Some(110), true);
        assert_eq!(decide(Some(&revoked), None, 100), Action::Release);
        assert_eq!(decide(None, None, 100), Action::Forget);
    }
}
