//! Gaps between the slices of `Contiguous` sets.
//!
//! A dedicated stream that has lost its worker may take any vacant one. The choice matters in a
//! `Contiguous` set: every reserved worker pushes the slices behind it to the next worker. The
//! streams that still have an owner show how many reserved workers were before that owner, and so
//! where the gaps are.

use super::{StreamInput, WorkerIndex, order};
use crate::desired::Policy;

/// The present owners of `Contiguous` slices.
#[derive(Clone, Debug)]
pub(super) struct SliceGaps {
    /// Per set, its streams that are not dedicated.
    streams: Vec<usize>,
    /// Per worker, a stream that it has: its set, and its place among those.
    known: Vec<Option<(usize, usize)>>,
}

/// Who uses a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerUse {
    /// A dedicated stream has it.
    Reserved,
    /// No stream has it.
    Vacant,
    /// Streams that are not dedicated have it.
    Shared,
}

impl SliceGaps {
    pub(super) fn new(input: &StreamInput<'_>) -> Self {
        Self { streams: vec![0; input.sets.len()], known: vec![None; input.workers.len()] }
    }

    /// Notes the next stream of a set that is not dedicated.
    pub(super) fn note(&mut self, input: &StreamInput<'_>, set: usize, on: Option<WorkerIndex>) {
        let place = self.streams[set];
        self.streams[set] += 1;
        if input.sets[set].policy == Policy::Contiguous
            && let Some(known) = on.and_then(|worker| self.known.get_mut(worker as usize))
        {
            known.get_or_insert((set, place));
        }
    }

    /// Vacant workers that no slice was cut for, as far as the streams with an owner show: at most
    /// `more`, in the workers' natural order, and none if no stream has an owner.
    pub(super) fn find(
        &self,
        input: &StreamInput<'_>,
        more: usize,
        used: impl Fn(WorkerIndex) -> WorkerUse,
    ) -> Vec<WorkerIndex> {
        let all = input.workers.len();
        let reserved =
            (0..).take(all).filter(|worker| used(*worker) == WorkerUse::Reserved).count();
        let open = all - reserved - more;
        let (mut found, mut vacant) = (Vec::new(), Vec::new());
        let mut before = 0;
        for (at, worker) in order::natural(input.workers).into_iter().enumerate() {
            if let Some(rank) = self.rank(worker, open) {
                // Further workers before this one that were reserved when the slices were cut.
                let missing = (at - before).saturating_sub(rank);
                let here = missing.min(vacant.len()).min(more - found.len());
                found.extend_from_slice(&vacant[vacant.len() - here..]);
                before += here;
                vacant.clear();
            }
            match used(worker) {
                WorkerUse::Reserved => before += 1,
                WorkerUse::Vacant => vacant.push(worker),
                WorkerUse::Shared => {}
            }
        }
        // Reserving a worker behind the last slice moves no slice.
        let any_owner = self.known.iter().any(Option::is_some);
        let rest = more - found.len();
        found.extend(vacant.into_iter().filter(|_| any_owner).take(rest));
        found
    }

    /// How many slices were cut for workers before this one, where that is known.
    fn rank(&self, worker: WorkerIndex, open: usize) -> Option<usize> {
        let (set, place) = self.known[worker as usize]?;
        let (least, larger) = (self.streams[set] / open, self.streams[set] % open);
        let in_larger = larger * (least + 1);
        Some(if place < in_larger {
            place / (least + 1)
        } else {
            larger + (place - in_larger) / least
        })
    }
}
