//! A replica of the coordinator: the real core, its driver and its part in the election.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::view::Leadership;
use leasehold_types::{ClusterName, Epoch, Moment};

use crate::system::clock::{Clock, Real};
use crate::system::driver::Driver;
use crate::system::election::Election;

/// One replica.
#[derive(Debug)]
pub(crate) struct Replica {
    /// Counts its lives.
    pub run: u64,
    /// Its host's clock.
    pub clock: Clock,
    /// Its process is stopped until then.
    pub paused_until: Real,
    /// The driver between the core and the world.
    pub driver: Driver,
    /// The core, while the process lives.
    pub core: Option<Core>,
    /// Its part in the election.
    pub election: Election,
    /// The newest desired state that it has.
    pub desired_version: u64,
    /// How many its core has put in force.
    pub desired_taken: u64,
    /// The one in force.
    pub in_force: Arc<Desired>,
    /// The newest desired state itself.
    pub desired: Arc<Desired>,
    /// The budgets in the one that is in force.
    pub jobs_max: BTreeMap<ClusterName, u32>,
    /// When the core is woken.
    pub wake: Option<Moment>,
}

impl Replica {
    /// A replica that is not up.
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            run: 0,
            clock,
            paused_until: 0,
            driver: Driver::new(clock, 0),
            core: None,
            election: Election::default(),
            desired_version: 0,
            desired_taken: 0,
            in_force: Arc::default(),
            desired: Arc::default(),
            jobs_max: BTreeMap::new(),
            wake: None,
        }
    }

    /// Whether its process lives.
    pub(crate) fn is_up(&self) -> bool {
        self.core.is_some()
    }

    /// The term that its core believes to lead.
    pub(crate) fn leads(&self) -> Option<Epoch> {
        match self.core.as_ref()?.leadership() {
            Leadership::Leader(epoch) => Some(epoch),
            Leadership::Standby(_) => None,
        }
    }
}
