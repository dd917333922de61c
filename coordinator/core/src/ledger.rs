//! The ledger: the slots and leases that workers may be using. Only it grants and frees. It never
//! sees desired state.
//!
//! Invariant: the ledger over-approximates. It frees slots and streams when the agent reports their
//! end, when the platform declares the worker gone or, for leases that expire, once leadership was
//! confirmed after their end.

mod account;
mod accounts;
mod claim_index;
mod claim_table;
mod claims;
mod faults;
mod unreported;

use std::collections::BTreeSet;
use std::ops::Bound;

use leasehold_types::{
    ClusterName, Epoch, GrantNumber, Load, Moment, StreamKey, TimeBounds, Token, WorkerKey,
    WorkerName,
};

use crate::exposure::AccountId;
pub(crate) use account::{Account, UnaccountedSlots};
pub(crate) use accounts::AccountMut;
use accounts::Accounts;
use claim_table::ClaimTable;
pub(crate) use claims::{AbsentClaims, AdoptionStart, Claim, Phase, ReportNumber};
use unreported::UnreportedWorkers;

/// A stream lease that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedLease {
    pub(crate) stream: StreamKey,
    pub(crate) worker: WorkerKey,
    pub(crate) token: Token,
}

/// All leases of one term.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    epoch: Epoch,
    seq: u64,
    /// The highest grant number of all workers that are gone. A worker that returns gets higher
    /// numbers, because its agent may have seen the lower ones.
    number_max: GrantNumber,
    pub(crate) bounds: TimeBounds,
    /// Until when a predecessor may have granted by itself.
    predecessor_end: Moment,
    /// When the newest renewal of leadership that succeeded was sent.
    confirmed_at: Moment,
    accounts: Accounts,
    claims: ClaimTable,
    unreported: UnreportedWorkers,
    /// The newest account's.
    last_account_id: AccountId,
    /// The newest report's.
    reports: ReportNumber,
}

impl Ledger {
    /// The ledger of a new term: every worker of an earlier term counts with the most that it may
    /// hold (see [`Ledger::expose`]).
    pub(crate) fn new(epoch: Epoch, predecessor_end: Moment, bounds: TimeBounds) -> Self {
        Self {
            epoch,
            seq: 0,
            number_max: GrantNumber(0),
            bounds,
            predecessor_end,
            confirmed_at: Moment::EARLIEST,
            accounts: Accounts::default(),
            claims: ClaimTable::default(),
            unreported: UnreportedWorkers::default(),
            last_account_id: AccountId(0),
            reports: ReportNumber(0),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A renewal of leadership that was sent then has succeeded.
    pub(crate) fn confirm(&mut self, sent_at: Moment) {
        self.confirmed_at = self.confirmed_at.max(sent_at);
    }

    /// Whether leadership was confirmed at `moment` or after it.
    pub(crate) fn confirmed_since(&self, moment: Moment) -> bool {
        self.confirmed_at >= moment || faults::frees_unconfirmed()
    }

    pub(crate) fn next_token(&mut self) -> Token {
        self.seq += 1;
        if faults::leaves_epoch_out_of_tokens() {
            Token { epoch: Epoch(1), seq: self.seq }
        } else {
            Token { epoch: self.epoch, seq: self.seq }
        }
    }

    fn next_account_id(&mut self) -> AccountId {
        self.last_account_id.0 += 1;
        self.last_account_id
    }

    pub(crate) fn account(&self, key: &WorkerKey) -> Option<&Account> {
        self.accounts.get(key)
    }

    pub(crate) fn account_mut<'a>(&'a mut self, key: &'a WorkerKey) -> Option<AccountMut<'a>> {
        self.accounts.get_mut(key)
    }

    /// The id of a worker's present account.
    pub(crate) fn account_id_of(
        &self,
        cluster: &ClusterName,
        worker: &WorkerName,
    ) -> Option<AccountId> {
        let key = WorkerKey { cluster: cluster.clone(), worker: worker.clone() };
        self.account(&key).map(|account| account.id)
    }

    /// The workers whose accounts have changed, in facts that pools are planned by, since the last
    /// call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<WorkerKey> {
        self.accounts.take_changed()
    }

    /// The account of a worker that has one or gets one now.
    pub(crate) fn open<'a>(&'a mut self, key: &'a WorkerKey, now: Moment) -> AccountMut<'a> {
        let anew = faults::begins_numbers_anew();
        let number = if anew { GrantNumber(0) } else { self.number_max };
        let last = &mut self.last_account_id;
        self.accounts.open(key, || {
            last.0 += 1;
            Account::new(*last, number, now)
        })
    }

    /// The accounts of one cluster.
    pub(crate) fn accounts_of<'a>(
        &'a self,
        cluster: &'a ClusterName,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a Account)> {
        self.accounts_of_after(cluster, None)
    }

    /// The same, all or those after this worker.
    pub(crate) fn accounts_of_after<'a>(
        &'a self,
        cluster: &'a ClusterName,
        after: Option<&WorkerName>,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a Account)> {
        let key =
            |worker: &WorkerName| WorkerKey { cluster: cluster.clone(), worker: worker.clone() };
        let from = match after {
            Some(worker) => Bound::Excluded(key(worker)),
            None => Bound::Included(key(&WorkerName::first())),
        };
        let accounts = self.accounts.range((from, Bound::Unbounded));
        accounts.take_while(move |(key, _)| key.cluster == *cluster)
    }

    /// The accounts of the agents that had a worker's name before its present one.
    pub(crate) fn former_accounts<'a>(
        &'a self,
        key: &'a WorkerKey,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a Account)> {
        let first = key.former_first();
        self.accounts.range(first..).take_while(move |(worker, _)| worker.present() == *key)
    }

    /// The load of all shares that a name's former agents may hold; none while it is not known. An
    /// agent that was started without its folder has taken its name from the one before, and both
    /// stand for the same worker.
    pub(crate) fn former_load(&self, key: &WorkerKey, now: Moment) -> Option<Load> {
        self.former_accounts(key).try_fold(Load::ZERO, |sum, (former, account)| {
            (!self.may_hold_unreported(former, now)).then_some(sum + account.load)
        })
    }

    /// The accounts of all clusters, after one of them or all.
    pub(crate) fn accounts_after(
        &self,
        after: Option<&WorkerKey>,
    ) -> impl Iterator<Item = (&WorkerKey, &Account)> {
        self.accounts.after(after)
    }

    /// Copies a worker's account and its claims on shares from another ledger; how many these are.
    pub(crate) fn copy_shares(&mut self, from: &Self, key: &WorkerKey) -> usize {
        let Some(account) = from.account(key) else { return 0 };
        let shares = account.streams.iter().filter(|stream| stream.set.is_shares());
        let streams: BTreeSet<_> = shares.cloned().collect();
        for stream in &streams {
            for claim in from.claims(stream).iter().filter(|claim| claim.worker == *key) {
                self.claims.add(stream, claim.clone());
            }
        }
        let copied = streams.len();
        let mut account = account.clone();
        account.streams = streams;
        self.accounts.open(key, || account);
        copied
    }

    /// Moves all that a worker may hold to another name.
    pub(crate) fn rename(&mut self, key: &WorkerKey, to: &WorkerKey) {
        self.unreported.rename(key, to);
        let Some(account) = self.accounts.rename(key, to) else { return };
        self.number_max = self.number_max.max(account.number);
        for stream in &account.streams {
            let claims = self.claims.get_mut(stream).iter_mut();
            for claim in claims.filter(|claim| claim.worker == *key) {
                claim.worker = to.clone();
            }
        }
    }

    /// Upper bound of the slots of a cluster that are in use.
    pub(crate) fn committed(&self, cluster: &ClusterName) -> u32 {
        self.accounts.committed(cluster)
    }

    /// The committed slots of a cluster that no report to this leader confirms.
    pub(crate) fn unreported_slots(&self, cluster: &ClusterName) -> u32 {
        self.accounts.unreported_slots(cluster)
    }

    /// Drops a part of the ledger of a term that has ended; whether anything is left.
    pub(crate) fn shrink(&mut self, by: usize) -> bool {
        self.claims.shrink(by) || self.accounts.shrink(by)
    }

    /// The platform has declared that nothing of this worker runs any longer.
    pub(crate) fn gone(&mut self, key: &WorkerKey) -> Vec<EndedLease> {
        self.unreported.remove(key);
        let Some(account) = self.accounts.remove(key) else { return Vec::new() };
        self.number_max = self.number_max.max(account.number);
        let streams = account.streams.into_iter();
        streams.flat_map(|stream| self.remove_claims(&stream, key, |_| true)).collect()
    }
}
