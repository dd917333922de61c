//! Standing by: it watches the Lease and the leader, and takes the next term when there is no
//! leader. It reads the Lease before each attempt, and takes only what it has read.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::watcher::watch_object;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::clock;
use leasehold_driver::leading::if_some;
use leasehold_driver::platform::Command;
use leasehold_kube_api::names::LEASE;
use leasehold_types::{Epoch, Moment};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Campaign, Next, RELEASE_WITHIN, wait_ready};
use crate::leader_connection::LeaderConnection;
use crate::leader_failure_detector::{LeaderFailureDetector, LeaderSignal, LeaderStatus, Vacancy};
use crate::lease_lock::{HeldLease, LeaseError, LeaseLock, LeaseRead, LeaseRecord};

/// Candidates wait for a random part of this, so that one is first.
const JITTER_MAX: Duration = Duration::from_millis(10);
/// The pause after a call to the API server that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Changes of the Lease that may wait.
const CHANGES_MAX: usize = 4;

/// The state of a standby.
struct Watch {
    detector: LeaderFailureDetector,
    changes: mpsc::Receiver<Result<Option<LeaseRecord>, String>>,
    _watcher: JoinSet<()>,
    /// The leader that it connects to: holder and epoch.
    followed: Option<(String, Option<Epoch>)>,
    connection: Option<LeaderConnection>,
    errand: Option<Errand>,
    /// After a failure nothing is tried before.
    not_before: Moment,
    why: Vacancy,
    /// The leader that was last sent to the driver.
    told: Option<Option<String>>,
}

type Errand = Pin<Box<dyn Future<Output = Found> + Send>>;

/// The result of a call to the API server.
enum Found {
    Read(Result<LeaseRead, LeaseError>),
    Taken(Result<Option<(HeldLease, Moment)>, LeaseError>),
}

/// Why a standby woke up.
enum Woken {
    Command(Option<Command>),
    DriverGone,
    Ready(Result<(), Next>),
    Found(Found),
    Changed(Result<Option<LeaseRecord>, String>),
    LeaderSignal(LeaderSignal),
    Time,
}

impl Campaign {
    pub(super) async fn stand_by(&mut self, ready: &mut Option<oneshot::Receiver<()>>) -> Next {
        let mut watch = self.watch();
        loop {
            let nap = match self.judge(&mut watch, ready.is_none()).await {
                Ok(nap) => nap,
                Err(next) => return next,
            };
            let woken = tokio::select! {
                biased;
                command = self.commands.recv() => Woken::Command(command),
                () = self.events.closed() => Woken::DriverGone,
                known = wait_ready(ready) => Woken::Ready(known),
                found = if_some(&mut watch.errand) => Woken::Found(found),
                Some(change) = watch.changes.recv() => Woken::Changed(change),
                news = next_signal(&mut watch.connection) => Woken::LeaderSignal(news),
                () = sleep(nap) => Woken::Time,
            };
            let now = clock::now();
            match woken {
                Woken::Command(None) | Woken::DriverGone => return Next::End,
                Woken::Command(Some(Command::Resign(done))) => {
                    self.resign_standing_by(watch).await;
                    let _ = done.send(());
                    return Next::End;
                }
                // Meant for a term that is over.
                Woken::Command(Some(Command::Order { order, .. })) => {
                    self.stay_above(order.above());
                }
                Woken::Ready(Ok(())) => *ready = None,
                Woken::Ready(Err(next)) => return next,
                Woken::Found(found) => {
                    watch.errand = None;
                    if let Some(next) = self.found(&mut watch, found, ready.is_none(), now) {
                        return next;
                    }
                }
                Woken::Changed(Ok(record)) => watch.detector.on_watch_event(record, now),
                Woken::Changed(Err(why)) => {
                    watch.detector.api_failed();
                    self.fails(&why, "cannot watch the Lease");
                }
                Woken::LeaderSignal(news) => watch.detector.on_signal(news, now),
                Woken::Time => {}
            }
            self.above = self.above.max(watch.detector.highest_epoch());
        }
    }

    fn watch(&self) -> Watch {
        let now = clock::now();
        let holder = self.election.holder().to_owned();
        let (takeover_after, bounds) = (self.settings.takeover_after, self.settings.bounds);
        let (sender, changes) = mpsc::channel(CHANGES_MAX);
        let mut watcher = JoinSet::new();
        watcher.spawn(watch_lease(self.election.clone(), sender));
        Watch {
            detector: LeaderFailureDetector::new(holder, takeover_after, bounds, now),
            changes,
            _watcher: watcher,
            followed: None,
            connection: None,
            errand: None,
            not_before: now,
            why: Vacancy::NoLease,
            told: None,
        }
    }

    /// Connects to the leader, notifies the driver, or starts to take the Lease. Returns how long
    /// to wait.
    async fn judge(&mut self, watch: &mut Watch, ready: bool) -> Result<Duration, Next> {
        let now = clock::now();
        let verdict = watch.detector.evaluate(now);
        if let Some(record) = watch.detector.leader() {
            let leader = (record.holder.clone().unwrap_or_default(), record.epoch);
            if watch.followed.as_ref() != Some(&leader) {
                let (identity, trust) = (&self.settings.identity, &self.settings.trust);
                watch.connection = record.address.clone().map(|address| {
                    LeaderConnection::start(address, identity.clone(), trust.clone())
                });
                watch.followed = Some(leader);
            }
        }
        match verdict {
            LeaderStatus::Unknown => Ok(PAUSE),
            LeaderStatus::Alive(nap) => {
                if let Some(record) = watch.detector.leader().cloned() {
                    self.tell(watch, &record).await?;
                }
                Ok(nap)
            }
            LeaderStatus::Vacant(why) => {
                if !ready || watch.errand.is_some() {
                    return Ok(PAUSE);
                }
                if now < watch.not_before {
                    return Ok(watch.not_before.since(now));
                }
                watch.why = why;
                let election = self.election.clone();
                watch.errand = Some(Box::pin(async move {
                    sleep(JITTER_MAX.mul_f64(fastrand::f64())).await;
                    Found::Read(election.read().await)
                }));
                Ok(PAUSE)
            }
        }
    }

    /// Notifies the driver of the leader when it has changed.
    async fn tell(&mut self, watch: &mut Watch, record: &LeaseRecord) -> Result<(), Next> {
        let leader = self.address(record);
        if watch.told.as_ref() == Some(&leader) {
            return Ok(());
        }
        watch.told = Some(leader.clone());
        let (holder, epoch) = (record.holder.as_deref(), record.epoch.map(|epoch| epoch.0));
        tracing::info!(leader, holder, epoch, "another replica leads");
        self.say(Event::Deposed { leader }).await
    }

    fn found(&mut self, watch: &mut Watch, found: Found, ready: bool, now: Moment) -> Option<Next> {
        match found {
            Found::Read(Ok(read)) => {
                self.recovers();
                watch.detector.on_read(&read, now);
                self.above = self.above.max(watch.detector.highest_epoch());
                if let LeaderStatus::Vacant(why) = watch.detector.evaluate(now)
                    && ready
                {
                    watch.why = why;
                    watch.errand = Some(self.take(read, watch.detector.longest_duration()));
                }
                None
            }
            Found::Taken(Ok(Some((held, sent_at)))) => {
                let (epoch, why) = (held.epoch.0, watch.why);
                tracing::info!(epoch, ?why, "the Lease was taken");
                self.recovers();
                self.above = self.above.max(held.epoch);
                Some(Next::Lead(Box::new(held), sent_at))
            }
            // Another replica was faster: the next event shows the new leader.
            Found::Taken(Ok(None)) => None,
            Found::Read(Err(trouble)) | Found::Taken(Err(trouble)) => {
                watch.detector.api_failed();
                watch.not_before = now + PAUSE;
                self.fails(&trouble, "cannot take a term");
                None
            }
        }
    }

    fn take(&self, read: LeaseRead, unseen: Duration) -> Errand {
        let (election, above, bounds) = (self.election.clone(), self.above, self.settings.bounds);
        Box::pin(async move { Found::Taken(election.take(&read, above, bounds, unseen).await) })
    }

    /// Gives up a place that is being taken this moment.
    async fn resign_standing_by(&mut self, mut watch: Watch) {
        if let Ok(Found::Taken(Ok(Some((held, _))))) =
            timeout(RELEASE_WITHIN / 2, if_some(&mut watch.errand)).await
        {
            self.release(held).await;
        }
    }
}

/// Sends each change of the Lease, until the receiver is dropped.
async fn watch_lease(
    election: LeaseLock,
    changes: mpsc::Sender<Result<Option<LeaseRecord>, String>>,
) {
    let mut lease = pin!(watch_object(election.api(), LEASE));
    while let Some(change) = lease.next().await {
        let change = match change {
            Ok(lease) => {
                lease.map(LeaseRecord::of).transpose().map_err(|trouble| trouble.to_string())
            }
            Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
        };
        let failed = change.is_err();
        if changes.send(change).await.is_err() {
            return;
        }
        if failed {
            sleep(PAUSE).await;
        }
    }
}

async fn next_signal(connection: &mut Option<LeaderConnection>) -> LeaderSignal {
    match connection {
        Some(connection) => connection.next().await,
        None => std::future::pending().await,
    }
}
