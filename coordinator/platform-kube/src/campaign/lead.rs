//! Leading: the Lease and the pods as the stores of a term.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::campaign::{self, Attempt, Change, LeadSettings, Taken, Written};
use leasehold_coordinator_core::event::Event;
use leasehold_coordinator_core::exposure::Entry;
use leasehold_driver::clock;
use leasehold_driver::leading::{Answer, Ended, Leading, Stores};
use leasehold_types::{Epoch, Moment, WorkerKey};
use tokio::time::timeout;

use super::{Campaign, Next};
use crate::leader_failure_detector::renewal_interval;
use crate::lease_lock::{HeldLease, LeaseLock, LeaseRead, RenewOutcome};
use crate::pods::Pods;

/// Pods that are written at once.
const WRITTEN_AT_ONCE_MAX: usize = 16;
/// How long the list of workers may take.
const LIST_WITHIN: Duration = Duration::from_secs(30);

/// The stores of one term. A renewal borrows the place and gives it back.
struct TermObjects {
    epoch: Epoch,
    election: LeaseLock,
    pods: Pods,
    held: Arc<Mutex<HeldLease>>,
    /// The Lease as it was when it was another's.
    lost_to: Arc<Mutex<Option<LeaseRead>>>,
    trouble: Option<String>,
}

impl Campaign {
    pub(super) async fn lead(&mut self, held: HeldLease, sent_at: Moment) -> Next {
        let leadership = self.settings.leadership;
        let settings = LeadSettings {
            leadership,
            renew_every: renewal_interval(leadership),
            batch_max: 1,
            batches_max: WRITTEN_AT_ONCE_MAX,
        };
        let taken = Taken { epoch: held.epoch, sent_at, predecessor_end: held.predecessor_end };
        let mut stores = TermObjects {
            epoch: held.epoch,
            election: self.election.clone(),
            pods: self.pods.clone(),
            held: Arc::new(Mutex::new(held)),
            lost_to: Arc::default(),
            trouble: self.trouble.take(),
        };
        let (events, commands) = (&self.events, &mut self.commands);
        let progress = Arc::clone(&self.progress);
        let mut leading = Leading::new(settings, taken, &mut stores, events, commands, &progress);
        let ended = leading.run().await;
        drop(leading);
        self.trouble = stores.trouble.take();
        let epoch = stores.epoch.0;
        match ended {
            Ended::DriverGone => Next::End,
            Ended::Deposed => self.deposed(&stores).await,
            Ended::Expired => {
                tracing::warn!(epoch, "leadership is over: it could not be renewed");
                self.stand_by_after(None).await
            }
            Ended::GivenUp { above } => {
                self.stay_above(above);
                self.release(stores.held()).await;
                self.stand_by_after(None).await
            }
            Ended::Resign(done) => {
                self.release(stores.held()).await;
                tracing::info!(epoch, "resigned");
                let _ = done.send(());
                Next::End
            }
        }
    }

    async fn deposed(&mut self, stores: &TermObjects) -> Next {
        let found = stores.lost_to.lock().unwrap_or_else(PoisonError::into_inner).take();
        let record = found.and_then(|found| found.record);
        let by = record.as_ref().and_then(|record| record.holder.clone());
        let newest = record.as_ref().and_then(|record| record.epoch);
        tracing::info!(epoch = stores.epoch.0, by, newest = newest.map(|it| it.0), "deposed");
        self.stay_above(newest);
        let theirs = record.filter(|record| !self.election.holds(record));
        let leader = theirs.and_then(|record| self.address(&record));
        self.stand_by_after(leader).await
    }

    async fn stand_by_after(&mut self, leader: Option<String>) -> Next {
        match self.say(Event::Deposed { leader }).await {
            Ok(()) => Next::StandBy,
            Err(next) => next,
        }
    }
}

impl TermObjects {
    fn held(&self) -> HeldLease {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Stores for TermObjects {
    fn renew(&mut self) -> Answer<(Moment, Result<campaign::Standing, String>)> {
        let (election, lent) = (self.election.clone(), Arc::clone(&self.held));
        let lost_to = Arc::clone(&self.lost_to);
        let mut held = self.held();
        Box::pin(async move {
            let renewed = election.renew(&mut held).await;
            *lent.lock().unwrap_or_else(PoisonError::into_inner) = held;
            match renewed {
                Ok(RenewOutcome::Renewed { sent_at }) => (sent_at, Ok(campaign::Standing::Leads)),
                Ok(RenewOutcome::Lost(read)) => {
                    *lost_to.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
                    (clock::now(), Ok(campaign::Standing::Deposed))
                }
                Err(trouble) => (clock::now(), Err(trouble.to_string())),
            }
        })
    }

    fn list(&mut self) -> Answer<Result<BTreeMap<WorkerKey, Entry>, String>> {
        let pods = self.pods.clone();
        Box::pin(async move {
            match timeout(LIST_WITHIN, pods.list_exposed()).await {
                Ok(listed) => listed.map_err(|error| format!("{error:#}")),
                Err(_) => Err(format!("no answer within {} s", LIST_WITHIN.as_secs())),
            }
        })
    }

    fn write(&mut self, attempts: Vec<Attempt>) -> Answer<Vec<(Change, Written)>> {
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

    fn fails(&mut self, what: &'static str, why: &str) {
        let text = format!("{what}: {why}");
        if self.trouble.as_ref() != Some(&text) {
            tracing::warn!(%why, "{what}");
            self.trouble = Some(text);
        }
    }

    fn works(&mut self) {
        if self.trouble.take().is_some() {
            tracing::info!("the API server answers again");
        }
    }
}
