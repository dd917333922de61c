//! The election campaign of one replica, the same on every platform: it stands by, takes a term
//! when there is no leader, leads, and stands by again. A platform brings a store of terms, a store
//! of exposures, and a [`Candidate`] that detects a failed leader and takes the term. A term begins
//! only with a write to the term store that succeeded, and lasts from when the last such write was
//! sent.

mod leading;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryChange, EntryOutcome, LeadSettings, Listing, Namespaces, RenewalOutcome,
    TermTaken,
};
use leasehold_coordinator_core::event::{Event, KnownLeader};
use leasehold_types::{Epoch, Moment};
use tokio::sync::{mpsc, oneshot};

use self::leading::{LeadEnd, Leading};
use leasehold_driver::health::Progress;
use leasehold_driver::platform::Command;

/// The highest epoch that a store may hold. Stores count from the time of their beginning (about
/// 2^51) or from their own revision, and an agent can raise the epoch by 2^40 at a time, so a
/// higher number was written by hand. A store refuses it: epochs above it would soon run out.
pub const EPOCH_MAX: Epoch = Epoch(1 << 62);

/// The store of terms, as the leader of one term uses it.
pub trait TermStore: Send {
    /// Renews the term. Also returns when the renewal was sent. At most one is in flight.
    fn renew(&mut self) -> BoxFuture<'static, (Moment, Result<RenewalOutcome, String>)>;

    /// Handles the end of the term without a release. The driver may grant until `until`.
    fn on_lost(self, reason: LossReason, until: Moment) -> impl Future<Output = Successor> + Send;

    /// Releases the term, so that another replica takes the next one at once, above `above`.
    ///
    /// # Errors
    /// Why it could not: the term expires by itself.
    fn release(self, above: Epoch) -> impl Future<Output = Result<(), String>> + Send;
}

/// The store of exposures, as the leader of one term uses it. It never waits for the term store.
pub trait ExposureStore: Send {
    /// Lists every entry of these namespaces, as it is at the time of the call or later.
    fn list(&mut self, namespaces: Namespaces) -> BoxFuture<'static, Result<Listing, String>>;

    /// Tries changes; returns the outcome of each.
    fn write(
        &mut self,
        attempts: Vec<EntryAttempt>,
    ) -> BoxFuture<'static, Vec<(EntryChange, EntryOutcome)>>;
}

/// A platform's part while the replica stands by.
pub trait Candidate: Send + 'static {
    /// The store of the terms that it takes.
    type Terms: TermStore;
    /// The store of exposures beside it.
    type Exposures: ExposureStore;

    /// How a leader uses the stores.
    fn lead_settings(&self) -> LeadSettings;

    /// Stands by until it has taken a term, the driver has ended or the replica resigns. It takes
    /// no term before the replica is ready.
    fn stand_by(
        &mut self,
        context: &mut CampaignContext,
    ) -> impl Future<Output = Result<ElectedTerm<Self::Terms, Self::Exposures>, Stopped>> + Send;
}

/// A term that was taken, and its stores.
pub struct ElectedTerm<T, E> {
    /// The term.
    pub taken: TermTaken,
    /// The store that renews it.
    pub terms: T,
    /// The store of exposures.
    pub exposures: E,
}

/// The campaign has ended: the driver has ended, or the replica has resigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// How a term was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// Another replica has taken a later one.
    Deposed,
    /// It could not be renewed in time.
    Expired,
}

/// The leader after this one, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Successor {
    /// Its address.
    pub address: Option<String>,
    /// Its epoch.
    pub epoch: Option<Epoch>,
}

/// What a replica's campaign shares between standing by and leading.
#[derive(Debug)]
pub struct CampaignContext {
    /// Events for the driver.
    pub events: mpsc::Sender<Event>,
    /// The driver's commands.
    pub commands: mpsc::Receiver<Command>,
    /// Whether the driver makes progress.
    pub progress: Arc<Progress>,
    /// Resolves when the replica may lead; `None` after that.
    pub ready: Option<oneshot::Receiver<()>>,
    /// Errors of the stores.
    pub errors: StoreErrors,
    /// The highest epoch that this process knows of: the next must be above it.
    above: Epoch,
    /// The leader that was last sent to the driver since this replica stands by.
    notified: Option<Option<KnownLeader>>,
}

/// Logs the errors of stores; repetitions of the last error are dropped.
#[derive(Debug)]
pub struct StoreErrors {
    is_severe: bool,
    recovered: &'static str,
    last: Option<String>,
}

impl CampaignContext {
    /// A replica with these channels; it may lead once `ready` resolves.
    pub fn new(
        events: mpsc::Sender<Event>,
        commands: mpsc::Receiver<Command>,
        progress: Arc<Progress>,
        ready: oneshot::Receiver<()>,
        errors: StoreErrors,
    ) -> Self {
        let above = Epoch::default();
        Self { events, commands, progress, ready: Some(ready), errors, above, notified: None }
    }

    /// The next epoch must be above this one.
    pub fn above(&self) -> Epoch {
        self.above
    }

    /// Notes an epoch that the next one must be above.
    pub fn raise_above(&mut self, epoch: Option<Epoch>) {
        self.above = self.above.max(epoch.unwrap_or_default());
    }

    /// Notifies the driver of the leader when its address or its epoch has changed.
    ///
    /// # Errors
    /// If the driver has ended.
    pub async fn notify_leader(
        &mut self,
        address: Option<String>,
        holder: Option<&str>,
        epoch: Option<Epoch>,
    ) -> Result<(), Stopped> {
        let leader = known_leader(address.clone(), epoch);
        if self.notified.as_ref() == Some(&leader) {
            return Ok(());
        }
        self.notified = Some(leader.clone());
        let epoch = epoch.map(|epoch| epoch.0);
        tracing::info!(leader = address, holder, epoch, "another replica leads");
        self.depose(leader).await
    }

    async fn depose(&self, leader: Option<KnownLeader>) -> Result<(), Stopped> {
        self.events.send(Event::Deposed { leader }).await.map_err(|_| Stopped)
    }
}

impl StoreErrors {
    /// Logs errors at level ERROR if they are severe, else at WARN; `recovered` is logged when the
    /// stores work again.
    pub fn new(is_severe: bool, recovered: &'static str) -> Self {
        Self { is_severe, recovered, last: None }
    }

    /// Logs that something failed, unless it is the same error as the last one.
    pub fn report(&mut self, what: &'static str, why: &dyn std::fmt::Display) {
        let text = format!("{what}: {why}");
        if self.last.as_ref() != Some(&text) {
            if self.is_severe {
                tracing::error!(error = %why, "{what}");
            } else {
                tracing::warn!(error = %why, "{what}");
            }
            self.last = Some(text);
        }
    }

    /// Logs that the stores work again, if the last call failed.
    pub fn recover(&mut self) {
        if self.last.take().is_some() {
            tracing::info!("{}", self.recovered);
        }
    }
}

/// Runs the campaign until the driver has ended or the replica has resigned.
pub async fn run<C: Candidate>(mut candidate: C, mut context: CampaignContext) {
    loop {
        context.notified = None;
        let Ok(elected) = candidate.stand_by(&mut context).await else { return };
        if lead(candidate.lead_settings(), elected, &mut context).await.is_err() {
            return;
        }
    }
}

/// Leads until the term has ended.
async fn lead<T: TermStore, E: ExposureStore>(
    settings: LeadSettings,
    elected: ElectedTerm<T, E>,
    context: &mut CampaignContext,
) -> Result<(), Stopped> {
    let ElectedTerm { taken, mut terms, mut exposures } = elected;
    let epoch = taken.epoch.0;
    context.raise_above(Some(taken.epoch));
    let mut leading = Leading::new(settings, taken, &mut terms, &mut exposures, context);
    let ended = leading.run().await;
    let until = leading.until();
    drop(leading);
    drop(exposures);
    let reason = match ended {
        LeadEnd::DriverGone => return Err(Stopped),
        LeadEnd::Deposed => LossReason::Deposed,
        LeadEnd::Expired => LossReason::Expired,
        LeadEnd::GivenUp { above } => {
            context.raise_above(above);
            release(terms, context).await;
            return context.depose(None).await;
        }
        LeadEnd::Resign(done) => {
            release(terms, context).await;
            tracing::info!(epoch, "resigned");
            let _ = done.send(());
            return Err(Stopped);
        }
    };
    let successor = terms.on_lost(reason, until).await;
    context.raise_above(successor.epoch);
    context.depose(known_leader(successor.address, successor.epoch)).await
}

/// A leader to which agents can be sent; `None` without an address.
fn known_leader(address: Option<String>, epoch: Option<Epoch>) -> Option<KnownLeader> {
    address.map(|address| KnownLeader { address, epoch })
}

/// Releases a term; if that fails, it expires by itself.
pub async fn release(terms: impl TermStore, context: &mut CampaignContext) {
    if let Err(why) = terms.release(context.above).await {
        context.errors.report("cannot release leadership; it will expire", &why);
    }
}

/// Waits until the replica may lead. Once it may, a second call never resolves.
///
/// # Errors
/// If the replica can never be ready, since the process is about to end.
pub async fn wait_ready(ready: &mut Option<oneshot::Receiver<()>>) -> Result<(), Stopped> {
    match ready {
        Some(ready) => ready.await.map_err(|_| Stopped),
        None => std::future::pending().await,
    }
}

/// The output of a future that may be absent; without one it never resolves.
pub async fn if_some<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_driver_is_notified_once_of_each_epoch_and_of_a_leader_whose_epoch_is_unknown() {
        let (events, mut notified) = mpsc::channel(8);
        let (_commands, commands) = mpsc::channel(1);
        let (_ready, ready) = oneshot::channel();
        let errors = StoreErrors::new(false, "the store works again");
        let mut context = CampaignContext::new(events, commands, Arc::default(), ready, errors);
        let [first, second] = [Some(Epoch(7)), Some(Epoch(8))];
        for epoch in [None, first, first, second] {
            context.notify_leader(Some("a:7400".into()), None, epoch).await.expect("a driver");
        }
        drop(context);
        let mut epochs = Vec::new();
        while let Some(event) = notified.recv().await {
            match event {
                Event::Deposed { leader: Some(KnownLeader { address, epoch }) } => {
                    assert_eq!(address, "a:7400");
                    epochs.push(epoch);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(epochs, [None, first, second]);
    }
}
