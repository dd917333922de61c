//! The election's store and the register of exposures, with the semantics of standalone mode.
//!
//! Invariant: an epoch is handed out once, by compare-and-swap.

use std::collections::BTreeMap;

use leasehold_coordinator_core::event::Exposure;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Epoch, Moment, WorkerKey};

/// What is on the shared disk.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// The newest term that was handed out.
    pub epoch: Epoch,
    /// Who has it; none where its leader gave it up.
    pub owner: Option<usize>,
    /// Grows with every election and renewal.
    pub version: u64,
    /// What workers may hold.
    pub register: BTreeMap<WorkerKey, Exposure>,
}

/// What a replica asks of the store.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// What is there?
    Read,
    /// Take the next epoch, if nobody has since this version.
    Take {
        /// The version that was seen.
        version: u64,
        /// The new epoch is above this, too.
        above: Epoch,
    },
    /// Who may hold what? Sent after the epoch was taken.
    List(Epoch),
    /// Renew this term; when that was sent.
    Renew(Epoch, Moment),
    /// Give this term up.
    Release(Epoch),
    /// Write exposures down: first half of a registration.
    Write(Epoch, u64, Vec<(WorkerKey, Exposure)>),
    /// Is it still this epoch? Second half.
    Check(Epoch, u64, Vec<(WorkerKey, Exposure)>),
    /// Strike workers, under this epoch.
    Strike(Epoch, u64, Vec<WorkerKey>),
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// To a read: version, epoch, owner.
    State(u64, Epoch, Option<usize>),
    /// To a take: the new epoch and version, if it was won.
    Taken(Option<(Epoch, u64)>),
    /// To a list.
    Listed(Epoch, BTreeMap<WorkerKey, Exposure>),
    /// To a renewal: when it was sent, and the new version or the refusal.
    Renewed(Epoch, Moment, Option<u64>),
    /// A registration or a strike (by number) is done, or refused; the entries written.
    Registered(Epoch, u64, bool, Vec<(WorkerKey, Exposure)>),
}

impl Store {
    /// Carries a request out; a write answers only at its check.
    pub(super) fn serve(&mut self, replica: usize, request: Request) -> Option<Answer> {
        match request {
            Request::Read => Some(Answer::State(self.version, self.epoch, self.owner)),
            Request::Take { version, above } => {
                Some(Answer::Taken(self.take(replica, version, above)))
            }
            Request::List(epoch) => Some(Answer::Listed(epoch, self.register.clone())),
            Request::Renew(epoch, sent) => {
                let mine = self.epoch == epoch && self.owner == Some(replica);
                self.version += u64::from(mine);
                Some(Answer::Renewed(epoch, sent, mine.then_some(self.version)))
            }
            Request::Release(epoch) => {
                if self.epoch == epoch && self.owner == Some(replica) {
                    self.owner = None;
                    self.version += 1;
                }
                None
            }
            Request::Write(_, _, entries) => {
                for (key, exposure) in entries {
                    let entry = self.register.entry(key).or_default();
                    *entry = entry.join(&exposure);
                }
                None
            }
            Request::Check(epoch, number, entries) => {
                // In standalone mode this look at the epoch confirms a leader, too.
                let leads = self.epoch == epoch || mutation::on(Mutation::SkipConfirm);
                Some(Answer::Registered(epoch, number, leads, entries))
            }
            Request::Strike(epoch, number, keys) => {
                let mine = self.epoch == epoch;
                if mine {
                    for key in &keys {
                        self.register.remove(key);
                    }
                }
                Some(Answer::Registered(epoch, number, mine, Vec::new()))
            }
        }
    }

    fn take(&mut self, replica: usize, version: u64, above: Epoch) -> Option<(Epoch, u64)> {
        if version != self.version {
            return None;
        }
        self.epoch = self.epoch.max(above).next();
        self.owner = Some(replica);
        self.version += 1;
        Some((self.epoch, self.version))
    }
}
