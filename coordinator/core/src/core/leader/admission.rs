//! The order in which agents are welcomed. A welcome is the credit for one report. The number of
//! credits is limited, so that after a failover the reports of a whole fleet do not all wait here
//! at once; the smaller the reports, the more credits there are. An agent that waits keeps its
//! place when it dials again.
//!
//! Invariant: a session waits here, or has been welcomed, from its hello to its end.

use std::collections::BTreeMap;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::{Moment, WorkerKey};

use crate::core::Config;
use crate::event::ConnId;

/// The most streams of all expected reports, if more than `reports_max` are expected.
const STREAMS_AHEAD: usize = 65_536;
/// The weight of the past in the mean size of reports: each report moves the mean by one part in
/// this many.
const MEAN_INERTIA: usize = 16;

/// The agents that wait for a welcome, and those that were welcomed and have not reported.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// The last place given out.
    last: u64,
    waiting: BTreeMap<u64, (ConnId, WorkerKey)>,
    /// The places of waiting connections, also of those whose worker is no longer known.
    places: BTreeMap<ConnId, u64>,
    /// Until when each welcome counts as a report to come.
    credits: BTreeMap<ConnId, Moment>,
    /// The mean size of reports, in streams times [`MEAN_INERTIA`]. Starts at the maximum, so that
    /// the first reports come a few at a time.
    mean: usize,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            last: 0,
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            credits: BTreeMap::new(),
            mean: STREAMS_PER_WORKER_MAX * MEAN_INERTIA,
        }
    }
}

impl Admission {
    /// Forgets a connection, and frees its place and its credit.
    pub(super) fn end(&mut self, conn: ConnId) {
        self.credits.remove(&conn);
        if let Some(place) = self.places.remove(&conn) {
            self.waiting.remove(&place);
        }
    }

    /// Whether a connection waits here, or was welcomed and is expected to report soon.
    pub(super) fn awaits(&self, conn: ConnId) -> bool {
        self.places.contains_key(&conn) || self.credits.contains_key(&conn)
    }

    /// A report with this many streams has arrived.
    pub(super) fn reported(&mut self, conn: ConnId, streams: usize) {
        self.credits.remove(&conn);
        self.mean = self.mean - self.mean / MEAN_INERTIA + streams;
    }

    /// Whether one more agent may be welcomed while this many reports are being adopted.
    pub(super) fn has_credit(&self, adopting: usize, config: &Config) -> bool {
        self.credits.len() + adopting < self.most(config)
    }

    /// The most reports to expect at once.
    fn most(&self, config: &Config) -> usize {
        let by_size = STREAMS_AHEAD / (self.mean / MEAN_INERTIA).max(1);
        by_size.min(config.small_reports_max).max(config.reports_max)
    }

    /// Lets a connection wait in this place or a new one; returns the place. The given place is
    /// free, because the earlier connection of the worker has ended.
    pub(super) fn wait(&mut self, place: Option<u64>, conn: ConnId, key: &WorkerKey) -> u64 {
        let place = place.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.waiting.insert(place, (conn, key.clone()));
        self.places.insert(conn, place);
        place
    }

    /// Removes the connection that has waited longest.
    pub(super) fn next(&mut self) -> Option<(ConnId, WorkerKey)> {
        let (_, (conn, key)) = self.waiting.pop_first()?;
        self.places.remove(&conn);
        Some((conn, key))
    }

    /// Lends a credit to a connection that is welcomed, until it has reported or until then.
    pub(super) fn lend(&mut self, conn: ConnId, until: Moment) {
        self.credits.insert(conn, until);
    }

    /// Takes back the credits that have ended before `heard`. Returns their connections.
    pub(super) fn end_credits(&mut self, heard: Moment) -> Vec<ConnId> {
        let ended = self.credits.extract_if(.., |_, until| *until <= heard);
        ended.map(|(conn, _)| conn).collect()
    }

    /// When the next credit ends, if a connection waits for one.
    pub(super) fn next_credit_end(&self) -> Option<Moment> {
        if self.waiting.is_empty() { None } else { self.credits.values().min().copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(admission: &mut Admission, reports: usize, streams: usize) -> usize {
        (0..reports).for_each(|_| admission.reported(ConnId(0), streams));
        admission.most(&Config::default())
    }

    #[test]
    fn the_smaller_reports_are_the_more_may_be_on_their_way() {
        let Config { reports_max, small_reports_max, .. } = Config::default();
        let mut admission = Admission::default();
        assert_eq!(after(&mut admission, 0, 0), reports_max, "nothing is known");
        assert_eq!(after(&mut admission, 16, 2), reports_max, "too few reports so far");
        assert_eq!(after(&mut admission, 200, 2), small_reports_max);
        let of_200_streams = after(&mut admission, 200, 200);
        assert!((300..=360).contains(&of_200_streams), "{of_200_streams}");
        assert_eq!(after(&mut admission, 16, STREAMS_PER_WORKER_MAX), reports_max);
        assert_eq!(after(&mut admission, 200, STREAMS_PER_WORKER_MAX), reports_max);
        assert_eq!(after(&mut admission, 1_000, 0), small_reports_max);
    }
}
