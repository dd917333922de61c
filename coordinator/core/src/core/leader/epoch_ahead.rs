//! Agents that report a later epoch than this leader's, or another term of the same number. They
//! refuse grants of a lower epoch, so only a later term can serve them.
//!
//! Invariant: a hello alone never deposes a leader. The core asks the term store, and emits a
//! notice for each such agent if this term is still current there. Another term of the same number
//! shows that the store was restored from a copy. The leader then gives its term up for a number
//! far above it, but rarely: an agent could otherwise stop all others.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::message::RefusalReason;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Epoch, Moment, TermId, WorkerKey};

use super::hello::HelloRefusal;
use crate::effect::Notice;

/// The most by which an agent's epoch may exceed the leader's. Stores count their writes, and no
/// store counts this far; accepting such an epoch would use up the range of epochs.
const EPOCH_LEAP_MAX: u64 = 1 << 40;
/// The least time between two queries to the store.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The least time between two notices of one worker.
const NOTICE_EVERY: Duration = Duration::from_secs(60);
/// How far above a repeated number the next term's is, at least: above all numbers that were given
/// out since the copy, so that they are not repeated as well. On Kubernetes numbers follow the
/// revision of the store, which passes this one within days.
const REPEATED_LEAP: u64 = 1 << 20;
/// The least time between two terms that this replica gives up because of their number.
const STEP_DOWN_EVERY: Duration = Duration::from_secs(60);
/// The most workers that are remembered; agents of further ones are refused without a notice.
const AHEAD_MAX: usize = 1_024;

/// The later terms that agents remember.
#[derive(Clone, Debug, Default)]
pub(super) struct EpochAhead {
    workers: BTreeMap<WorkerKey, SeenEpoch>,
    asked_at: Option<Moment>,
    /// The term is to be given up for one above this epoch.
    wanted_above: Option<Epoch>,
}

/// One worker's agent.
#[derive(Clone, Copy, Debug)]
struct SeenEpoch {
    seen: Epoch,
    /// When its agent said so; none once the store was asked after that.
    unchecked_since: Option<Moment>,
    noticed_at: Option<Moment>,
}

/// Whether the store is to be asked if the term stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TermQuery {
    NotNeeded,
    /// Now. An agent remembers the epoch `seen`.
    Now {
        seen: Epoch,
    },
    /// Not before this moment.
    At(Moment),
}

impl EpochAhead {
    /// Refuses an agent that remembers a later term than `own`. If the reason is
    /// [`RefusalReason::EpochAhead`], [`Self::query`] says when to ask the store.
    pub(super) fn refuse(
        &mut self,
        key: &WorkerKey,
        seen: Epoch,
        own: Epoch,
        now: Moment,
    ) -> HelloRefusal {
        if seen.0.saturating_sub(own.0) > EPOCH_LEAP_MAX {
            let message = format!("{key} remembers an epoch that no coordinator can have had");
            return (RefusalReason::Invalid, message);
        }
        if mutation::on(Mutation::HelloDeposes) {
            self.wanted_above = Some(seen);
            return (RefusalReason::NotLeader(None), "a later leader is known".into());
        }
        let known = self.workers.len();
        let mut seen_epoch = self.workers.get(key).copied();
        if seen_epoch.is_none() && known < AHEAD_MAX {
            seen_epoch = Some(SeenEpoch { seen, unchecked_since: None, noticed_at: None });
        }
        if let Some(seen_epoch) = seen_epoch {
            let seen_epoch = SeenEpoch {
                seen: seen_epoch.seen.max(seen),
                unchecked_since: Some(now),
                ..seen_epoch
            };
            self.workers.insert(key.clone(), seen_epoch);
        }
        let message = format!(
            "{key} remembers epoch {seen}, this leader has {own}: an agent obeys no lower epoch, \
             so a later term must serve it"
        );
        (RefusalReason::EpochAhead, message)
    }

    /// Refuses an agent that has obeyed another leader of this number. Returns also the notice that
    /// the term is to be given up for one with a number far above, unless this replica gave one up
    /// for that reason only lately: at `stepped_down_at`.
    pub(super) fn refuse_repeated(
        &mut self,
        key: &WorkerKey,
        epoch: Epoch,
        term: TermId,
        stepped_down_at: &mut Option<Moment>,
        now: Moment,
    ) -> (HelloRefusal, Option<Notice>) {
        let message = format!(
            "{key} has obeyed another leader of epoch {epoch}: the store of leadership was put \
             back from a copy, so only a later term can serve it"
        );
        let refusal = (RefusalReason::EpochAhead, message);
        if stepped_down_at.is_some_and(|last| now.since(last) < STEP_DOWN_EVERY) {
            return (refusal, None);
        }
        *stepped_down_at = Some(now);
        self.wanted_above = Some(above_repeated(epoch, term));
        (refusal, Some(Notice::EpochRepeated { worker: key.clone(), epoch }))
    }

    /// Takes the epoch above which an agent needs the next term; none if the term is not to be
    /// given up.
    pub(super) fn take_wanted_above(&mut self) -> Option<Epoch> {
        self.wanted_above.take()
    }

    /// Whether to ask the store if this term stands, because an agent has remembered a later one
    /// since it was asked; at most once per `ASK_EVERY`.
    pub(super) fn query(&mut self, now: Moment) -> TermQuery {
        let waiting = self.workers.values().filter(|worker| worker.unchecked_since.is_some());
        let Some(seen) = waiting.map(|worker| worker.seen).max() else {
            return TermQuery::NotNeeded;
        };
        match self.asked_at {
            Some(asked) if now.since(asked) < ASK_EVERY => TermQuery::At(asked + ASK_EVERY),
            Some(_) | None => {
                self.asked_at = Some(now);
                TermQuery::Now { seen }
            }
        }
    }

    /// The term stood in the store at that moment: returns a notice for each agent that remembered
    /// a later one before it.
    pub(super) fn term_stands(&mut self, asked_at: Moment) -> Vec<Notice> {
        let mut notices = Vec::new();
        for (key, worker) in &mut self.workers {
            if worker.unchecked_since.is_none_or(|since| since > asked_at) {
                continue;
            }
            worker.unchecked_since = None;
            if worker.noticed_at.is_none_or(|noticed| asked_at.since(noticed) >= NOTICE_EVERY) {
                worker.noticed_at = Some(asked_at);
                notices.push(Notice::EpochAhead { worker: key.clone(), seen: worker.seen });
            }
        }
        notices
    }

    /// The worker's agent remembers no later term, or the worker is gone.
    pub(super) fn forget(&mut self, key: &WorkerKey) {
        self.workers.remove(key);
    }
}

/// The next term's number is above this. If the same copy is put back again, another term of this
/// number chooses again: each adds bits of its identity, so that the two numbers differ.
fn above_repeated(epoch: Epoch, term: TermId) -> Epoch {
    let spread = if mutation::on(Mutation::RaisedAlike) { 0 } else { term.0 % REPEATED_LEAP };
    Epoch(epoch.0.saturating_add(REPEATED_LEAP + spread))
}
