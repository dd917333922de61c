//! One replica's view of the desired state, and whether anybody should go by it. Where the least
//! doubt is left it says so instead of answering.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::view::Leadership;
use leasehold_types::{ClusterName, Moment};
use tokio::sync::watch;
use tokio::time::sleep;

use super::demand::{Demands, demands};
use crate::gate::Gate;
use crate::health::Health;
use crate::platform::Freshness;

/// How often a view is looked at again without a reason: it also ages.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the driver publishes of its core.
#[derive(Clone, Debug)]
pub struct PublishedState {
    /// What is wanted; none until it has been read.
    pub desired: Option<Arc<Desired>>,
    /// Who leads.
    pub leadership: Leadership,
    /// The workers that classes have to have as their shares lie now; a leader's only.
    pub held: Arc<BTreeMap<ClusterName, u32>>,
}

impl Default for PublishedState {
    fn default() -> Self {
        let leadership = Leadership::StandsBy(None);
        Self { desired: None, leadership, held: Arc::default() }
    }
}

/// Why a view must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewUnavailable {
    /// The replica starts, stops or hangs.
    #[error("this replica does not serve: {0}")]
    Unready(String),
    /// The platform does not say what is wanted.
    #[error("{0}")]
    Unconfirmed(String),
    /// This replica knows no leader.
    #[error("no leader is known: a change of leader is under way")]
    NoLeader,
}

/// The demands that were computed last, and their inputs.
#[derive(Debug)]
struct CachedDemands {
    desired: Arc<Desired>,
    held: Arc<BTreeMap<ClusterName, u32>>,
    demands: Arc<Demands>,
}

/// The view of one replica.
#[derive(Debug)]
pub struct View {
    outlook: watch::Receiver<PublishedState>,
    freshness: watch::Receiver<Freshness>,
    gate: Arc<Gate>,
    health: Arc<Health>,
    /// What the classes of the newest desired state are asked for.
    known: Mutex<Option<CachedDemands>>,
}

impl View {
    /// A view of what the driver publishes.
    pub fn new(
        outlook: watch::Receiver<PublishedState>,
        freshness: watch::Receiver<Freshness>,
        gate: Arc<Gate>,
        health: Arc<Health>,
    ) -> Self {
        Self { outlook, freshness, gate, health, known: Mutex::default() }
    }

    /// What each class is asked for.
    ///
    /// # Errors
    /// Why this view must not be used.
    pub fn demands(&self, now: Moment) -> Result<Arc<Demands>, ViewUnavailable> {
        self.health.ready(now).map_err(ViewUnavailable::Unready)?;
        if let Some(why) = self.freshness.borrow().stale(now) {
            return Err(ViewUnavailable::Unconfirmed(why));
        }
        let PublishedState { desired, leadership, held } = self.outlook.borrow().clone();
        let is_led = match leadership {
            Leadership::Leads(_) => self.gate.term().is_some_and(|term| now < term.until),
            Leadership::StandsBy(leader) => leader.is_some(),
        };
        if !is_led {
            return Err(ViewUnavailable::NoLeader);
        }
        let unread = || ViewUnavailable::Unready("the manifests have not been read yet".into());
        Ok(self.reckon(desired.ok_or_else(unread)?, held))
    }

    /// Reckons once for each desired state, and for each word on the workers that are held.
    fn reckon(&self, desired: Arc<Desired>, held: Arc<BTreeMap<ClusterName, u32>>) -> Arc<Demands> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |known: &&CachedDemands| {
            Arc::ptr_eq(&known.desired, &desired) && Arc::ptr_eq(&known.held, &held)
        };
        if let Some(known) = known.as_ref().filter(same) {
            return Arc::clone(&known.demands);
        }
        let demands = Arc::new(demands(&desired, &held));
        *known = Some(CachedDemands { desired, held, demands: Arc::clone(&demands) });
        demands
    }

    /// Notifies of possible changes of the view.
    pub fn changes(&self) -> Changes {
        Changes { outlook: self.outlook.clone(), freshness: self.freshness.clone() }
    }
}

/// Notifies of possible changes of a view.
#[derive(Debug)]
pub struct Changes {
    outlook: watch::Receiver<PublishedState>,
    freshness: watch::Receiver<Freshness>,
}

impl Changes {
    /// Waits for what may be a change. Fails where the driver has ended.
    pub async fn next(&mut self) -> Result<(), ()> {
        tokio::select! {
            changed = self.outlook.changed() => changed.map_err(|_| ()),
            Ok(()) = self.freshness.changed() => Ok(()),
            () = sleep(LOOK_EVERY) => Ok(()),
        }
    }
}
