//! The memory of long messages. A message of more than a few KiB is read only once its bytes are
//! in the budget of its namespace and in that of all, and it counts there until the driver has
//! handled it. So agents that begin long messages, and do not end them, keep only those of their
//! own namespace waiting.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use leasehold_types::limits::{MESSAGE_BYTES_MAX, NamespaceShare};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a message that needs no permit: a beat, or a report of some fifty streams.
pub(super) const SHORT_BYTES_MAX: u32 = 4 * 1024;
/// Bytes of all long messages that are read at a time. By default a namespace has a quarter of it.
const TOTAL_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;

/// The budget of all sessions.
#[derive(Debug)]
pub(super) struct MessageBudget {
    all: Arc<Semaphore>,
    per_namespace: usize,
    of_namespace: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The budget as one session sees it.
#[derive(Clone, Debug)]
pub(super) struct SessionBudget(Arc<Session>);

#[derive(Debug)]
struct Session {
    budget: Arc<MessageBudget>,
    /// Of the worker's namespace, once it is known and if it has one.
    namespace: OnceLock<Arc<Semaphore>>,
    /// Of the long message that is being read.
    permits: Mutex<Vec<OwnedSemaphorePermit>>,
    /// That message had to wait.
    waited: AtomicBool,
}

impl MessageBudget {
    pub(super) fn new(share: NamespaceShare) -> Arc<Self> {
        // Any agent may send one message of the longest.
        let per_namespace = share.of(TOTAL_BYTES_MAX).max(MESSAGE_BYTES_MAX);
        let (all, of_namespace) = (Arc::new(Semaphore::new(TOTAL_BYTES_MAX)), Mutex::default());
        Arc::new(Self { all, per_namespace, of_namespace })
    }

    pub(super) fn session(self: &Arc<Self>) -> SessionBudget {
        let (permits, waited) = (Mutex::default(), AtomicBool::new(false));
        let (budget, namespace) = (Arc::clone(self), OnceLock::new());
        SessionBudget(Arc::new(Session { budget, namespace, permits, waited }))
    }

    fn namespace(&self, name: &str) -> Arc<Semaphore> {
        let mut known = self.of_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = known.get(name).and_then(Weak::upgrade) {
            return budget;
        }
        known.retain(|_, budget| budget.strong_count() > 0);
        let budget = Arc::new(Semaphore::new(self.per_namespace));
        known.insert(name.to_owned(), Arc::downgrade(&budget));
        budget
    }
}

impl SessionBudget {
    /// The session is of a worker in this namespace.
    pub(super) fn set_namespace(&self, name: &str) {
        let _ = self.0.namespace.set(self.0.budget.namespace(name));
    }

    /// Waits until a message of this length may be read. Its permits are [taken](Self::take) with
    /// the message.
    pub(super) async fn acquire(self, bytes: u32) {
        let budget = &self.0.budget;
        // The decoder refuses what is longer.
        let bytes = bytes.min(MESSAGE_BYTES_MAX as u32);
        // The namespace first: who waits there takes nothing from others.
        for semaphore in self.0.namespace.get().into_iter().chain([&budget.all]) {
            let permit = match Arc::clone(semaphore).try_acquire_many_owned(bytes) {
                Ok(permit) => permit,
                Err(_) => {
                    self.0.waited.store(true, Ordering::Relaxed);
                    let permit = Arc::clone(semaphore).acquire_many_owned(bytes).await;
                    permit.expect("a budget is never closed")
                }
            };
            self.permits().push(permit);
        }
    }

    /// The permits of the message that was read last; none if it was short.
    pub(super) fn take(&self) -> Vec<OwnedSemaphorePermit> {
        std::mem::take(&mut *self.permits())
    }

    /// Whether a message has waited since this was asked last.
    pub(super) fn has_waited(&self) -> bool {
        self.0.waited.swap(false, Ordering::Relaxed)
    }

    fn permits(&self) -> MutexGuard<'_, Vec<OwnedSemaphorePermit>> {
        self.0.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LONGEST: u32 = MESSAGE_BYTES_MAX as u32;

    fn budget() -> Arc<MessageBudget> {
        MessageBudget::new(NamespaceShare::of_percent(10).expect("a percentage"))
    }

    fn session(budget: &Arc<MessageBudget>, namespace: &str) -> SessionBudget {
        let session = budget.session();
        session.set_namespace(namespace);
        session
    }

    fn acquires(session: &SessionBudget, bytes: u32) -> bool {
        session.clone().acquire(bytes).now_or_never().is_some()
    }

    #[test]
    fn a_namespace_that_does_not_end_its_messages_stops_no_other() {
        let budget = budget();
        let (stalled, same, other) =
            (session(&budget, "a"), session(&budget, "a"), session(&budget, "b"));
        assert!(acquires(&stalled, LONGEST), "one message of the longest is always possible");
        assert!(!acquires(&same, 1), "the namespace has no more");
        assert!(acquires(&other, LONGEST), "another namespace has a budget of its own");
        let rest = ["d", "e"].map(|namespace| session(&budget, namespace));
        assert!(rest.iter().all(|session| acquires(session, LONGEST)));
        assert!(!acquires(&session(&budget, "c"), 1), "the budget of all is used");
        drop(other.take());
        assert!(acquires(&session(&budget, "c"), 1));
        drop(stalled.take());
        assert!(acquires(&same, LONGEST - 1));
        assert_eq!(
            (same.has_waited(), same.has_waited(), other.has_waited()),
            (true, false, false)
        );
    }

    #[test]
    fn a_session_that_ends_gives_its_bytes_back_and_leaves_no_entry() {
        let budget = budget();
        let ended = session(&budget, "a");
        assert!(acquires(&ended, LONGEST));
        drop(ended);
        assert!(acquires(&session(&budget, "a"), LONGEST));
        let kept = session(&budget, "b");
        assert_eq!(budget.of_namespace.lock().expect("the lock").len(), 1, "only b is there");
        drop(kept);
    }
}
