//! Pool sizes: equal shares of a cluster's budget, the newest generation first. Workers to avoid
//! come after all others.
//!
//! Invariant: the shares' sum is the lesser of the budget and what all workers can take, and no
//! share is above the most per worker.
//!
//! Slots that workers may hold which have not reported are taken from growth only: if the workers
//! that can take jobs already have more than these slots leave, each keeps what it has.
//!
//! Within a rank shares differ by at most one. The odd slots go to the workers that are to
//! have more, then by name, never by the order of the input. So a plan is a fixed point: planned
//! again with its own result as the wanted sizes, it gives the same shares, whether or not all of
//! them are granted yet.
//!
//! [`KeptShares`] keeps the shares of a cluster as its workers change. After [`KeptShares::plan`]
//! they equal what [`plan`] gives for the same workers, at a cost that grows with the changed
//! shares only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::WorkerName;

use crate::merge::merge;
use crate::ordered_table::OrderedTable;

/// What the planner knows of a cluster's pools.
#[derive(Clone, Debug)]
pub struct PoolInput<'a> {
    /// Slots to share out: the budget less what workers outside `workers` hold, as far as they
    /// have reported. 0 where they hold more than all of it.
    pub budget: u32,
    /// The most slots that other workers may hold which have not reported.
    pub unreported: u32,
    /// The most that one worker takes, at least 1.
    pub per_worker_max: u32,
    /// The workers that can take jobs, in any order.
    pub workers: &'a [PoolWorker],
}

/// A worker that can take jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolWorker {
    /// Its name, unique in the input.
    pub name: WorkerName,
    /// What its share depends on.
    pub facts: PoolFacts,
}

/// What the share of a worker depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFacts {
    /// It gets what all others leave.
    pub avoided: bool,
    /// Its rollout generation; the highest is served first.
    pub generation: u64,
    /// The pool size that it has now.
    pub present: u32,
    /// The pool size that the last plan wants for it; without one, the present size. Among equals,
    /// the worker that is to have more keeps more.
    pub wanted: u32,
}

/// The order in which workers are served, the lowest first: by whether they are avoided, then by
/// generation. Workers of one rank have equal shares.
pub type PoolRank = (bool, Reverse<u64>);

impl PoolFacts {
    /// Its place among the workers.
    #[must_use]
    pub fn rank(&self) -> PoolRank {
        (self.avoided, Reverse(self.generation))
    }
}

/// The share of each worker, in the order of `input.workers`.
#[must_use]
pub fn plan(input: &PoolInput<'_>) -> Vec<u32> {
    let workers = input.workers;
    let kept = |worker: &PoolWorker| worker.facts.present.min(input.per_worker_max);
    let present = workers.iter().map(|worker| u64::from(kept(worker))).sum();
    let Some(budget) = slots_to_share(input.budget, input.unreported, present) else {
        return workers.iter().map(kept).collect();
    };
    let mut order: Vec<usize> = (0..workers.len()).collect();
    order.sort_unstable_by_key(|&at| {
        let PoolWorker { name, facts } = &workers[at];
        (facts.rank(), Reverse(facts.wanted), name)
    });
    let mut shares = vec![0; workers.len()];
    let mut left = u64::from(budget);
    let rank = |at: usize| workers[at].facts.rank();
    for peers in order.chunk_by(|&a, &b| rank(a) == rank(b)) {
        let count = peers.len() as u64;
        let slots = left.min(count * u64::from(input.per_worker_max));
        left -= slots;
        for (place, &at) in (0..).zip(peers) {
            let share = slots / count + u64::from(place < slots % count);
            shares[at] = u32::try_from(share).expect("a share is at most the u32 per worker");
        }
    }
    shares
}

/// The slots to share out among workers that have `present` slots of them; none where each keeps
/// what it has.
fn slots_to_share(budget: u32, unreported: u32, present: u64) -> Option<u32> {
    let left = budget.saturating_sub(unreported);
    match u64::from(left) >= present {
        true => Some(left),
        // The budget itself demands that pools shrink.
        false if present > u64::from(budget) => Some(budget),
        false => None,
    }
}

/// The workers of a cluster that can take jobs, with their shares.
#[derive(Clone, Debug, Default)]
pub struct KeptShares {
    workers: OrderedTable<WorkerName, KeptShare>,
    ranks: BTreeMap<PoolRank, Peers>,
    /// How many workers have a pool of each size.
    sizes: BTreeMap<u32, usize>,
    /// Each worker keeps its pool, up to this size.
    stays_up_to: Option<u32>,
}

/// A worker's place among the others.
#[derive(Clone, Copy, Debug)]
struct KeptShare {
    facts: PoolFacts,
    share: u32,
}

/// Among peers, those that are to have more come first, then those that come first by name.
type ShareRank = (Reverse<u32>, WorkerName);

/// The workers of one rank by share.
#[derive(Clone, Debug, Default)]
struct Peers {
    count: usize,
    by_share: BTreeMap<u32, BTreeSet<ShareRank>>,
}

/// A worker whose share has changed, and its new share.
type ChangedShare = (WorkerName, u32);

impl KeptShares {
    /// A worker can take jobs, and its share depends on these facts; with none, it cannot.
    pub fn set(&mut self, worker: &WorkerName, facts: Option<PoolFacts>) {
        let before = self.workers.get(worker).copied();
        if before.map(|before| before.facts) == facts {
            return;
        }
        if let Some(before) = before
            && let Some(count) = self.sizes.get_mut(&before.facts.present)
        {
            *count -= 1;
            if *count == 0 {
                self.sizes.remove(&before.facts.present);
            }
        }
        if let Some(PoolFacts { present, .. }) = facts {
            *self.sizes.entry(present).or_default() += 1;
        }
        if let Some(before) = before
            && let Some(peers) = self.ranks.get_mut(&before.facts.rank())
        {
            peers.count -= 1;
            peers.remove(before.share, &(Reverse(before.facts.wanted), worker.clone()));
            if peers.count == 0 {
                self.ranks.remove(&before.facts.rank());
            }
        }
        let Some(facts) = facts else {
            self.workers.remove(worker);
            return;
        };
        let share = before.map_or(0, |before| before.share);
        self.workers.insert(worker.clone(), KeptShare { facts, share });
        let peers = self.ranks.entry(facts.rank()).or_default();
        peers.count += 1;
        let rank = (Reverse(facts.wanted), worker.clone());
        peers.by_share.entry(share).or_default().insert(rank);
    }

    /// The plan is adopted for a worker: its share is wanted from now on. That changes no share.
    pub fn adopt(&mut self, worker: &WorkerName) {
        let Some(wanted) = self.share(worker) else { return };
        let facts = self.workers.get(worker).map(|kept| PoolFacts { wanted, ..kept.facts });
        self.set(worker, facts);
    }

    /// Shares out what [`PoolInput`] says; returns the workers whose shares have changed, beside
    /// those that were set since the last plan.
    pub fn plan(&mut self, budget: u32, unreported: u32, per_worker_max: u32) -> Vec<WorkerName> {
        let sizes = self.sizes.iter();
        let present =
            sizes.map(|(size, count)| *count as u64 * u64::from(*size.min(&per_worker_max)));
        let budget = slots_to_share(budget, unreported, present.sum());
        let stays_up_to = if budget.is_none() { Some(per_worker_max) } else { None };
        let stayed_up_to = std::mem::replace(&mut self.stays_up_to, stays_up_to);
        let mut changed = Vec::new();
        if stayed_up_to != stays_up_to {
            changed.extend(self.workers.keys().cloned());
        }
        if let Some(budget) = budget {
            changed.extend(self.share_out(budget, per_worker_max));
        }
        changed
    }

    fn share_out(&mut self, budget: u32, per_worker_max: u32) -> Vec<WorkerName> {
        let mut left = u64::from(budget);
        let mut changes = Vec::new();
        for peers in self.ranks.values_mut() {
            let count = peers.count as u64;
            let slots = left.min(count * u64::from(per_worker_max));
            left -= slots;
            let share = u32::try_from(slots / count).expect("at most the u32 per worker");
            let odd = usize::try_from(slots % count).expect("fewer than there are workers");
            peers.share_out(share, odd, &mut changes);
        }
        let mut changed = Vec::with_capacity(changes.len());
        for (worker, share) in changes {
            if let Some(kept) = self.workers.get_mut(&worker)
                && kept.share != share
            {
                kept.share = share;
                changed.push(worker);
            }
        }
        changed
    }

    /// The newest generation; none without workers.
    #[must_use]
    pub fn newest_generation(&self) -> Option<u64> {
        let first = |avoided| self.ranks.range((avoided, Reverse(u64::MAX))..).next();
        let newest = [false, true].map(first).into_iter().flatten();
        newest.map(|((_, Reverse(generation)), _)| *generation).max()
    }

    /// A worker's share; none where it cannot take jobs.
    #[must_use]
    pub fn share(&self, worker: &WorkerName) -> Option<u32> {
        let kept = self.workers.get(worker)?;
        Some(self.stays_up_to.map_or(kept.share, |most| kept.facts.present.min(most)))
    }
}

impl Peers {
    /// Gives the first `odd` workers one more than `share`, and the others `share`.
    fn share_out(&mut self, share: u32, odd: usize, changes: &mut Vec<ChangedShare>) {
        let more = share.saturating_add(1);
        let mut high = self.by_share.remove(&more).unwrap_or_default();
        let mut low = self.by_share.remove(&share).unwrap_or_default();
        let others = std::mem::take(&mut self.by_share);
        for (_, others) in others {
            changes.extend(others.iter().map(|(_, worker)| (worker.clone(), share)));
            merge(&mut low, others);
        }
        let mut raise = |rank: &ShareRank| changes.push((rank.1.clone(), more));
        if high.is_empty() && odd > 0 {
            let rest = low.iter().nth(odd).cloned();
            let rest = rest.map(|rest| low.split_off(&rest)).unwrap_or_default();
            high = std::mem::replace(&mut low, rest);
            high.iter().for_each(&mut raise);
        }
        while high.len() < odd
            && let Some(first) = low.pop_first()
        {
            raise(&first);
            high.insert(first);
        }
        let mut lower = |rank: &ShareRank| changes.push((rank.1.clone(), share));
        while high.len() > odd
            && let Some(last) = high.pop_last()
        {
            lower(&last);
            low.insert(last);
        }
        while high.last().zip(low.first()).is_some_and(|(last, first)| last > first)
            && let (Some(last), Some(first)) = (high.pop_last(), low.pop_first())
        {
            changes.push((last.1.clone(), share));
            changes.push((first.1.clone(), more));
            low.insert(last);
            high.insert(first);
        }
        let sets = [(share, low), (more, high)];
        self.by_share.extend(sets.into_iter().filter(|(_, set)| !set.is_empty()));
    }

    fn remove(&mut self, share: u32, rank: &ShareRank) {
        if let Some(set) = self.by_share.get_mut(&share) {
            set.remove(rank);
        }
    }
}
