//! The election's two keys: read, taken, renewed and released, each write a transaction on the term
//! that was read. No epoch is handed out twice while the term stands in the store: each is above
//! the one that its write replaces. Where the term was removed or put back from a backup, it is
//! above every epoch that this replica has heard of, the store's revision and the time of day.
//!
//! Invariant: whatever a leader writes is written only while its term stands in the store, so
//! nothing that a deposed leader sends can succeed.

use std::time::Duration;

use leasehold_driver::clock;
use leasehold_platform::campaign::EPOCH_MAX;
use leasehold_types::{CellId, Epoch, Moment, TermId, TimeBounds};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::EtcdClient;
use crate::etcd_error::EtcdError;
use crate::etcdserverpb::compare::{CompareTarget, TargetUnion};
use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use crate::keys::{KeyRange, Keys};
use crate::records::{HeartbeatRecord, TermRecord, hexadecimal, milliseconds, term_text};

/// The epochs that begin in one second of the clock.
const EPOCHS_PER_SECOND: u64 = 1_000_000;
/// The highest epoch that a clock may bring about, in the year 2255: one that is wrong must not use
/// up the epochs.
const CLOCK_EPOCH_MAX: u64 = 1 << 53;
/// The most attempts of a release.
const RELEASE_TRIES_MAX: u32 = 3;

/// The election, for one replica.
#[derive(Clone, Debug)]
pub(crate) struct Election {
    client: EtcdClient,
    keys: Keys,
    identity: String,
    address: String,
    /// A random number of this process.
    process: String,
    leadership: Duration,
}

/// Both keys at one moment between the call and its answer.
#[derive(Clone, Debug)]
pub(crate) struct ElectionRead {
    /// The store's revision. No epoch that was ever taken from a revision, and not from a clock, is
    /// above it, except after a restore of the store.
    pub(crate) revision: u64,
    /// The present term, if there is one.
    pub(crate) term: Option<Stored<TermRecord>>,
    /// The revision of the last renewal; 0 without one.
    pub(crate) renewed: i64,
    /// For how long after the last write a predecessor of the leader may believe that it leads.
    earlier: Duration,
}

/// A record, and the key that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored<T> {
    pub(crate) record: T,
    pub(crate) mod_revision: i64,
    value: Vec<u8>,
}

/// A term that this replica has taken.
#[derive(Clone, Debug)]
pub(crate) struct HeldTerm {
    /// The epoch.
    pub(crate) epoch: Epoch,
    /// The term's identity.
    pub(crate) term: TermId,
    /// When every predecessor has stopped.
    pub(crate) predecessor_end: Moment,
    /// How often the store had been replaced when the term was taken.
    pub(crate) replaced: u64,
    stored: Stored<TermRecord>,
    beats: u64,
    /// The revision of its last renewal that was answered, or read after that.
    renewed: i64,
}

impl HeldTerm {
    /// The cell.
    pub(crate) fn cell(&self) -> CellId {
        self.stored.record.cell
    }
}

/// How a term is to be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taking {
    /// The epoch must be above this.
    pub(crate) above: Epoch,
    /// The cell of a store that has none yet.
    pub(crate) cell: CellId,
    /// When the term and its last renewal were first seen as they were read.
    pub(crate) seen_at: Moment,
    /// How long a leader that the store does not show may lead.
    pub(crate) unseen: Duration,
    /// How far clocks may be apart.
    pub(crate) bounds: TimeBounds,
}

impl Election {
    /// The election below the prefix of `keys`, for a replica of this name at this address.
    pub(crate) fn new(
        client: EtcdClient,
        keys: Keys,
        identity: String,
        address: String,
        leadership: Duration,
    ) -> Self {
        let process = hexadecimal(fastrand::u64(..));
        Self { client, keys, identity, address, process, leadership }
    }

    /// The client of the store.
    pub(crate) fn client(&self) -> &EtcdClient {
        &self.client
    }

    /// The keys of the cell.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Both keys as they are now.
    pub(crate) async fn read(&self) -> Result<ElectionRead, EtcdError> {
        let before = self.client.seen();
        let KeyRange { first, end } = self.keys.election();
        let request = RangeRequest { key: first, range_end: end, ..RangeRequest::default() };
        let answer = self.client.range(request).await?;
        let revision = answer.header.map(|header| header.revision).unwrap_or_default();
        let revision = u64::try_from(revision).unwrap_or_default();
        let (mut term, mut heartbeat) = (None, None);
        for kv in answer.kvs {
            if kv.key == self.keys.term() {
                term = Some(self.term(kv)?);
            } else if kv.key == self.keys.heartbeat() {
                // One that cannot be read says nothing: the term's own time holds.
                let earlier = decode::<HeartbeatRecord>(&kv).ok().map(|record| record.earlier_ms);
                heartbeat = Some((kv.mod_revision, earlier));
            }
        }
        let (renewed, earlier) = heartbeat.unwrap_or_default();
        self.client.note_heartbeat(before, renewed);
        let of_term = || term.as_ref().map_or(0, |term| term.record.earlier_ms);
        let earlier = Duration::from_millis(earlier.unwrap_or_else(of_term));
        Ok(ElectionRead { revision, term, renewed, earlier })
    }

    /// Takes the next epoch, if both keys are still as they were read. Returns the term and when
    /// the write was sent; `None` if another replica was faster.
    pub(crate) async fn take(
        &self,
        read: &ElectionRead,
        taking: Taking,
    ) -> Result<Option<(HeldTerm, Moment)>, EtcdError> {
        let seen = self.client.seen();
        let epoch = next_epoch(read, taking.above);
        let term = TermId(fastrand::u64(1..));
        let before = read.term.as_ref();
        let end = self.predecessor_end(read, &taking);
        let record = TermRecord {
            cell: before.map_or(taking.cell, |term| term.record.cell),
            epoch: epoch.0,
            term: term_text(term),
            process: self.process.clone(),
            identity: self.identity.clone(),
            address: self.address.clone(),
            leadership_ms: milliseconds(self.leadership),
            earlier_ms: milliseconds(end.since(clock::now())),
            released: false,
        };
        let value = encode(&record)?;
        let heartbeat = self.heartbeat(&record, 0, end)?;
        let request = TxnRequest {
            compare: [
                self.term_stands(before),
                vec![has_revision(self.keys.heartbeat(), read.renewed)],
            ]
            .concat(),
            success: vec![put(self.keys.term(), value.clone()), heartbeat],
        };
        let sent_at = clock::now();
        let answer = self.client.txn(request).await?;
        if !answer.succeeded {
            return Ok(None);
        }
        let renewed = answer.header.map(|header| header.revision).unwrap_or_default();
        self.client.note_heartbeat(seen, renewed);
        let held = HeldTerm {
            epoch,
            term,
            predecessor_end: end.max(sent_at),
            replaced: seen.replaced,
            stored: Stored { record, mod_revision: renewed, value },
            beats: 0,
            renewed,
        };
        Ok(Some((held, sent_at)))
    }

    /// Renews a term. Returns when that was sent, and whether the term stands.
    pub(crate) async fn renew(&self, held: &mut HeldTerm) -> (Moment, Result<bool, EtcdError>) {
        let (sent_at, renewed) = self.beat(held).await;
        match renewed {
            Ok(false) => self.renew_again(held, sent_at).await,
            renewed => (sent_at, renewed.map(|_| !self.is_replaced(held))),
        }
    }

    /// Renews a term whose heartbeat is not the one that its leader knows: the answer to an earlier
    /// renewal was lost, or the term stands no longer.
    async fn renew_again(
        &self,
        held: &mut HeldTerm,
        sent_at: Moment,
    ) -> (Moment, Result<bool, EtcdError>) {
        match self.read().await {
            Err(error) => return (sent_at, Err(error)),
            Ok(read) if self.is_present(held, &read) && !self.is_replaced(held) => {
                held.renewed = read.renewed;
            }
            Ok(_) => return (sent_at, Ok(false)),
        }
        let (sent_at, renewed) = self.beat(held).await;
        let renewed = match renewed {
            // That late renewal, or a successor's write: the next renewal finds out.
            Ok(false) => Err(EtcdError::Invalid("the heartbeat was written meanwhile".to_owned())),
            renewed => renewed.map(|_| !self.is_replaced(held)),
        };
        (sent_at, renewed)
    }

    /// Writes the heartbeat after the one that is known. Returns when that was sent, and whether
    /// the term and that heartbeat stood.
    async fn beat(&self, held: &mut HeldTerm) -> (Moment, Result<bool, EtcdError>) {
        held.beats += 1;
        let before = self.client.seen();
        let sent_at = clock::now();
        let heartbeat = self.heartbeat(&held.stored.record, held.beats, held.predecessor_end);
        let written = match heartbeat {
            Ok(heartbeat) => {
                // A store that was put back may have this very term, and an earlier heartbeat.
                let known = vec![has_revision(self.keys.heartbeat(), held.renewed)];
                self.write(held, known, vec![heartbeat]).await
            }
            Err(error) => Err(error),
        };
        if let Ok(Some(revision)) = written {
            held.renewed = revision;
            self.client.note_heartbeat(before, revision);
        }
        (sent_at, written.map(|revision| revision.is_some()))
    }

    /// Whether the store was replaced in this term. It may have the term, and lacks what was
    /// written since.
    fn is_replaced(&self, held: &HeldTerm) -> bool {
        self.client.seen().replaced != held.replaced
    }

    /// Releases a term, so that another replica takes it at once with an epoch above `above`. After
    /// a lost answer it tries again: where the release has happened, the term stands no longer.
    pub(crate) async fn release(&self, held: &HeldTerm, above: Epoch) -> Result<(), EtcdError> {
        let mut tries = 0;
        loop {
            let record = TermRecord {
                epoch: held.epoch.max(above).0,
                earlier_ms: milliseconds(held.predecessor_end.since(clock::now())),
                released: true,
                ..held.stored.record.clone()
            };
            let beats = held.beats + 1;
            let heartbeat = self.heartbeat(&record, beats, held.predecessor_end)?;
            let success = vec![put(self.keys.term(), encode(&record)?), heartbeat];
            tries += 1;
            match self.write(held, Vec::new(), success).await {
                Ok(_) => return Ok(()),
                Err(error) if tries == RELEASE_TRIES_MAX => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Writes in one step, if the term stands and the conditions hold. Returns the revision of the
    /// write; `None` if they do not.
    pub(crate) async fn write(
        &self,
        held: &HeldTerm,
        mut conditions: Vec<Compare>,
        success: Vec<RequestOp>,
    ) -> Result<Option<i64>, EtcdError> {
        conditions.extend(self.term_stands(Some(&held.stored)));
        let request = TxnRequest { compare: conditions, success };
        let answer = self.client.txn(request).await?;
        let revision = answer.header.map(|header| header.revision).unwrap_or_default();
        Ok(answer.succeeded.then_some(revision))
    }

    /// Whether the term is the present one, as it was written.
    pub(crate) fn is_present(&self, held: &HeldTerm, read: &ElectionRead) -> bool {
        read.term.as_ref() == Some(&held.stored)
    }

    /// Whether this process took the term.
    pub(crate) fn is_own(&self, record: &TermRecord) -> bool {
        record.process == self.process
    }

    /// The address of a term's leader, unless it is this replica's, or has released the term.
    pub(crate) fn other_address(&self, record: &TermRecord) -> Option<String> {
        let is_other = !record.released && record.address != self.address;
        is_other.then(|| record.address.clone())
    }

    fn term(&self, kv: KeyValue) -> Result<Stored<TermRecord>, EtcdError> {
        let shown = || String::from_utf8_lossy(&kv.key).into_owned();
        let record: TermRecord = decode(&kv).map_err(|error| {
            EtcdError::Invalid(format!(
                "the key {} cannot be read ({error}): no coordinator of this version wrote it; \
                 remove it only when no coordinator runs and no worker holds a lease",
                shown()
            ))
        })?;
        if record.epoch() > EPOCH_MAX {
            return Err(EtcdError::Invalid(format!(
                "the key {} has the epoch {}, above the highest one, {EPOCH_MAX}: no coordinator \
                 wrote that; put the number back that it had",
                shown(),
                record.epoch
            )));
        }
        Ok(Stored { record, mod_revision: kv.mod_revision, value: kv.value })
    }

    /// When every leader before has surely stopped. Each of its renewals that succeeded was sent
    /// before the keys were seen as they are, and none succeeds once they are replaced.
    fn predecessor_end(&self, read: &ElectionRead, taking: &Taking) -> Moment {
        let (since, leads) = match &read.term {
            None => (clock::now(), taking.unseen.max(self.leadership)),
            Some(term) if term.record.released || self.is_own(&term.record) => {
                (taking.seen_at, read.earlier)
            }
            Some(term) => (taking.seen_at, read.earlier.max(term.record.leadership())),
        };
        let end = match leads {
            Duration::ZERO => since,
            leads => since + taking.bounds.outlast(leads),
        };
        // A store that was put back may not show who led last.
        let replaced_at = self.client.seen().replaced_at;
        replaced_at.map_or(end, |at| end.max(at + taking.bounds.outlast(taking.unseen)))
    }

    /// The conditions that the term is the one that was read.
    fn term_stands(&self, term: Option<&Stored<TermRecord>>) -> Vec<Compare> {
        let key = self.keys.term();
        match term {
            None => vec![has_revision(key, 0)],
            // A store that was restored may give a revision to another term.
            Some(term) => {
                vec![has_revision(key.clone(), term.mod_revision), has_value(key, &term.value)]
            }
        }
    }

    fn heartbeat(
        &self,
        record: &TermRecord,
        beats: u64,
        predecessor_end: Moment,
    ) -> Result<RequestOp, EtcdError> {
        let earlier_ms = milliseconds(predecessor_end.since(clock::now()));
        let heartbeat = HeartbeatRecord { term: record.term.clone(), beats, earlier_ms };
        Ok(put(self.keys.heartbeat(), encode(&heartbeat)?))
    }
}

/// The epoch after the one that was read. It is above the store's revision, so that a removed or
/// edited key does not reset epochs, and above the time of day, so that a store that was restored
/// from a backup does not either, unless clocks are wrong by more than the backup's age.
fn next_epoch(read: &ElectionRead, above: Epoch) -> Epoch {
    let stored = read.term.as_ref().map(|term| term.record.epoch()).unwrap_or_default();
    let of_clock = epoch_of_clock(clock::time_of_day().as_secs(), fastrand::u64(..));
    stored.max(above).max(Epoch(read.revision)).max(of_clock).next()
}

/// The seconds, and six random digits: tokens of two cells that begin in one second differ, too.
fn epoch_of_clock(seconds: u64, random: u64) -> Epoch {
    let begun = seconds.saturating_mul(EPOCHS_PER_SECOND);
    Epoch(begun.saturating_add(random % EPOCHS_PER_SECOND).min(CLOCK_EPOCH_MAX))
}

/// The condition that a key was last written at this revision; 0 for a key that does not exist.
pub(crate) fn has_revision(key: Vec<u8>, revision: i64) -> Compare {
    let target_union = Some(TargetUnion::ModRevision(revision));
    Compare { target: CompareTarget::Mod.into(), key, target_union }
}

fn has_value(key: Vec<u8>, value: &[u8]) -> Compare {
    let target_union = Some(TargetUnion::Value(value.to_vec()));
    Compare { target: CompareTarget::Value.into(), key, target_union }
}

/// Writes a key.
pub(crate) fn put(key: Vec<u8>, value: Vec<u8>) -> RequestOp {
    RequestOp { request: Some(Request::RequestPut(PutRequest { key, value })) }
}

/// Removes a key.
pub(crate) fn remove(key: Vec<u8>) -> RequestOp {
    RequestOp { request: Some(Request::RequestDeleteRange(DeleteRangeRequest { key })) }
}

fn encode(record: &impl Serialize) -> Result<Vec<u8>, EtcdError> {
    serde_json::to_vec(record).map_err(|error| EtcdError::Invalid(error.to_string()))
}

fn decode<T: DeserializeOwned>(kv: &KeyValue) -> serde_json::Result<T> {
    serde_json::from_slice(&kv.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_above_the_term_the_revision_what_is_known_and_the_clock() {
        let read =
            |revision| ElectionRead { revision, term: None, renewed: 0, earlier: Duration::ZERO };
        let clock = epoch_of_clock(clock::time_of_day().as_secs(), 0);
        assert!(next_epoch(&read(7), Epoch(0)) > clock);
        assert_eq!(next_epoch(&read(1 << 60), Epoch(0)), Epoch((1 << 60) + 1));
        assert_eq!(next_epoch(&read(7), Epoch(1 << 61)), Epoch((1 << 61) + 1));
        assert_eq!(epoch_of_clock(1_764_230_400, 5_482_913), Epoch(1_764_230_400_482_913));
        assert_eq!(epoch_of_clock(u64::MAX, 1), Epoch(CLOCK_EPOCH_MAX));
    }
}
