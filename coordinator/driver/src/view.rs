//! One replica's view of the desired state, for autoscalers. If the view may be out of date it
//! returns an error instead of an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::view::Leadership;
use leasehold_types::{ClusterName, Moment};
use tokio::sync::watch;
use tokio::time::sleep;

use super::demand::{Demands, demands};
use crate::freshness::Freshness;
use crate::health::Health;
use crate::term_guard::TermGuard;

/// How often a view is checked without a notification, because it becomes stale by itself.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The part of its core's state that the driver publishes.
#[derive(Clone, Debug, Default)]
pub struct PublishedState {
    /// The desired state; `None` until it has been read.
    pub desired: Option<Arc<Desired>>,
    /// The workers that each class's present shares cannot spare; empty unless this replica leads.
    pub required: Arc<BTreeMap<ClusterName, u32>>,
}

/// Why a view must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewUnavailable {
    /// The replica starts, stops or hangs.
    #[error("this replica is not ready: {0}")]
    Unready(String),
    /// The platform has not confirmed the desired state.
    #[error("{0}")]
    Unconfirmed(String),
    /// The platform forbids to read a namespace.
    #[error("the coordinator may not read the objects of namespace {0}: restore its rights there")]
    Unreadable(String),
    /// This replica knows no leader.
    #[error("this replica knows no leader now, because leadership is changing; try again")]
    NoLeader,
}

/// The demands that were computed last, and their inputs.
#[derive(Debug)]
struct CachedDemands {
    desired: Arc<Desired>,
    required: Arc<BTreeMap<ClusterName, u32>>,
    demands: Arc<Demands>,
}

/// The view of one replica.
#[derive(Debug)]
pub struct PublishedView {
    published: watch::Receiver<PublishedState>,
    leadership: watch::Receiver<Leadership>,
    freshness: watch::Receiver<Freshness>,
    term_guard: Arc<TermGuard>,
    health: Arc<Health>,
    cached: Mutex<Option<CachedDemands>>,
}

impl PublishedView {
    /// A view of what the driver publishes.
    pub fn new(
        published: watch::Receiver<PublishedState>,
        leadership: watch::Receiver<Leadership>,
        freshness: watch::Receiver<Freshness>,
        term_guard: Arc<TermGuard>,
        health: Arc<Health>,
    ) -> Self {
        Self { published, leadership, freshness, term_guard, health, cached: Mutex::default() }
    }

    /// Who leads.
    pub fn leadership(&self) -> Leadership {
        self.leadership.borrow().clone()
    }

    /// Who leads, now and from now on.
    pub fn watch_leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// The demand for each class.
    ///
    /// # Errors
    /// Why this view must not be used.
    pub fn demands(&self, now: Moment) -> Result<Arc<Demands>, ViewUnavailable> {
        self.health.ready(now).map_err(ViewUnavailable::Unready)?;
        if let Some(why) = self.freshness.borrow().stale(now) {
            return Err(ViewUnavailable::Unconfirmed(why));
        }
        let PublishedState { desired, required } = self.published.borrow().clone();
        let is_led = match self.leadership() {
            Leadership::Leader(_) => self.term_guard.term().is_some_and(|term| now < term.until),
            Leadership::Standby(leader) => leader.is_some(),
        };
        if !is_led {
            return Err(ViewUnavailable::NoLeader);
        }
        let unread = || ViewUnavailable::Unready("the manifests have not been read yet".into());
        Ok(self.cached_demands(desired.ok_or_else(unread)?, required))
    }

    /// The time since the platform last confirmed the desired state; `None` before it has.
    pub(crate) fn desired_state_age(&self, now: Moment) -> Option<Duration> {
        self.freshness.borrow().age(now)
    }

    /// Why the desired state may be outdated, for people; `None` if it was confirmed lately.
    pub fn stale(&self, now: Moment) -> Option<String> {
        self.freshness.borrow().stale(now)
    }

    /// The namespaces that the platform forbids to read.
    pub(crate) fn unreadable(&self) -> BTreeSet<String> {
        self.freshness.borrow().unreadable.clone()
    }

    /// Whether the desired state of a class is confirmed together with that of all others.
    ///
    /// # Errors
    /// The platform forbids to read its namespace.
    pub fn check_readable(&self, class: &ClusterName) -> Result<(), ViewUnavailable> {
        let freshness = self.freshness.borrow();
        match class.parts().0 {
            Some(namespace) if freshness.unreadable.contains(namespace) => {
                Err(ViewUnavailable::Unreadable(namespace.to_owned()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The demands, computed only when the inputs have changed.
    fn cached_demands(
        &self,
        desired: Arc<Desired>,
        required: Arc<BTreeMap<ClusterName, u32>>,
    ) -> Arc<Demands> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |cached: &&CachedDemands| {
            Arc::ptr_eq(&cached.desired, &desired) && Arc::ptr_eq(&cached.required, &required)
        };
        if let Some(cached) = cached.as_ref().filter(same) {
            return Arc::clone(&cached.demands);
        }
        let demands = Arc::new(demands(&desired, &required));
        *cached = Some(CachedDemands { desired, required, demands: Arc::clone(&demands) });
        demands
    }

    /// Notifies of possible changes of the view.
    pub fn changes(&self) -> Changes {
        Changes {
            published: self.published.clone(),
            leadership: self.leadership.clone(),
            freshness: self.freshness.clone(),
        }
    }
}

/// Notifies of possible changes of a view.
#[derive(Debug)]
pub struct Changes {
    published: watch::Receiver<PublishedState>,
    leadership: watch::Receiver<Leadership>,
    freshness: watch::Receiver<Freshness>,
}

impl Changes {
    /// Waits for a possible change. Fails if the driver has ended.
    pub async fn next(&mut self) -> Result<(), ()> {
        tokio::select! {
            changed = self.published.changed() => changed.map_err(|_| ()),
            Ok(()) = self.leadership.changed() => Ok(()),
            Ok(()) = self.freshness.changed() => Ok(()),
            () = sleep(RECHECK_INTERVAL) => Ok(()),
        }
    }
}
