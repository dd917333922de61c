//! The candidate on etcd: it reads the election's keys at intervals, and takes the next term when
//! there is no leader, or the leader has not renewed for too long. It never takes what it has not
//! just read. While etcd does not answer, no renewal can be seen, so the absence of one says
//! nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_coordinator_core::campaign::{LeadSettings, RenewalOutcome, TermTaken};
use leasehold_driver::cell::Cell;
use leasehold_driver::clock;
use leasehold_driver::health::Progress;
use leasehold_driver::platform::Command;
use leasehold_platform::campaign::{
    CampaignContext, Candidate, ElectedTerm, LossReason, Stopped, Successor, TermStore, wait_ready,
};
use leasehold_types::{CellId, Epoch, Moment, TimeBounds};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::election::{Election, ElectionRead, HeldTerm, Taking};
use crate::etcd_error::EtcdError;
use crate::exposures::{BATCH_MAX, EntryMemory, EtcdExposures, Exposures};
use crate::records::TermRecord;

/// The renewals that a leader sends within the time after which a silent one is replaced.
const BEATS: u32 = 8;
/// A leader counts as failed only after this many reads in a row without a new renewal.
const UNCHANGED_READS_MIN: u32 = 4;
/// The shortest and the longest time between two reads or renewals.
const PERIOD_MIN: Duration = Duration::from_millis(20);
const PERIOD_MAX: Duration = Duration::from_secs(1);
/// Each candidate waits for a random part of this, so that one of them is first.
const JITTER_MAX: Duration = Duration::from_millis(20);
/// The pause after an error.
const PAUSE: Duration = Duration::from_secs(1);
/// Transactions with changes of entries in flight.
const BATCHES_MAX: usize = 4;

/// The settings of a candidate.
#[derive(Clone, Debug)]
pub(crate) struct CandidateSettings {
    /// The cell that the store must be of, or becomes the store of.
    pub(crate) cell: Option<CellId>,
    /// How long a leader may be silent before this replica takes over.
    pub(crate) takeover_after: Duration,
    /// How long leadership lasts.
    pub(crate) leadership: Duration,
    /// How far clocks may be apart.
    pub(crate) bounds: TimeBounds,
}

/// A replica that takes part in the election on etcd.
pub(crate) struct EtcdCandidate {
    settings: CandidateSettings,
    election: Election,
    cell: watch::Sender<Option<Arc<Cell>>>,
    /// The cell that a store without one becomes the store of.
    first_cell: CellId,
    last_term: Option<LastTerm>,
}

/// The last term of this replica, and its entries: a store that was put back from a copy may lack
/// some of them.
struct LastTerm {
    epoch: Epoch,
    replaced: u64,
    memory: Arc<Mutex<EntryMemory>>,
}

/// The leader as a standby has seen it.
#[derive(Clone, Debug)]
struct LeaderWatch {
    /// The revisions of the term and of its last renewal.
    revisions: (i64, i64),
    /// When these were first seen.
    seen_at: Moment,
    /// Since when no renewal was seen while etcd answered.
    silent_since: Moment,
    unchanged_reads: u32,
}

/// What a standby does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// It follows the leader.
    Follow,
    /// It takes the next term.
    Take,
}

/// The store of the terms of one replica.
pub(crate) struct EtcdTerms {
    election: Election,
    held: Arc<tokio::sync::Mutex<HeldTerm>>,
    progress: Arc<Progress>,
}

impl EtcdCandidate {
    /// A candidate; publishes the cell once the store names one.
    pub(crate) fn new(
        settings: CandidateSettings,
        election: Election,
        cell: watch::Sender<Option<Arc<Cell>>>,
    ) -> Self {
        let first_cell = settings.cell.unwrap_or_else(|| CellId(fastrand::u128(..)));
        Self { settings, election, cell, first_cell, last_term: None }
    }

    fn period(&self) -> Duration {
        (self.settings.takeover_after / BEATS).clamp(PERIOD_MIN, PERIOD_MAX)
    }
}

impl Candidate for EtcdCandidate {
    type Terms = EtcdTerms;
    type Exposures = EtcdExposures;

    fn lead_settings(&self) -> LeadSettings {
        let leadership = self.settings.leadership;
        LeadSettings {
            leadership,
            renew_every: self.period().min(leadership / 10),
            batch_max: BATCH_MAX,
            batches_max: BATCHES_MAX,
        }
    }

    async fn stand_by(
        &mut self,
        context: &mut CampaignContext,
    ) -> Result<ElectedTerm<EtcdTerms, EtcdExposures>, Stopped> {
        let mut reads = interval(self.period());
        reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch: Option<LeaderWatch> = None;
        loop {
            tokio::select! {
                biased;
                command = context.commands.recv() => match command {
                    None => return Err(Stopped),
                    Some(Command::Resign(done)) => {
                        let _ = done.send(());
                        return Err(Stopped);
                    }
                    // An order for a term that has ended.
                    Some(Command::Order { order, .. }) => context.raise_above(order.above()),
                    Some(Command::ConfirmEntries { .. }) => {}
                },
                () = context.events.closed() => return Err(Stopped),
                _ = reads.tick() => {}
                ready = wait_ready(&mut context.ready) => {
                    ready?;
                    context.ready = None;
                }
            }
            match self.look(&mut watch, context).await {
                Ok((read, decision)) => {
                    context.progress.set_trouble(None);
                    context.errors.recover();
                    if decision == Decision::Follow {
                        self.notify(&read, context).await?;
                    } else if context.ready.is_none()
                        && let Some(watch) = &watch
                        && let Some(elected) = self.try_to_lead(read, watch, context).await
                    {
                        return Ok(elected);
                    }
                }
                Err(error) => {
                    // The silence of a leader counts while etcd answers.
                    if let Some(watch) = &mut watch {
                        watch.unchanged_reads = 0;
                    }
                    report(context, "cannot read the election", &error);
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl EtcdCandidate {
    /// Reads who leads, and whether that leader has failed.
    async fn look(
        &mut self,
        watch: &mut Option<LeaderWatch>,
        context: &mut CampaignContext,
    ) -> Result<(ElectionRead, Decision), EtcdError> {
        let read = self.election.read().await?;
        let now = clock::now();
        let term = read.term.as_ref();
        context.raise_above(term.map(|term| term.record.epoch()));
        if let Some(term) = term {
            self.note_cell(term.record.cell)?;
            self.forget_entries_before(&term.record);
        }
        let revisions = (term.map_or(0, |term| term.mod_revision), read.renewed);
        let seen = match watch.take() {
            Some(last) if last.revisions == revisions => {
                let silent_since = if last.unchanged_reads == 0 { now } else { last.silent_since };
                let unchanged_reads = last.unchanged_reads + 1;
                LeaderWatch { silent_since, unchanged_reads, ..last }
            }
            _ => LeaderWatch { revisions, seen_at: now, silent_since: now, unchanged_reads: 1 },
        };
        let is_silent = now.since(seen.silent_since) >= self.settings.takeover_after
            && seen.unchanged_reads > UNCHANGED_READS_MIN;
        let is_free =
            term.is_none_or(|term| term.record.released || self.election.is_own(&term.record));
        *watch = Some(seen);
        let is_vacant = (is_free || is_silent) && !self.leaves_it_to_the_last_leader(now);
        Ok((read, if is_vacant { Decision::Take } else { Decision::Follow }))
    }

    /// Whether the store was replaced a moment ago. The last leader then knows entries that it
    /// lacks, is to lead next, and may believe that it still leads.
    fn leaves_it_to_the_last_leader(&self, now: Moment) -> bool {
        let replaced_at = self.election.client().seen().replaced_at;
        let leads = self.settings.bounds.outlast(self.settings.leadership);
        let is_recent = replaced_at.is_some_and(|at| now.since(at) < leads);
        is_recent && self.last_term.is_none()
    }

    /// Publishes the cell. A store of another cell than the one that was seen or is wanted is used
    /// no longer.
    fn note_cell(&self, id: CellId) -> Result<(), EtcdError> {
        let known = self.cell.borrow().as_ref().map(|cell| cell.id);
        if let Some(other) = known.or(self.settings.cell).filter(|other| *other != id) {
            return Err(EtcdError::Invalid(format!(
                "{} is the store of cell {id}, and this replica is of cell {other}: correct --etcd \
                 or --etcd-prefix, or leave --cell out and restart every coordinator",
                self.election.keys()
            )));
        }
        if known.is_none() {
            let store = format!("etcd {}", self.election.keys());
            tracing::info!(cell = %id, store, "the cell of the keys");
            self.cell.send_replace(Some(Arc::new(Cell { id, store })));
        }
        Ok(())
    }

    /// Forgets the entries of this replica's last term, if a later leader has read them since.
    fn forget_entries_before(&mut self, record: &TermRecord) {
        let is_later = |last: &LastTerm| last.epoch < record.epoch();
        if !self.election.is_own(record) && self.last_term.as_ref().is_some_and(is_later) {
            self.last_term = None;
        }
    }

    /// Notifies the driver of another replica that leads.
    async fn notify(
        &self,
        read: &ElectionRead,
        context: &mut CampaignContext,
    ) -> Result<(), Stopped> {
        let Some(term) = &read.term else { return Ok(()) };
        let (record, epoch) = (&term.record, term.record.epoch());
        let address = self.election.other_address(record);
        context.notify_leader(address, Some(&record.identity), Some(epoch)).await
    }

    async fn try_to_lead(
        &mut self,
        read: ElectionRead,
        watch: &LeaderWatch,
        context: &mut CampaignContext,
    ) -> Option<ElectedTerm<EtcdTerms, EtcdExposures>> {
        sleep(JITTER_MAX.mul_f64(fastrand::f64())).await;
        let known = self.cell.borrow().as_ref().map(|cell| cell.id);
        let taking = Taking {
            above: context.above(),
            cell: known.unwrap_or(self.first_cell),
            seen_at: watch.seen_at,
            unseen: self.settings.leadership,
            bounds: self.settings.bounds,
        };
        match self.election.take(&read, taking).await {
            Ok(Some((held, sent_at))) => {
                context.errors.recover();
                tracing::info!(epoch = held.epoch.0, "the term was taken");
                Some(self.elected(held, sent_at, context))
            }
            // Another replica was faster: the next read shows the new leader.
            Ok(None) => None,
            Err(error) => {
                report(context, "cannot take a term", &error);
                sleep(PAUSE).await;
                None
            }
        }
    }

    /// The stores of a term that was taken.
    fn elected(
        &mut self,
        held: HeldTerm,
        sent_at: Moment,
        context: &CampaignContext,
    ) -> ElectedTerm<EtcdTerms, EtcdExposures> {
        let cell = held.cell();
        if self.note_cell(cell).is_err() {
            // Read and taken at one revision, so the cell has been compared before.
            tracing::error!(%cell, "the term is of another cell");
        }
        let recovered = self.recovered(held.replaced);
        let memory = Arc::new(Mutex::new(EntryMemory::of_lost(recovered.clone())));
        let (epoch, replaced) = (held.epoch, held.replaced);
        self.last_term = Some(LastTerm { epoch, replaced, memory: Arc::clone(&memory) });
        let taken = TermTaken {
            epoch,
            term: held.term,
            cell: Some(cell),
            sent_at,
            predecessor_end: held.predecessor_end,
        };
        let election = self.election.clone();
        ElectedTerm {
            taken,
            exposures: EtcdExposures::new(election.clone(), held.clone(), memory, recovered),
            terms: EtcdTerms {
                election,
                held: Arc::new(tokio::sync::Mutex::new(held)),
                progress: Arc::clone(&context.progress),
            },
        }
    }

    /// The entries of this replica's last term, if the store was replaced since, or that term has
    /// ended before it had added those that an earlier replacement had lost.
    fn recovered(&self, replaced: u64) -> Exposures {
        let Some(last) = &self.last_term else { return BTreeMap::new() };
        let memory = last.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if last.replaced == replaced && memory.is_complete() {
            return BTreeMap::new();
        }
        memory.exposures().clone()
    }
}

/// Reports an error of the store; one that a person must fix fails the readiness probe, too.
fn report(context: &mut CampaignContext, what: &'static str, error: &EtcdError) {
    context.progress.set_trouble(error.needs_a_person().then(|| format!("{what}: {error}")));
    context.errors.report(what, error);
}

impl TermStore for EtcdTerms {
    fn renew(&mut self) -> BoxFuture<'static, (Moment, Result<RenewalOutcome, String>)> {
        let (election, held) = (self.election.clone(), Arc::clone(&self.held));
        Box::pin(async move {
            let mut held = held.lock().await;
            let (sent_at, stands) = election.renew(&mut held).await;
            let outcome = stands
                .map(|stands| if stands { RenewalOutcome::Leads } else { RenewalOutcome::Deposed });
            (sent_at, outcome.map_err(|error| error.to_string()))
        })
    }

    async fn on_lost(self, reason: LossReason, _until: Moment) -> Successor {
        let epoch = self.held.lock().await.epoch.0;
        tracing::info!(epoch, ?reason, "no longer leads");
        self.progress.set_trouble(None);
        let Some(term) = self.election.read().await.ok().and_then(|read| read.term) else {
            return Successor::default();
        };
        let epoch = Some(term.record.epoch());
        Successor { address: self.election.other_address(&term.record), epoch }
    }

    async fn release(self, above: Epoch) -> Result<(), String> {
        let held = self.held.lock().await;
        self.election.release(&held, above).await.map_err(|error| error.to_string())
    }
}
