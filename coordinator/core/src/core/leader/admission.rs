//! The order in which agents are welcomed. A welcome is the credit for one report. The number of
//! credits is limited, so that after a failover the reports of a whole fleet do not all wait here
//! at once; the smaller the reports, the more credits there are. An agent that waits keeps its
//! place when it dials again.
//!
//! Invariant: a session waits here, or has been welcomed, from its hello to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::message::{CoordinatorMessage, RefusalReason, Terms, Welcome};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, WorkerKey};

use super::{Leader, Timer};
use crate::core::Config;
use crate::effect::Effect;
use crate::event::ConnId;

/// How long a welcomed agent that has not reported uses up a credit.
const CREDIT_MAX: Duration = Duration::from_secs(1);

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

    /// The most reports to expect at once.
    fn most(&self, config: &Config) -> usize {
        let by_size = STREAMS_AHEAD / (self.mean / MEAN_INERTIA).max(1);
        by_size.min(config.small_reports_max).max(config.reports_max)
    }

    /// Lets a connection wait in this place or a new one; returns the place. The given place is
    /// free, because the earlier connection of the worker has ended.
    fn wait(&mut self, place: Option<u64>, conn: ConnId, key: &WorkerKey) -> u64 {
        let place = place.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.waiting.insert(place, (conn, key.clone()));
        self.places.insert(conn, place);
        place
    }

    /// Removes the connection that has waited longest.
    fn next(&mut self) -> Option<(ConnId, WorkerKey)> {
        let (_, (conn, key)) = self.waiting.pop_first()?;
        self.places.remove(&conn);
        Some((conn, key))
    }
}

impl Leader {
    /// The agent's hello was accepted: it is welcomed when its turn comes.
    pub(super) fn await_welcome(&mut self, conn: ConnId, key: &WorkerKey) {
        let place = self.observed(key).and_then(|worker| worker.welcome_place);
        let place = self.admission.wait(place, conn, key);
        if let Some(worker) = self.worker_mut(key) {
            worker.welcome_place = Some(place);
        }
    }

    /// Welcomes as many as there are credits for, in the order in which they came.
    pub(super) fn welcome_waiting(&mut self, now: Moment) {
        self.end_credits();
        let max = self.admission.most(&self.replica.config);
        let ignored = mutation::on(Mutation::CreditsIgnored);
        // A report that is being adopted still counts as waiting.
        while self.admission.credits.len() + self.adoptions.len() < max || ignored {
            let Some((conn, key)) = self.admission.next() else { break };
            self.welcome(conn, &key, now);
        }
        if let (false, Some(at)) =
            (self.admission.waiting.is_empty(), self.admission.credits.values().min())
        {
            self.timers.set(*at, Timer::Credit);
        }
    }

    /// Takes back the credits of agents that have not reported in time.
    fn end_credits(&mut self) {
        let heard = self.replica.heard;
        let ended = self.admission.credits.extract_if(.., |_, until| *until <= heard);
        for (conn, _) in ended.collect::<Vec<_>>() {
            if let Some(key) = self.conns.get(&conn).cloned() {
                self.await_no_report(&key);
                self.note_present(&key, heard);
                if self.is_missing(&key) {
                    self.schedule_give_up(&key);
                }
            }
        }
    }

    /// Plans no longer wait for this worker's report longer than for that of a worker without a
    /// connection.
    pub(super) fn await_no_report(&mut self, key: &WorkerKey) {
        if self.ledger.await_no_report(key) {
            self.timers.set(self.replica.heard, Timer::Unheard(key.clone()));
        }
    }

    fn welcome(&mut self, conn: ConnId, key: &WorkerKey, now: Moment) {
        let epoch = self.ledger.epoch();
        let Some(spec) = self.clusters.get(&key.cluster).map(|cluster| cluster.spec.clone()) else {
            return;
        };
        let terms = Terms { reserve: self.reserve(key, spec.ttl), ..self.replica.terms(&spec) };
        let worker = self.worker_mut(key);
        let Some(session) = worker.and_then(|worker| worker.session.as_mut()) else { return };
        session.writable = false;
        self.admission.credits.insert(conn, now + CREDIT_MAX);
        let (term, cell) = (self.term, self.cell);
        let message = CoordinatorMessage::Welcome(Welcome { epoch, term, cell, terms });
        self.replica.effects.push_back(Effect::Send { conn, message });
    }

    /// Sends an agent to look for another replica if it has reported, and nothing can be granted to
    /// it because the store does not answer: this replica may have been deposed without knowing.
    /// The registration that it waits for continues without its connection.
    pub(super) fn unserved_due(&mut self, conn: ConnId) {
        let Some(key) = self.conns.get(&conn).cloned() else { return };
        let Some(worker) = self.observed(&key) else { return };
        let waits = worker.session.as_ref().is_some_and(|it| it.reported && it.snapshot_due);
        let for_store = !self.is_confirmed(worker) || self.terms_for(&key).is_none();
        if waits && for_store {
            self.closed(conn);
            let message = "the store of leadership does not answer this replica".into();
            self.replica.refuse(conn, RefusalReason::NotLeader(None), message);
        }
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
