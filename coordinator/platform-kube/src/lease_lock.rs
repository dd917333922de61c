//! The election's Lease object: read, taken, renewed and released, each write a compare-and-swap on
//! what was read. No epoch is handed out twice: each is above the revision of the API server's
//! store that was read just before it was taken, and its own write has a higher revision.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use leasehold_driver::cell::{Cell, KnownCell};
use leasehold_driver::clock;
use leasehold_kube_api::names::{
    ADDRESS_ANNOTATION, CELL_ANNOTATION, EPOCH_ANNOTATION, FIELD_MANAGER, LEASE,
};
use leasehold_platform::campaign::EPOCH_MAX;
use leasehold_types::{CellId, Epoch, Moment, TimeBounds};
use tokio::sync::watch;

use crate::api_call::{CALL_TIMEOUT, call};
use crate::lease_error::LeaseError;

/// Annotation of the Lease: for how many milliseconds after this write a predecessor of the holder
/// may still believe that it leads. Missing if no predecessor may.
const EARLIER_ANNOTATION: &str = "leasehold.dev/earlier-leader-ms";
/// The most attempts of one renewal or release.
const TRIES_MAX: u32 = 3;

/// Reads and writes the Lease for one replica; cheap to clone.
#[derive(Clone)]
pub(crate) struct LeaseLock {
    api: Api<Lease>,
    /// The replica's name and a random suffix of this process.
    holder: String,
    address: String,
    leadership: Duration,
    /// The cell that the Lease last named.
    cell: Arc<watch::Sender<Option<Arc<Cell>>>>,
    /// The Lease, as NAMESPACE/NAME.
    store: String,
}

/// The result of a read: the newest state at some moment between the call and its answer.
#[derive(Clone, Debug)]
pub(crate) struct LeaseRead {
    /// The store's revision. No epoch that was ever taken is above it, except after a restore of
    /// the store.
    pub(crate) revision: u64,
    /// The Lease, if it exists.
    pub(crate) record: Option<LeaseRecord>,
}

/// The content of the Lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseRecord {
    /// The resource version.
    pub(crate) version: u64,
    /// The holder; `None` once it was released.
    pub(crate) holder: Option<String>,
    /// The holder's address.
    pub(crate) address: Option<String>,
    /// The highest epoch that is in use; `None` if the annotation is missing or not a number.
    pub(crate) epoch: Option<Epoch>,
    /// The cell; `None` if the annotation is missing or no identity.
    pub(crate) cell: Option<CellId>,
    /// How long the holder leads after a renewal.
    pub(crate) duration: Duration,
    /// For how long after this write a predecessor may believe that it leads.
    pub(crate) earlier: Duration,
    /// Differs after every renewal; has no other meaning.
    pub(crate) renewed: Option<MicroTime>,
    lease: Box<Lease>,
}

/// The Lease as its holder wrote it last.
#[derive(Clone, Debug)]
pub(crate) struct HeldLease {
    /// The term.
    pub(crate) epoch: Epoch,
    /// The cell.
    pub(crate) cell: CellId,
    /// When every predecessor has stopped.
    pub(crate) predecessor_end: Moment,
    lease: Box<Lease>,
}

/// The outcome of a renewal.
#[derive(Debug)]
pub(crate) enum RenewOutcome {
    /// When the renewal that succeeded was sent, this epoch was the newest.
    Renewed {
        /// When that was.
        sent_at: Moment,
    },
    /// Another replica holds the Lease, or it was deleted.
    Lost(LeaseRead),
}

impl LeaseLock {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        holder: String,
        address: String,
        leadership: Duration,
    ) -> Self {
        let cell = Arc::new(watch::channel(None).0);
        let store = format!("{namespace}/{LEASE}");
        let api = Api::namespaced(client, namespace);
        Self { api, holder, address, leadership, cell, store }
    }

    /// The cell, once a Lease has named it.
    pub(crate) fn cell(&self) -> KnownCell {
        self.cell.subscribe()
    }

    /// Notes the cell that a Lease names.
    pub(crate) fn note_cell(&self, named: Option<CellId>) {
        let Some(id) = named else { return };
        self.cell.send_if_modified(|known| {
            let is_new = known.as_ref().is_none_or(|known| known.id != id);
            if is_new {
                tracing::info!(cell = %id, lease = self.store, "the Lease's cell");
                *known = Some(Arc::new(Cell { id, store: self.store.clone() }));
            }
            is_new
        });
    }

    /// The holder that this replica's writes name.
    pub(crate) fn holder(&self) -> &str {
        &self.holder
    }

    /// The client of the Lease, for a watch.
    pub(crate) fn api(&self) -> Api<Lease> {
        self.api.clone()
    }

    /// The Lease as it is now.
    pub(crate) async fn read(&self) -> Result<LeaseRead, LeaseError> {
        // A list has the store's revision. Without a resourceVersion in the request it is
        // consistent.
        let wanted = ListParams::default().fields(&format!("metadata.name={LEASE}"));
        let list = call(CALL_TIMEOUT, self.api.list(&wanted)).await?;
        let revision = revision_of(list.metadata.resource_version.as_deref())?;
        let record = list.items.into_iter().next().map(LeaseRecord::of).transpose()?;
        Ok(LeaseRead { revision, record })
    }

    /// Takes the next epoch, above the one that was read and above `above`. Returns the Lease and
    /// when the write was sent; `None` if another replica was faster. `unseen` is how long a leader
    /// that this read does not show may lead.
    pub(crate) async fn take(
        &self,
        read: &LeaseRead,
        above: Epoch,
        bounds: TimeBounds,
        unseen: Duration,
    ) -> Result<Option<(HeldLease, Moment)>, LeaseError> {
        let epoch = next_epoch(read, above);
        let earlier = self.earlier(read.record.as_ref(), unseen);
        let transitions = read.record.as_ref().map_or(0, |record| record.transitions() + 1);
        let mut lease = read.record.as_ref().map(|record| record.lease.clone()).unwrap_or_default();
        let cell = self.cell_of(read)?;
        let now = MicroTime(Timestamp::now());
        lease.metadata.name = Some(LEASE.to_owned());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_duration_seconds: Some(whole_seconds(self.leadership)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        });
        annotate(&mut lease, epoch, cell, Some(&self.address), earlier);
        let sent_at = clock::now();
        let taken = match &read.record {
            Some(_) => call(CALL_TIMEOUT, self.api.replace(LEASE, &post_params(), &lease)).await,
            None => call(CALL_TIMEOUT, self.api.create(&post_params(), &lease)).await,
        };
        match taken {
            Ok(lease) => {
                let end = match earlier {
                    Duration::ZERO => sent_at,
                    earlier => clock::now() + bounds.outlast(earlier),
                };
                self.note_cell(Some(cell));
                let lease = Box::new(lease);
                Ok(Some((HeldLease { epoch, cell, predecessor_end: end, lease }, sent_at)))
            }
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Renews. After a conflict it reads the Lease: this process may have written it, by a renewal
    /// whose answer was lost. It then renews again, since only an answered renewal counts.
    pub(crate) async fn renew(&self, held: &mut HeldLease) -> Result<RenewOutcome, LeaseError> {
        for _ in 0..TRIES_MAX {
            let sent_at = clock::now();
            let mut lease = held.lease.clone();
            let spec = lease.spec.get_or_insert_default();
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            spec.lease_duration_seconds = Some(whole_seconds(self.leadership));
            let earlier = held.predecessor_end.since(sent_at);
            annotate(&mut lease, held.epoch, held.cell, Some(&self.address), earlier);
            match call(CALL_TIMEOUT, self.api.replace(LEASE, &post_params(), &lease)).await {
                Ok(lease) => {
                    *held.lease = lease;
                    return Ok(RenewOutcome::Renewed { sent_at });
                }
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
            let read = self.read().await?;
            match read.record {
                Some(record) if self.is_mine(&record, held.epoch) => held.lease = record.lease,
                record => return Ok(RenewOutcome::Lost(LeaseRead { record, ..read })),
            }
        }
        Err(LeaseError::Contended)
    }

    /// Releases the Lease, so that another replica takes it at once with an epoch above `above`. A
    /// Lease of another holder is not changed. After a conflict or a lost answer it reads the
    /// Lease: it may be released, or a renewal whose answer was lost may have changed it.
    pub(crate) async fn release(
        &self,
        mut held: HeldLease,
        above: Epoch,
    ) -> Result<(), LeaseError> {
        for _ in 0..TRIES_MAX {
            let mut lease = held.lease.clone();
            let earlier = held.predecessor_end.since(clock::now());
            annotate(&mut lease, held.epoch.max(above), held.cell, None, earlier);
            lease.spec.get_or_insert_default().holder_identity = Some(String::new());
            match call(CALL_TIMEOUT, self.api.replace(LEASE, &post_params(), &lease)).await {
                Ok(_) => return Ok(()),
                Err(error)
                    if error.is_conflict() || error.is_not_found() || error.is_unanswered() => {}
                Err(error) => return Err(error.into()),
            }
            match self.read().await?.record {
                Some(record) if self.is_mine(&record, held.epoch) => held.lease = record.lease,
                _ => return Ok(()),
            }
        }
        Err(LeaseError::Contended)
    }

    /// Whether this process is the holder, under any epoch.
    pub(crate) fn holds(&self, record: &LeaseRecord) -> bool {
        record.holder.as_ref() == Some(&self.holder)
    }

    /// The address of the holder, unless it is this replica's.
    pub(crate) fn other_address(&self, record: &LeaseRecord) -> Option<String> {
        record.address.clone().filter(|address| *address != self.address)
    }

    /// The cell of a Lease: the one that it names, or the one that this replica has read before. A
    /// Lease that was deleted beside running replicas is so of the same cell again.
    fn cell_of(&self, read: &LeaseRead) -> Result<CellId, LeaseError> {
        let record = read.record.as_ref();
        let known = || self.cell.borrow().as_ref().map(|cell| cell.id);
        if let Some(cell) = record.and_then(|record| record.cell).or_else(known) {
            return Ok(cell);
        }
        let annotations = record.and_then(|record| record.lease.metadata.annotations.as_ref());
        match annotations.and_then(|all| all.get(CELL_ANNOTATION)) {
            Some(found) => {
                let (lease, found) = (self.store.clone(), found.clone());
                Err(LeaseError::UnreadableCell { lease, found })
            }
            None => Ok(CellId(fastrand::u128(..))),
        }
    }

    fn is_mine(&self, record: &LeaseRecord, epoch: Epoch) -> bool {
        self.holds(record) && record.epoch == Some(epoch)
    }

    /// For how long from now on a predecessor may believe that it leads. A holder that released the
    /// Lease does not, nor does this process, which does not lead while it takes a term.
    fn earlier(&self, record: Option<&LeaseRecord>, unseen: Duration) -> Duration {
        match record {
            None => unseen.max(self.leadership),
            Some(record) if record.holder.is_none() || self.holds(record) => record.earlier,
            Some(record) => record.earlier.max(record.duration),
        }
    }
}

impl LeaseRecord {
    /// Parses a Lease.
    pub(crate) fn of(lease: Lease) -> Result<Self, LeaseError> {
        let version = revision_of(lease.metadata.resource_version.as_deref())?;
        let annotations = lease.metadata.annotations.as_ref();
        let annotation = |name| annotations.and_then(|all| all.get(name));
        let milliseconds = |text: &String| text.parse().ok().map(Duration::from_millis);
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.clone());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        let epoch = annotation(EPOCH_ANNOTATION).and_then(|text| text.parse().ok()).map(Epoch);
        if let Some(found) = epoch.filter(|epoch| *epoch > EPOCH_MAX) {
            let namespace = lease.metadata.namespace.as_deref().unwrap_or("default");
            let lease = format!("{LEASE} -n {namespace}");
            return Err(LeaseError::EpochTooHigh { lease, found });
        }
        Ok(Self {
            version,
            holder: holder.filter(|holder| !holder.is_empty()),
            address: annotation(ADDRESS_ANNOTATION).cloned(),
            epoch,
            cell: annotation(CELL_ANNOTATION).and_then(|text| text.parse().ok()),
            duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
            earlier: annotation(EARLIER_ANNOTATION).and_then(milliseconds).unwrap_or_default(),
            renewed: spec.and_then(|spec| spec.renew_time.clone()),
            lease: Box::new(lease),
        })
    }

    fn transitions(&self) -> i32 {
        let spec = self.lease.spec.as_ref();
        // The API server rejects a negative number, so the count restarts at the end of the range.
        spec.and_then(|spec| spec.lease_transitions).filter(|count| *count < i32::MAX).unwrap_or(0)
    }
}

/// The epoch after the one that was read. It is above the store's revision too, so that a deleted,
/// restored or edited Lease does not reset epochs.
fn next_epoch(read: &LeaseRead, above: Epoch) -> Epoch {
    let annotated = read.record.as_ref().and_then(|record| record.epoch).unwrap_or_default();
    annotated.max(above).max(Epoch(read.revision)).next()
}

fn annotate(
    lease: &mut Lease,
    epoch: Epoch,
    cell: CellId,
    address: Option<&str>,
    earlier: Duration,
) {
    let annotations = lease.metadata.annotations.get_or_insert_default();
    annotations.insert(EPOCH_ANNOTATION.to_owned(), epoch.0.to_string());
    annotations.insert(CELL_ANNOTATION.to_owned(), cell.to_string());
    match address {
        Some(address) => annotations.insert(ADDRESS_ANNOTATION.to_owned(), address.to_owned()),
        None => annotations.remove(ADDRESS_ANNOTATION),
    };
    match earlier.as_nanos().div_ceil(1_000_000) {
        0 => annotations.remove(EARLIER_ANNOTATION),
        earlier => annotations.insert(EARLIER_ANNOTATION.to_owned(), earlier.to_string()),
    };
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i32::MAX).max(1)
}

fn revision_of(version: Option<&str>) -> Result<u64, LeaseError> {
    version.and_then(|text| text.parse().ok()).ok_or(LeaseError::Unversioned)
}

#[cfg(test)]
impl LeaseRecord {
    /// A Lease as a leader writes it; `renewal` distinguishes its renewals.
    pub(crate) fn example(
        version: u64,
        holder: &str,
        epoch: Epoch,
        leadership: Duration,
        renewal: i64,
    ) -> Self {
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some(version.to_string());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(whole_seconds(leadership)),
            renew_time: Some(MicroTime(Timestamp::from_second(renewal).expect("a time"))),
            ..LeaseSpec::default()
        });
        annotate(&mut lease, epoch, CellId(7), Some("10.0.0.1:7400"), Duration::ZERO);
        Self::of(lease).expect("a Lease")
    }
}

#[cfg(test)]
#[path = "lease_lock_tests.rs"]
mod tests;
