//! How much one user may ask at a time, so that the others are answered beside. Callers that need
//! not say who they are share the limits of all.

use std::sync::Arc;

use leasehold_driver::access::Caller;
use leasehold_driver::keyed_limit::{KeyedLimit, KeyedPermit};
use leasehold_driver::order::{OrderKind, WorkerOrder};
use leasehold_types::WorkerKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::WATCHERS_MAX;
use super::error::AdminError;
use crate::connections::AllowedCall;
use crate::grpc::credentials::Authorized;

/// The most calls of one user that are not answered yet.
const CALLS_PER_USER_MAX: usize = 16;
/// The most watches of one user, of each kind.
const WATCHES_PER_USER_MAX: usize = 16;

/// The limits of calls.
#[derive(Debug)]
pub(super) struct CallLimits(Arc<KeyedLimit<String>>);

/// The limits of watches of one kind.
#[derive(Clone, Debug)]
pub(super) struct WatchLimits {
    all: Arc<Semaphore>,
    of_user: Arc<KeyedLimit<String>>,
}

/// A caller that may do what it wants; its call counts until this is dropped.
#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) caller: Caller,
    connection: Option<AllowedCall>,
    _of_user: Option<KeyedPermit<String>>,
}

/// The place of one watch, which keeps its connection open.
#[derive(Debug)]
pub(super) struct WatchPermit {
    _of_all: OwnedSemaphorePermit,
    _of_user: Option<KeyedPermit<String>>,
    _connection: Option<AllowedCall>,
}

impl Allowed {
    /// The caller's order about a worker.
    pub(super) fn order(&self, kind: OrderKind, worker: &WorkerKey) -> WorkerOrder {
        WorkerOrder { kind, worker: worker.clone(), by: self.caller.clone() }
    }
}

impl CallLimits {
    pub(super) fn new() -> Self {
        Self(KeyedLimit::new(usize::MAX, CALLS_PER_USER_MAX))
    }

    /// Counts a call.
    pub(super) fn begin(&self, authorized: Authorized) -> Result<Allowed, AdminError> {
        let Authorized { caller, connection } = authorized;
        let of_user = of_user(&self.0, &caller, "calls of this user", CALLS_PER_USER_MAX)?;
        Ok(Allowed { caller, connection, _of_user: of_user })
    }
}

impl WatchLimits {
    pub(super) fn new() -> Self {
        let all = Arc::new(Semaphore::new(WATCHERS_MAX));
        Self { all, of_user: KeyedLimit::new(usize::MAX, WATCHES_PER_USER_MAX) }
    }

    /// Counts the watch that this call begins.
    pub(super) fn begin(&self, call: Allowed) -> Result<WatchPermit, AdminError> {
        let Allowed { caller, connection, .. } = call;
        let of_user =
            of_user(&self.of_user, &caller, "watches of this user", WATCHES_PER_USER_MAX)?;
        let of_all = Arc::clone(&self.all).try_acquire_owned();
        let of_all = of_all.map_err(|_| AdminError::TooMany("watchers", WATCHERS_MAX))?;
        Ok(WatchPermit { _of_all: of_all, _of_user: of_user, _connection: connection })
    }

    /// How many are open.
    pub(super) fn open(&self) -> usize {
        WATCHERS_MAX - self.all.available_permits()
    }
}

/// A permit of this user; `None` for a caller without a name.
fn of_user(
    limit: &Arc<KeyedLimit<String>>,
    caller: &Caller,
    what: &'static str,
    most: usize,
) -> Result<Option<KeyedPermit<String>>, AdminError> {
    match caller {
        Caller::User(name) => {
            limit.take(name.clone()).map(Some).ok_or(AdminError::TooMany(what, most))
        }
        Caller::Address(_) | Caller::Unknown | Caller::Operator => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Authorized {
        Authorized { caller: Caller::User(name.into()), connection: None }
    }

    #[test]
    fn one_user_leaves_places_for_others() {
        let (calls, watches) = (CallLimits::new(), WatchLimits::new());
        let called: Vec<_> = (0..CALLS_PER_USER_MAX).map(|_| calls.begin(user("ada"))).collect();
        assert!(called.iter().all(Result::is_ok));
        let refused = calls.begin(user("ada")).expect_err("one too many");
        assert!(refused.to_string().contains("calls of this user"), "{refused}");
        assert!(calls.begin(user("bob")).is_ok());
        drop(called);
        assert!(calls.begin(user("ada")).is_ok());

        let watch = |name| calls.begin(user(name)).and_then(|call| watches.begin(call));
        let watched: Vec<_> = (0..WATCHES_PER_USER_MAX).map(|_| watch("ada")).collect();
        assert!(watched.iter().all(Result::is_ok) && watch("ada").is_err());
        assert!(watch("bob").is_ok());
        assert_eq!(watches.open(), WATCHES_PER_USER_MAX, "the refused ones hold nothing");
    }

    #[test]
    fn callers_without_a_name_share_what_there_is() {
        let (calls, watches) = (CallLimits::new(), WatchLimits::new());
        let watch = || {
            let somebody = Authorized { caller: Caller::Unknown, connection: None };
            calls.begin(somebody).and_then(|call| watches.begin(call))
        };
        let watched: Vec<_> = (0..WATCHERS_MAX).map(|_| watch()).collect();
        assert!(watched.iter().all(Result::is_ok));
        assert!(watch().is_err());
    }
}
