//! How much one user may ask at a time, so that the others are answered beside. A namespace may
//! have as many service accounts as it likes, so these together have a limit, too. Callers that
//! need not say who they are share the limits of all.

use std::sync::Arc;

use leasehold_driver::access::Caller;
use leasehold_driver::keyed_limit::{KeyedLimit, KeyedPermit};
use leasehold_driver::order::{OrderKind, WorkerOrder};
use leasehold_types::WorkerKey;
use leasehold_types::limits::NamespaceShare;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::WATCHERS_MAX;
use super::error::AdminError;
use crate::connections::AllowedCall;
use crate::grpc::credentials::Authorized;

/// The most calls of one user that are not answered yet.
const CALLS_PER_USER_MAX: usize = 16;
/// The calls of which the service accounts of one namespace together may have a share: as many as
/// the driver's queue for people has places.
const CALLS_MAX: usize = 64;
/// The most watches of one user, of each kind.
const WATCHES_PER_USER_MAX: usize = 16;
/// The most plans that are made at once: each has a copy of all streams of its cluster.
const PLANS_MAX: usize = 2;

/// The limits of calls.
#[derive(Debug)]
pub(super) struct CallLimits(CallerLimits);

/// The limits of watches of one kind.
#[derive(Clone, Debug)]
pub(super) struct WatchLimits {
    all: Arc<Semaphore>,
    of_caller: CallerLimits,
}

/// The limits of plans.
#[derive(Debug)]
pub(super) struct PlanLimits {
    all: Arc<Semaphore>,
    of_caller: Arc<KeyedLimit<String>>,
}

/// The limits of one user, and of all service accounts of one namespace.
#[derive(Clone, Debug)]
struct CallerLimits {
    of_user: Arc<KeyedLimit<String>>,
    of_tenant: Arc<KeyedLimit<String>>,
    per_user: usize,
    per_tenant: usize,
}

/// The parts of a caller's limits that one call has; none of a caller without a name.
type CallerPermits = Option<[KeyedPermit<String>; 2]>;

/// A caller that may do what it wants; its call counts until this is dropped.
#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) caller: Caller,
    connection: Option<AllowedCall>,
    _of_caller: CallerPermits,
}

/// The place of one watch, which keeps its connection open.
#[derive(Debug)]
pub(super) struct WatchPermit {
    _of_all: OwnedSemaphorePermit,
    _of_caller: CallerPermits,
    _connection: Option<AllowedCall>,
}

/// The place of one plan.
#[derive(Debug)]
pub(super) struct PlanPermit {
    _of_all: OwnedSemaphorePermit,
    _of_caller: Option<KeyedPermit<String>>,
}

impl Allowed {
    /// The caller's order about a worker.
    pub(super) fn order(&self, kind: OrderKind, worker: &WorkerKey) -> WorkerOrder {
        WorkerOrder { kind, worker: worker.clone(), by: self.caller.clone() }
    }
}

impl CallLimits {
    /// `share` is that of one namespace.
    pub(super) fn new(share: NamespaceShare) -> Self {
        Self(CallerLimits::new(CALLS_PER_USER_MAX, share.of(CALLS_MAX)))
    }

    /// Counts a call.
    pub(super) fn begin(&self, authorized: Authorized) -> Result<Allowed, AdminError> {
        let Authorized { caller, connection } = authorized;
        let of_caller = self.0.take(&caller, ["calls of this user", "calls of this namespace"])?;
        Ok(Allowed { caller, connection, _of_caller: of_caller })
    }
}

impl WatchLimits {
    /// `share` is that of one namespace.
    pub(super) fn new(share: NamespaceShare) -> Self {
        let all = Arc::new(Semaphore::new(WATCHERS_MAX));
        Self { all, of_caller: CallerLimits::new(WATCHES_PER_USER_MAX, share.of(WATCHERS_MAX)) }
    }

    /// Counts the watch that this call begins.
    pub(super) fn begin(&self, call: Allowed) -> Result<WatchPermit, AdminError> {
        let Allowed { caller, connection, .. } = call;
        let what = ["watches of this user", "watches of this namespace"];
        let of_caller = self.of_caller.take(&caller, what)?;
        let of_all = Arc::clone(&self.all).try_acquire_owned();
        let of_all = of_all.map_err(|_| AdminError::TooMany("watchers", WATCHERS_MAX))?;
        Ok(WatchPermit { _of_all: of_all, _of_caller: of_caller, _connection: connection })
    }

    /// How many are open.
    pub(super) fn open(&self) -> usize {
        WATCHERS_MAX - self.all.available_permits()
    }
}

impl PlanLimits {
    pub(super) fn new() -> Self {
        let all = Arc::new(Semaphore::new(PLANS_MAX));
        Self { all, of_caller: KeyedLimit::new(usize::MAX, 1) }
    }

    /// Counts a plan of this caller.
    pub(super) fn begin(&self, caller: &Caller) -> Result<PlanPermit, AdminError> {
        let refused = || AdminError::TooMany("plans of this user or namespace", 1);
        let take = |tenant| self.of_caller.take(tenant).ok_or_else(refused);
        let of_caller = caller.tenant().map(take).transpose()?;
        let of_all = Arc::clone(&self.all).try_acquire_owned();
        let of_all = of_all.map_err(|_| AdminError::TooMany("plans", PLANS_MAX))?;
        Ok(PlanPermit { _of_all: of_all, _of_caller: of_caller })
    }
}

impl CallerLimits {
    /// A namespace may have no less than one of its users.
    fn new(per_user: usize, per_namespace: usize) -> Self {
        let per_tenant = per_namespace.max(per_user);
        let [of_user, of_tenant] =
            [per_user, per_tenant].map(|most| KeyedLimit::new(usize::MAX, most));
        Self { of_user, of_tenant, per_user, per_tenant }
    }

    /// The permits of this caller; `what` names what is counted of a user and of a namespace.
    fn take(
        &self,
        caller: &Caller,
        [of_user, of_namespace]: [&'static str; 2],
    ) -> Result<CallerPermits, AdminError> {
        let (Caller::User(name), Some(tenant)) = (caller, caller.tenant()) else { return Ok(None) };
        let user = self.of_user.take(name.clone());
        let user = user.ok_or(AdminError::TooMany(of_user, self.per_user))?;
        let tenant = self.of_tenant.take(tenant);
        let tenant = tenant.ok_or(AdminError::TooMany(of_namespace, self.per_tenant))?;
        Ok(Some([user, tenant]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: NamespaceShare = NamespaceShare::WHOLE;

    fn user(name: &str) -> Authorized {
        Authorized { caller: Caller::User(name.into()), connection: None }
    }

    #[test]
    fn one_user_leaves_places_for_others() {
        let (calls, watches) = (CallLimits::new(SHARE), WatchLimits::new(SHARE));
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
        let (calls, watches) = (CallLimits::new(SHARE), WatchLimits::new(SHARE));
        let watch = || {
            let somebody = Authorized { caller: Caller::Unknown, connection: None };
            calls.begin(somebody).and_then(|call| watches.begin(call))
        };
        let watched: Vec<_> = (0..WATCHERS_MAX).map(|_| watch()).collect();
        assert!(watched.iter().all(Result::is_ok));
        assert!(watch().is_err());
    }

    #[test]
    fn the_accounts_of_one_namespace_leave_places_for_others() {
        let share = NamespaceShare::of_percent(50).expect("a percentage");
        let (calls, watches) = (CallLimits::new(share), WatchLimits::new(share));
        let account = |namespace: &str, number: usize| {
            user(&format!("system:serviceaccount:{namespace}:account-{number}"))
        };
        let called: Vec<_> = (0..32).map(|number| calls.begin(account("ci", number))).collect();
        assert!(called.iter().all(Result::is_ok));
        let refused = calls.begin(account("ci", 32)).expect_err("one too many");
        assert!(refused.to_string().contains("calls of this namespace: at most 32"), "{refused}");
        assert!(calls.begin(account("cd", 0)).is_ok() && calls.begin(user("ada")).is_ok());
        drop(called);

        let watch = |by| calls.begin(by).and_then(|call| watches.begin(call));
        let watched: Vec<_> = (0..32).map(|number| watch(account("ci", number))).collect();
        assert!(watched.iter().all(Result::is_ok));
        let refused = watch(account("ci", 32)).expect_err("one too many");
        assert!(refused.to_string().contains("watches of this namespace"), "{refused}");
        assert!(watch(account("cd", 0)).is_ok());
    }

    #[test]
    fn one_caller_has_one_plan_at_a_time() {
        let plans = PlanLimits::new();
        let caller = |name: &str| user(name).caller;
        let _made = plans.begin(&caller("system:serviceaccount:ci:one")).expect("a plan");
        let refused = plans.begin(&caller("system:serviceaccount:ci:two")).expect_err("a second");
        assert!(refused.to_string().contains("plans of this user or namespace"), "{refused}");
        let other = plans.begin(&caller("ada")).expect("another user's plan");
        assert!(plans.begin(&caller("bob")).is_err(), "no more at once");
        drop(other);
        assert!(plans.begin(&caller("bob")).is_ok());
        assert!(plans.begin(&Caller::Unknown).is_ok(), "it shares what there is");
    }
}
