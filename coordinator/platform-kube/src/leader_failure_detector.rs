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
        if now >= due && !self.api_unreachable {
            LeaderStatus::Vacant(Vacancy::Silent)
        } else {
            LeaderStatus::Alive(due.min(end).since(now).clamp(EVALUATE_MIN, EVALUATE_MAX))
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
#[path = "leader_failure_detector_tests.rs"]
mod tests;
