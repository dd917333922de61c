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
mod stored_exposure;
mod unreported;

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_types::{Epoch, GrantNumber, Moment, StreamKey, TimeBounds, Token, WorkerKey};

use crate::exposure::AccountId;
pub(crate) use account::{Account, UnaccountedSlots};
pub(crate) use accounts::AccountMut;
use accounts::Accounts;
use claim_table::ClaimTable;
pub(crate) use claims::{AbsentClaims, AdoptionStart, Claim, Phase, ReportNumber};
pub(crate) use stored_exposure::StoredExposure;
use unreported::{UnreportedLeases, UnreportedWorkers};

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
    bounds: TimeBounds,
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

    /// All accounts.
    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// All claims.
    pub(crate) fn claim_table(&self) -> &ClaimTable {
        &self.claims
    }

    /// The leases that workers may hold and that no agent has reported to this leader.
    pub(crate) fn unreported(&self) -> UnreportedLeases<'_> {
        UnreportedLeases::new(self)
    }

    pub(crate) fn account(&self, key: &WorkerKey) -> Option<&Account> {
        self.accounts.get(key)
    }

    pub(crate) fn account_mut<'a>(&'a mut self, key: &'a WorkerKey) -> Option<AccountMut<'a>> {
        self.accounts.get_mut(key)
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

    /// Copies a worker's account and its claims on shares from another ledger; how many these are.
    pub(crate) fn copy_shares(&mut self, from: &Self, key: &WorkerKey) -> usize {
        let Some(account) = from.account(key) else { return 0 };
        let mut streams = Vec::new();
        for stream in from.streams_of(key, None).filter(|stream| stream.set.is_shares()) {
            let claims = from.claims(stream).iter().filter(|claim| *claim.worker == *key);
            let mut slot = None;
            for claim in claims {
                slot = Some(self.claims.add(stream, claim.clone()));
            }
            streams.extend(slot);
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
        let to = Arc::new(to.clone());
        let Some(account) = self.accounts.rename(key, &to) else { return };
        self.number_max = self.number_max.max(account.number);
        for slot in &account.streams {
            let (_, claims) = self.claims.slot_mut(*slot);
            for claim in claims.iter_mut().filter(|claim| *claim.worker == *key) {
                claim.worker = Arc::clone(&to);
            }
        }
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
        let streams = account.streams.iter().map(|slot| self.claims.stream(*slot).clone());
        let streams: Vec<_> = streams.collect();
        streams.iter().flat_map(|stream| self.remove_claims(stream, key, |_| true)).collect()
    }
}
