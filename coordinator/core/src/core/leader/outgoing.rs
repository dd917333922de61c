//! Which agents have a message to get, and in which order their messages are composed.
//!
//! A worker is marked with [`Outgoing::mark`] whenever something may have changed that its agent
//! is to be sent. Its next message is composed from the whole present state, so a worker that is
//! marked twice gets one message, and one that is marked in vain gets none.
//!
//! ```text
//!             mark                     next                     the message is composed
//!   (nothing) ────▶ marked, any order ────▶ taken, by priority ────▶
//!                      ▲                                        │ its streams are not free
//!                      └──────────── unblock ───── blocked ◀────┘
//! ```
//!
//! A worker leaves the queue even if nothing can be sent to it now. What its message waits for
//! marks it again: its connection, a renewal of leadership, or the registration of its exposure.
//! Beats are answered from a queue of their own ([`Outgoing::renewals`]), so that no lease ends
//! because others are sent long messages.
//!
//! Invariant: no worker is taken twice before every worker that was marked meanwhile is taken once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;

use leasehold_types::WorkerKey;

use super::round_robin::RoundRobin;

/// The workers whose agents have messages to get.
#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing {
    /// Workers that may have a message to get.
    marked: RoundRobin<WorkerKey>,
    /// Those of them that were taken together, in the order of their messages.
    taken: VecDeque<WorkerKey>,
    /// Workers whose newest beat is not answered.
    unanswered: RoundRobin<WorkerKey>,
    /// Workers with planned streams that were not free when their message was composed.
    blocked: BTreeSet<WorkerKey>,
}

impl Outgoing {
    /// The worker may have a message to get.
    pub(super) fn mark(&mut self, key: WorkerKey) {
        self.marked.insert(key);
    }

    /// These workers may have a message to get.
    pub(super) fn mark_all(&mut self, keys: impl IntoIterator<Item = WorkerKey>) {
        self.marked.extend(keys);
    }

    /// The worker's beat is not answered, or its connection takes a message again: both its answer
    /// and a message may follow.
    pub(super) fn mark_unanswered(&mut self, key: WorkerKey) {
        self.unanswered.insert(key.clone());
        self.marked.insert(key);
    }

    /// The worker's message is composed, and streams that it is to have were not free.
    pub(super) fn block(&mut self, key: WorkerKey) {
        self.blocked.insert(key);
    }

    /// The worker no longer waits for streams.
    pub(super) fn unblock(&mut self, key: &WorkerKey) {
        self.blocked.remove(key);
    }

    /// The workers that wait for streams after this one, at most `most`.
    pub(super) fn blocked_after(&self, after: Option<&WorkerKey>, most: usize) -> Vec<WorkerKey> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.blocked.range::<WorkerKey, _>((from, Bound::Unbounded)).take(most).cloned().collect()
    }

    /// The worker whose message is composed next. At most `most` workers are taken together; those
    /// with the highest `priority` come first.
    pub(super) fn next(
        &mut self,
        most: usize,
        priority: impl Fn(&WorkerKey) -> u64,
    ) -> Option<WorkerKey> {
        if self.taken.is_empty() {
            let mut keys = self.marked.take(most);
            keys.sort_by_cached_key(|key| Reverse(priority(key)));
            self.taken = keys.into();
        }
        self.taken.pop_front()
    }

    /// Takes at most `most` workers whose beats are to be answered, although the turn of their
    /// messages has not come.
    pub(super) fn renewals(&mut self, most: usize) -> Vec<WorkerKey> {
        if self.is_empty() {
            // Every message has answered its agent's newest beat.
            self.unanswered = RoundRobin::default();
        }
        self.unanswered.take(most)
    }

    /// Whether no message is left to compose.
    pub(super) fn is_empty(&self) -> bool {
        self.marked.is_empty() && self.taken.is_empty()
    }

    /// The worker is gone, so nothing is sent to it. One that is taken already is passed over.
    pub(super) fn remove(&mut self, key: &WorkerKey) {
        self.marked.remove(key);
        self.unanswered.remove(key);
        self.blocked.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, WorkerName};

    use super::*;

    fn key(worker: u64) -> WorkerKey {
        WorkerKey {
            cluster: ClusterName::new("builds").expect("a valid name"),
            worker: WorkerName::new(&format!("worker-{worker}")).expect("a valid name"),
        }
    }

    #[test]
    fn a_worker_that_is_marked_twice_gets_one_message_and_the_highest_priority_comes_first() {
        let mut outgoing = Outgoing::default();
        outgoing.mark_all([key(1), key(2), key(3), key(2)]);
        let priority = |worker: &WorkerKey| u64::from(*worker == key(3));
        assert_eq!(outgoing.next(9, priority), Some(key(3)));
        outgoing.mark(key(3));
        assert_eq!(outgoing.next(9, priority), Some(key(1)), "workers taken before come first");
        assert_eq!(outgoing.next(9, priority), Some(key(2)));
        assert!(!outgoing.is_empty());
        assert_eq!(outgoing.next(9, priority), Some(key(3)));
        assert_eq!(outgoing.next(9, priority), None);
        assert!(outgoing.is_empty());
    }

    #[test]
    fn a_beat_is_answered_apart_only_while_messages_are_left_to_compose() {
        let mut outgoing = Outgoing::default();
        outgoing.mark_unanswered(key(1));
        outgoing.mark_unanswered(key(2));
        assert_eq!(outgoing.next(1, |_| 0), Some(key(1)));
        assert_eq!(outgoing.renewals(1), [key(1)]);
        assert_eq!(outgoing.next(1, |_| 0), Some(key(2)));
        assert!(outgoing.renewals(9).is_empty(), "its message has answered the beat");
    }

    #[test]
    fn a_worker_that_is_gone_waits_for_nothing() {
        let mut outgoing = Outgoing::default();
        outgoing.mark_unanswered(key(1));
        outgoing.block(key(1));
        outgoing.block(key(2));
        outgoing.remove(&key(1));
        assert!(outgoing.is_empty());
        assert_eq!(outgoing.blocked_after(None, 9), [key(2)]);
        assert!(outgoing.blocked_after(Some(&key(2)), 9).is_empty());
    }
}
