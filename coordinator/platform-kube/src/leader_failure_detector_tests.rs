//! What a standby makes of a leader that answers, and of one that does not.

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
    let detector = LeaderFailureDetector::new("me_1".into(), second, TimeBounds::default(), start);
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
    assert_eq!(vacant, Some((13_050, Vacancy::Silent)), "heartbeats of another epoch do not count");
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
    assert_eq!(standby.detector.leader().and_then(|leader| leader.epoch), Some(Epoch(8)));
    standby.detector.api_failed();
    standby.detector.on_watch_event(Some(old), standby.at(30));
    assert_eq!(standby.detector.leader().and_then(|leader| leader.epoch), Some(Epoch(7)));
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
