//! The streams on each worker, to be taken heaviest first.

use super::step_budget::StepBudget;
use super::worker_loads::WorkerLoads;
use super::{Placement, StreamSpec};

/// The end of a list of streams.
const END: u32 = u32::MAX;

/// The streams of each touched worker. A worker's are put in order when the first is asked for.
#[derive(Clone, Debug)]
pub(super) struct WorkerStreams {
    /// Per touched worker the last of its streams, and per stream the one before it.
    last: Vec<u32>,
    before: Vec<u32>,
    /// The sorted streams of the workers asked for so far, one worker behind the other.
    streams: Vec<u32>,
    worker_streams: Vec<Option<SortedStreams>>,
}

/// One worker's streams in `streams`: `bottom..movable` are frozen, `movable..top` may move.
#[derive(Clone, Copy, Debug)]
struct SortedStreams {
    bottom: usize,
    movable: usize,
    top: usize,
}

impl WorkerStreams {
    /// Empty lists for the workers of the current set, which has `streams` streams.
    pub(super) fn new(streams: usize, loads: &WorkerLoads) -> Self {
        let last = vec![END; loads.touched().len()];
        let worker_streams = vec![None; last.len()];
        Self { last, before: vec![END; streams], streams: Vec::new(), worker_streams }
    }

    /// Adds a stream to the list of its worker, if it stays there. Streams come in the order of the
    /// set's list.
    pub(super) fn enter(
        &mut self,
        at: usize,
        stream: &StreamSpec,
        placement: Placement,
        loads: &WorkerLoads,
    ) {
        let kept = stream.present.filter(|on| placement == Placement::On(*on));
        if let (false, Some(worker)) = (stream.dedicated, kept) {
            let last = &mut self.last[loads.slot(worker)];
            self.before[at] = std::mem::replace(last, at as u32);
        }
    }

    /// Takes the heaviest stream of a worker, the later in the list among equals. With `any`,
    /// takes frozen ones when nothing else is left.
    pub(super) fn pop(
        &mut self,
        slot: usize,
        streams: &[StreamSpec],
        any: bool,
        budget: &mut StepBudget,
    ) -> Option<u32> {
        if slot >= self.last.len() {
            return None;
        }
        let mut sorted = match self.worker_streams[slot] {
            Some(sorted) => sorted,
            None => self.sort(slot, streams, budget),
        };
        let end = if any { sorted.bottom } else { sorted.movable };
        let taken = (sorted.top > end).then(|| {
            sorted.top -= 1;
            self.streams[sorted.top]
        });
        self.worker_streams[slot] = Some(sorted);
        taken
    }

    fn sort(
        &mut self,
        slot: usize,
        streams: &[StreamSpec],
        budget: &mut StepBudget,
    ) -> SortedStreams {
        let bottom = self.streams.len();
        let mut at = self.last[slot];
        while at != END {
            self.streams.push(at);
            at = self.before[at as usize];
        }
        let sorted = &mut self.streams[bottom..];
        budget.spend(sorted.len());
        sorted.sort_unstable_by_key(|&at| {
            let stream = &streams[at as usize];
            (!stream.frozen, stream.weight, at)
        });
        let frozen = sorted.iter().take_while(|at| streams[**at as usize].frozen).count();
        SortedStreams { bottom, movable: bottom + frozen, top: self.streams.len() }
    }
}
