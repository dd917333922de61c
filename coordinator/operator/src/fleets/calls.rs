//! The calls that reconciliations of fleets make: a limited number at once, with turns for
//! namespaces.
//!
//! **Invariant**: a fleet whose calls are not all done is not planned again, because a plan counts
//! on what an earlier one has started. No other fleet waits for them.

use std::collections::BTreeMap;

use leasehold_platform_kube::pods::Pods;
use leasehold_types::ClusterName;
use tokio::task::JoinSet;

use super::action::{Action, ActionOutcome};
use super::fleet::Fleet;
use super::turns::Turns;
use crate::applier::Applier;

/// Calls in flight at once.
const CONCURRENT_CALLS_MAX: usize = 16;

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    /// The fleet that it is for, by name.
    pub(super) name: ClusterName,
    /// The same; `None` for a pod whose fleet was deleted.
    pub(super) fleet: Option<Fleet>,
    pub(super) action: Action,
}

/// The calls that wait or run.
pub(super) struct FleetCalls {
    applier: Applier,
    pods: Pods,
    waiting: Turns<Call>,
    running: JoinSet<(Call, ActionOutcome)>,
    /// How many calls of each fleet are not done.
    open: BTreeMap<ClusterName, usize>,
}

impl FleetCalls {
    pub(super) fn new(applier: Applier, pods: Pods) -> Self {
        let (waiting, running) = (Turns::default(), JoinSet::new());
        Self { applier, pods, waiting, running, open: BTreeMap::new() }
    }

    /// Adds the calls of a fleet.
    pub(super) fn add(&mut self, name: &ClusterName, fleet: Option<&Fleet>, actions: Vec<Action>) {
        if actions.is_empty() {
            return;
        }
        *self.open.entry(name.clone()).or_default() += actions.len();
        for action in actions {
            let (rank, namespace) = (action.rank(), action.target.namespace().to_owned());
            let call = Call { name: name.clone(), fleet: fleet.cloned(), action };
            self.waiting.push(rank, &namespace, call);
        }
        self.start();
    }

    /// Whether all calls of a fleet are done.
    pub(super) fn are_done(&self, name: &ClusterName) -> bool {
        !self.open.contains_key(name)
    }

    /// Waits for the next call that is done; `None` while none runs.
    pub(super) async fn next_done(&mut self) -> Option<(Call, ActionOutcome)> {
        let (call, outcome) = match self.running.join_next().await? {
            Ok(done) => done,
            Err(failed) => std::panic::resume_unwind(failed.into_panic()),
        };
        if let Some(open) = self.open.get_mut(&call.name) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&call.name);
            }
        }
        self.start();
        Some((call, outcome))
    }

    /// Drops the calls that wait, and cancels those that run.
    pub(super) fn cancel_all(&mut self) {
        *self = Self::new(self.applier.clone(), self.pods.clone());
    }

    fn start(&mut self) {
        while self.running.len() < CONCURRENT_CALLS_MAX
            && let Some(call) = self.waiting.next()
        {
            let (applier, pods) = (self.applier.clone(), self.pods.clone());
            self.running.spawn(async move {
                let outcome = call.action.execute(&applier, &pods).await;
                (call, outcome)
            });
        }
    }
}
