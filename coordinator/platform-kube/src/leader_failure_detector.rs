//! Detects that the leader has failed, from the Lease and from the connection to the leader's port.
//! The result is only a hint: a standby must still take the Lease by compare-and-swap. A wrong
//! result costs a change of leader and nothing else.

use std::time::Duration;

use leasehold_types::{Epoch, Moment, TimeBounds};

use super::lease_lock::{LeaseRead, LeaseRecord};

/// The longest interval between two evaluations.
const EVALUATE_MAX: Duration = Duration::from_millis(250);
/// The longest time between two renewals of a leader.
const RENEW_MAX: Duration = Duration::from_secs(2);
/// A running leader that has not renewed for this time and this many intervals cannot reach the API
/// server, although this replica can.
const CANNOT_RENEW_AFTER: Duration = Duration::from_secs(20);
const CANNOT_RENEW_INTERVALS: u32 = 10;
/// A leader renews at least so often in the time that its leadership lasts.
const RENEWALS_PER_LEADERSHIP: u32 = 10;

/// How long a leader of this leadership lets pass between two renewals.
pub(crate) fn renewal_interval(leadership: Duration) -> Duration {
    (leadership / RENEWALS_PER_LEADERSHIP).min(RENEW_MAX)
}

/// A standby's failure detector.
#[derive(Debug)]
pub(crate) struct LeaderFailureDetector {
    /// How this process is named in a Lease that it holds.
    holder: String,
    takeover_after: Duration,
    bounds: TimeBounds,
    /// The Lease as last observed; `None` before the first read.
    lease: Option<Option<ObservedLease>>,
    /// The longest lease duration that was observed.
    longest_duration: Duration,
    /// The highest epoch that was seen.
    highest_epoch: Epoch,
    /// The last call to the API server failed.
    api_unreachable: bool,
    /// Since when this process has observed the leader without a pause.
    observing_since: Moment,
    evaluated_at: Option<Moment>,
}

#[derive(Debug)]
struct ObservedLease {
    record: LeaseRecord,
    /// When it was last seen to be renewed.
    renewed_at: Moment,
    /// When its leader was first seen.
    since: Moment,
    /// When its leader last sent a heartbeat.
    heartbeat_at: Option<Moment>,
    /// The connection has broken after a heartbeat, and no heartbeat has arrived since.
    disconnected: bool,
    /// After that, a new connection was refused.
    connection_refused: bool,
}

/// What the connection to the leader reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaderSignal {
    /// It leads this term.
    Heartbeat(Epoch),
    /// The connection has broken.
    Disconnected,
    /// The leader's address refuses connections.
    ConnectionRefused,
}

/// Whether there is a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaderStatus {
    /// Nothing has been seen yet.
    Unknown,
    /// A leader is alive; evaluate again after this time.
    Alive(Duration),
    /// No leader is alive, for this reason.
    Vacant(Vacancy),
}

/// Why there is no leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacancy {
    /// There is no Lease.
    NoLease,
    /// The Lease was released.
    Released,
    /// This process holds the Lease but does not lead: the answer to its write was lost, or the
    /// release failed.
    OwnLease,
    /// The Lease has expired.
    Expired,
    /// The leader's process has ended.
    ProcessEnded,
    /// The leader sends no heartbeat and does not renew the Lease.
    Silent,
    /// The leader is alive but cannot renew, although the API server answers this replica: the
    /// leader can neither admit new pods nor learn which are gone.
    CannotRenew,
}

impl LeaderFailureDetector {
    pub(crate) fn new(
        holder: String,
        takeover_after: Duration,
        bounds: TimeBounds,
        now: Moment,
    ) -> Self {
        Self {
            holder,
            takeover_after,
            bounds,
            lease: None,
            longest_duration: Duration::ZERO,
            highest_epoch: Epoch::default(),
            api_unreachable: false,
            observing_since: now,
            evaluated_at: None,
        }
    }

    /// Takes the Lease from a consistent read.
    pub(crate) fn on_read(&mut self, read: &LeaseRead, now: Moment) {
        self.observe(read.record.clone(), now);
    }

    /// Takes the Lease from the watch, which may be stale.
    pub(crate) fn on_watch_event(&mut self, record: Option<LeaseRecord>, now: Moment) {
        let last = self.lease.as_ref().and_then(Option::as_ref);
        let stale = last.zip(record.as_ref()).is_some_and(|(last, record)| {
            // After an outage the store's versions may have changed, for example by a restore.
            !self.api_unreachable && record.version <= last.record.version
        });
        if !stale {
            self.observe(record, now);
        }
    }

    /// The API server does not answer: until it does, renewals cannot be observed.
    pub(crate) fn api_failed(&mut self) {
        self.api_unreachable = true;
    }

    /// Takes a signal of the connection to the leader.
    pub(crate) fn on_signal(&mut self, signal: LeaderSignal, now: Moment) {
        let Some(observed) = self.lease.as_mut().and_then(Option::as_mut) else { return };
        match signal {
            LeaderSignal::Heartbeat(epoch) if observed.record.epoch == Some(epoch) => {
                observed.heartbeat_at = Some(now);
                observed.disconnected = false;
                observed.connection_refused = false;
            }
            // A heartbeat of another term does not count.
            LeaderSignal::Heartbeat(_) => {}
            LeaderSignal::Disconnected => observed.disconnected = observed.heartbeat_at.is_some(),
            LeaderSignal::ConnectionRefused => observed.connection_refused = observed.disconnected,
        }
    }

    /// The Lease, if another process holds it.
    pub(crate) fn leader(&self) -> Option<&LeaseRecord> {
        let observed = self.lease.as_ref()?.as_ref()?;
        let holder = observed.record.holder.as_ref()?;
        (*holder != self.holder).then_some(&observed.record)
    }

    /// The highest epoch that was seen.
    pub(crate) fn highest_epoch(&self) -> Epoch {
        self.highest_epoch
    }

    /// The longest lease duration that was observed.
    pub(crate) fn longest_duration(&self) -> Duration {
        self.longest_duration
    }

    /// Evaluates whether there is a leader.
    pub(crate) fn evaluate(&mut self, now: Moment) -> LeaderStatus {
        let last = self.evaluated_at.replace(now);
        if last.is_some_and(|last| now.since(last) > self.takeover_after.max(EVALUATE_MAX * 2)) {
            // This process was suspended or starved, and may have missed heartbeats.
            self.observing_since = now;
        }
        let Some(lease) = &self.lease else { return LeaderStatus::Unknown };
        let Some(observed) = lease else { return LeaderStatus::Vacant(Vacancy::NoLease) };
        let Some(holder) = &observed.record.holder else {
            return LeaderStatus::Vacant(Vacancy::Released);
        };
        if *holder == self.holder {
            return LeaderStatus::Vacant(Vacancy::OwnLease);
        }
        let end = observed.renewed_at + self.bounds.outlast(observed.record.duration);
        if now >= end {
            return LeaderStatus::Vacant(Vacancy::Expired);
        }
        if observed.connection_refused {
            return LeaderStatus::Vacant(Vacancy::ProcessEnded);
        }
        let heartbeat_at =
            observed.heartbeat_at.unwrap_or(observed.since).max(self.observing_since);
        let silent_at = heartbeat_at + self.takeover_after;
        let interval = renewal_interval(observed.record.duration);
        let still = self.takeover_after.max(interval + interval / 2);
        let still_at = observed.renewed_at.max(self.observing_since) + still;
        let cannot_renew = CANNOT_RENEW_AFTER.max(interval * CANNOT_RENEW_INTERVALS);
        let cannot_renew_at = observed.renewed_at.max(self.observing_since) + cannot_renew;
        if now >= cannot_renew_at && !self.api_unreachable {
            return LeaderStatus::Vacant(Vacancy::CannotRenew);
        }
        let due = silent_at.max(still_at);
        match now >= due && !self.api_unreachable {
            true => LeaderStatus::Vacant(Vacancy::Silent),
            false => LeaderStatus::Alive(due.min(end).since(now).clamp(EVALUATE_MIN, EVALUATE_MAX)),
        }
    }

    fn observe(&mut self, record: Option<LeaseRecord>, now: Moment) {
        if std::mem::take(&mut self.api_unreachable) {
            self.observing_since = now;
        }
        let last = self.lease.take().flatten();
        let Some(record) = record else {
            self.lease = Some(None);
            return;
        };
        self.longest_duration = self.longest_duration.max(record.duration).max(record.earlier);
        self.highest_epoch = self.highest_epoch.max(record.epoch.unwrap_or_default());
        let observed = match last {
            Some(last)
                if last.record.holder == record.holder && last.record.epoch == record.epoch =>
            {
                let moved = last.record.renewed != record.renewed;
                let renewed_at = if moved { now } else { last.renewed_at };
                ObservedLease { record, renewed_at, ..last }
            }
            _ => ObservedLease {
                record,
                renewed_at: now,
                since: now,
                heartbeat_at: None,
                disconnected: false,
                connection_refused: false,
            },
        };
        self.lease = Some(Some(observed));
    }
}

/// The shortest time between two evaluations, so that they never spin.
const EVALUATE_MIN: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// A standby with a default takeover of one second; moments are milliseconds from its start.
    struct Standby {
        detector: LeaderFailureDetector,
        start: Moment,
        renewals: i64,
        version: u64,
    }

    const LEADERSHIP: Duration = Duration::from_secs(300);

    fn standby() -> Standby {
        let start = Moment(1_000_000_000_000);
        let second = Duration::from_secs(1);
        let detector =
            LeaderFailureDetector::new("me_1".into(), second, TimeBounds::default(), start);
        Standby { detector, start, renewals: 0, version: 0 }
    }

    impl Standby {
        fn at(&self, ms: u64) -> Moment {
            self.start + Duration::from_millis(ms)
        }

        fn record(&mut self, holder: &str, epoch: u64) -> LeaseRecord {
            self.version += 1;
            LeaseRecord::example(self.version, holder, Epoch(epoch), LEADERSHIP, self.renewals)
        }

        /// The watch shows a renewal by this holder.
        fn renewed(&mut self, ms: u64, holder: &str, epoch: u64) {
            self.renewals += 1;
            self.shown(ms, holder, epoch);
        }

        /// The watch shows the Lease without a new renewal.
        fn shown(&mut self, ms: u64, holder: &str, epoch: u64) {
            let record = self.record(holder, epoch);
            let now = self.at(ms);
            self.detector.on_watch_event(Some(record), now);
        }

        fn signals(&mut self, ms: u64, signal: LeaderSignal) {
            let now = self.at(ms);
            self.detector.on_signal(signal, now);
        }

        fn vacancy(&mut self, ms: u64) -> Option<Vacancy> {
            let now = self.at(ms);
            match self.detector.evaluate(now) {
                LeaderStatus::Vacant(why) => Some(why),
                LeaderStatus::Alive(_) | LeaderStatus::Unknown => None,
            }
        }

        /// Evaluates every 50 ms; returns the first vacancy and when it was found.
        fn passes(&mut self, from: u64, to: u64) -> Option<(u64, Vacancy)> {
            let mut times = (from..=to).step_by(50);
            times.find_map(|ms| self.vacancy(ms).map(|why| (ms, why)))
        }

        /// The leader renews every two seconds, and sends heartbeats if `heartbeats` is set.
        fn lives(&mut self, from: u64, to: u64, heartbeats: bool) {
            for ms in (from..=to).step_by(250) {
                if ms % 2_000 == 0 {
                    self.renewed(ms, "other_1", 7);
                }
                if heartbeats {
                    self.signals(ms, LeaderSignal::Heartbeat(Epoch(7)));
                }
                assert_eq!(self.vacancy(ms), None, "at {ms} ms");
            }
        }
    }

    #[test]
    fn is_unknown_before_the_first_read_of_the_lease() {
        let mut standby = standby();
        assert_eq!(standby.vacancy(100_000), None);
        standby.detector.on_watch_event(None, standby.at(100_001));
        assert_eq!(standby.vacancy(100_001), Some(Vacancy::NoLease));
    }

    #[test]
    fn a_released_or_own_lease_is_vacant_at_once() {
        let mut standby = standby();
        standby.renewed(0, "other_1", 7);
        assert_eq!(standby.vacancy(1), None);
        standby.shown(2, "", 7);
        assert_eq!(standby.vacancy(2), Some(Vacancy::Released));
        standby.renewed(3, "me_1", 8);
        assert_eq!(standby.vacancy(3), Some(Vacancy::OwnLease));
        // The same replica before its restart counts as another holder.
        standby.renewed(4, "me_0", 9);
        assert_eq!(standby.vacancy(4), None);
        assert_eq!(standby.detector.highest_epoch(), Epoch(9));
    }

    #[test]
    fn a_leader_lives_as_long_as_it_renews_or_sends_heartbeats() {
        let mut standby = standby();
        standby.lives(0, 60_000, false);
        standby.lives(60_250, 120_000, true);
        standby.detector.api_failed();
        for ms in (120_250..=400_000).step_by(250) {
            standby.signals(ms, LeaderSignal::Heartbeat(Epoch(7)));
            assert_eq!(
                standby.vacancy(ms),
                None,
                "at {ms} ms: heartbeats arrive, the API server is unreachable"
            );
        }
    }

    #[test]
    fn replaces_a_leader_that_alone_cannot_reach_the_api_server() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        for ms in (10_250..30_000).step_by(250) {
            standby.signals(ms, LeaderSignal::Heartbeat(Epoch(7)));
            assert_eq!(standby.vacancy(ms), None, "at {ms} ms");
        }
        standby.signals(30_000, LeaderSignal::Heartbeat(Epoch(7)));
        assert_eq!(standby.vacancy(30_000), Some(Vacancy::CannotRenew));
    }

    #[test]
    fn a_leader_whose_process_has_ended_is_replaced_at_once() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        standby.signals(10_100, LeaderSignal::Disconnected);
        assert_eq!(standby.vacancy(10_100), None, "a broken connection alone is not enough");
        standby.signals(10_110, LeaderSignal::ConnectionRefused);
        assert_eq!(standby.vacancy(10_110), Some(Vacancy::ProcessEnded));
        standby.signals(10_120, LeaderSignal::Heartbeat(Epoch(7)));
        assert_eq!(standby.vacancy(10_120), None, "a heartbeat ends the vacancy");
    }

    #[test]
    fn a_leader_that_was_never_reachable_counts_as_alive() {
        let mut standby = standby();
        standby.renewed(0, "other_1", 7);
        standby.signals(10, LeaderSignal::ConnectionRefused);
        standby.signals(20, LeaderSignal::Disconnected);
        standby.signals(30, LeaderSignal::ConnectionRefused);
        assert_eq!(standby.vacancy(40), None);
    }

    #[test]
    fn signals_of_one_leader_do_not_count_for_the_next() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        standby.signals(10_001, LeaderSignal::Disconnected);
        standby.renewed(10_002, "third_1", 8);
        standby.signals(10_003, LeaderSignal::ConnectionRefused);
        assert_eq!(standby.vacancy(10_003), None);
        standby.signals(10_004, LeaderSignal::Heartbeat(Epoch(7)));
        let vacant = standby.passes(10_050, 60_000);
        assert_eq!(
            vacant,
            Some((13_050, Vacancy::Silent)),
            "heartbeats of another epoch do not count"
        );
    }

    #[test]
    fn a_leader_without_heartbeats_and_renewals_is_silent() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        // The last renewal was at 10 s: one and a half intervals later.
        assert_eq!(standby.passes(10_050, 60_000), Some((13_000, Vacancy::Silent)));

        let mut standby = self::standby();
        standby.lives(0, 11_750, true);
        for ms in (11_800..14_000).step_by(100) {
            standby.signals(ms, LeaderSignal::Heartbeat(Epoch(7)));
            assert_eq!(standby.vacancy(ms), None);
        }
        // The last heartbeat was at 13.9 s.
        assert_eq!(standby.passes(13_950, 60_000), Some((14_900, Vacancy::Silent)));
    }

    #[test]
    fn a_heartbeat_of_another_epoch_does_not_count() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        for ms in (10_050..12_950).step_by(50) {
            standby.signals(ms, LeaderSignal::Heartbeat(Epoch(0)));
            assert_eq!(standby.vacancy(ms), None);
        }
        assert_eq!(standby.passes(12_950, 60_000), Some((13_000, Vacancy::Silent)));
    }

    #[test]
    fn no_leader_counts_as_silent_while_the_api_server_is_unreachable() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        standby.detector.api_failed();
        assert_eq!(standby.passes(10_050, 130_000), None);
        standby.shown(130_050, "other_1", 7);
        assert_eq!(standby.passes(130_100, 200_000), Some((133_050, Vacancy::Silent)));
    }

    #[test]
    fn a_lease_expires_by_the_clock_of_the_standby() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        standby.detector.api_failed();
        let end = 10_000 + 300_000 * 101 / 100 + 500;
        assert_eq!(standby.passes(10_050, 400_000), Some((end, Vacancy::Expired)));
    }

    #[test]
    fn a_standby_that_was_suspended_restarts_its_observation() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        assert_eq!(standby.vacancy(60_000), None);
        assert_eq!(standby.passes(60_050, 90_000), Some((63_000, Vacancy::Silent)));
    }

    #[test]
    fn ignores_a_stale_event_unless_the_api_server_was_unreachable() {
        let mut standby = standby();
        let old = standby.record("other_1", 7);
        standby.renewed(10, "third_1", 8);
        standby.detector.on_watch_event(Some(old.clone()), standby.at(20));
        assert_eq!(standby.detector.leader().and_then(|it| it.epoch), Some(Epoch(8)));
        standby.detector.api_failed();
        standby.detector.on_watch_event(Some(old), standby.at(30));
        assert_eq!(standby.detector.leader().and_then(|it| it.epoch), Some(Epoch(7)));
        assert_eq!(standby.detector.highest_epoch(), Epoch(8), "the highest epoch never falls");
    }

    #[test]
    fn a_write_that_renews_nothing_does_not_count_as_a_renewal() {
        let mut standby = standby();
        standby.lives(0, 10_000, true);
        for ms in (10_050..13_000).step_by(50) {
            standby.shown(ms, "other_1", 7);
            assert_eq!(standby.vacancy(ms), None);
        }
        standby.shown(13_000, "other_1", 7);
        assert_eq!(standby.vacancy(13_000), Some(Vacancy::Silent));
    }
}
