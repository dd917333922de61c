//! The Lease and the pods as the stores of a term.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryChange, EntryOutcome, Listing, Namespaces, RenewalOutcome,
};
use leasehold_driver::clock;
use leasehold_platform::campaign::{ExposureStore, LossReason, Successor, TermStore};
use leasehold_types::{Epoch, Moment};

use crate::api_call::call_together;
use crate::lease_lock::{HeldLease, LeaseLock, LeaseRead, RenewOutcome};
use crate::pods::Pods;

/// How long a release may take: the process that ends waits for it.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_millis(900);

/// The Lease of one term. A renewal works on a copy of it and puts that back.
pub(crate) struct TermLease {
    lock: LeaseLock,
    held: Arc<Mutex<HeldLease>>,
    /// The Lease after another replica took it.
    lost_to: Arc<Mutex<Option<LeaseRead>>>,
}

/// The exposures on pods, written under one term.
pub(crate) struct PodExposures {
    epoch: Epoch,
    pods: Pods,
}

impl TermLease {
    pub(crate) fn new(lock: LeaseLock, held: HeldLease) -> Self {
        Self { lock, held: Arc::new(Mutex::new(held)), lost_to: Arc::default() }
    }

    fn held(&self) -> HeldLease {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl PodExposures {
    pub(crate) fn new(epoch: Epoch, pods: Pods) -> Self {
        Self { epoch, pods }
    }
}

impl TermStore for TermLease {
    fn renew(&mut self) -> BoxFuture<'static, (Moment, Result<RenewalOutcome, String>)> {
        let (lock, shared) = (self.lock.clone(), Arc::clone(&self.held));
        let lost_to = Arc::clone(&self.lost_to);
        let mut held = self.held();
        Box::pin(async move {
            let renewed = lock.renew(&mut held).await;
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = held;
            match renewed {
                Ok(RenewOutcome::Renewed { sent_at }) => (sent_at, Ok(RenewalOutcome::Leads)),
                Ok(RenewOutcome::Lost(read)) => {
                    *lost_to.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
                    (clock::now(), Ok(RenewalOutcome::Deposed))
                }
                Err(error) => (clock::now(), Err(error.to_string())),
            }
        })
    }

    async fn on_lost(self, reason: LossReason, _until: Moment) -> Successor {
        let epoch = self.held().epoch.0;
        if reason == LossReason::Expired {
            tracing::warn!(epoch, "leadership has expired: it could not be renewed");
            return Successor::default();
        }
        let found = self.lost_to.lock().unwrap_or_else(PoisonError::into_inner).take();
        let record = found.and_then(|found| found.record);
        let by = record.as_ref().and_then(|record| record.holder.clone());
        let newest = record.as_ref().and_then(|record| record.epoch);
        tracing::info!(epoch, by, newest = newest.map(|epoch| epoch.0), "deposed");
        let theirs = record.filter(|record| !self.lock.holds(record));
        let address = theirs.and_then(|record| self.lock.other_address(&record));
        Successor { address, epoch: newest }
    }

    async fn release(self, above: Epoch) -> Result<(), String> {
        let released = call_together(RELEASE_TIMEOUT, self.lock.release(self.held(), above)).await;
        released.map_err(|error| error.to_string())
    }
}

impl ExposureStore for PodExposures {
    fn list(&mut self, namespaces: Namespaces) -> BoxFuture<'static, Result<Listing, String>> {
        let pods = self.pods.clone();
        Box::pin(async move {
            pods.list_exposed(&namespaces).await.map_err(|error| format!("{error:#}"))
        })
    }

    fn write(
        &mut self,
        attempts: Vec<EntryAttempt>,
    ) -> BoxFuture<'static, Vec<(EntryChange, EntryOutcome)>> {
        let (pods, epoch) = (self.pods.clone(), self.epoch);
        Box::pin(async move {
            let mut outcomes = Vec::new();
            for attempt in attempts {
                let change = attempt.change.clone();
                let written = pods.write_entry(epoch, attempt).await;
                outcomes.push((change, written));
            }
            outcomes
        })
    }
}
