//! Workers for dedicated streams.
//!
//! Invariant: where any stream is not dedicated, at least one worker is not reserved.
//!
//! A dedicated stream whose worker has no stream that is not dedicated stays there and goes before
//! all others; then come those that share a worker, then those that have none, each in the order of
//! the sets and their lists. So no stream loses its worker to one that had none, and where workers
//! run out, the last streams of the list get none. Streams without a worker first take workers that
//! no slice was cut for, so that no slice moves.

use super::slice_gaps::{SliceGaps, WorkerUse};
use super::step_budget::StepBudget;
use super::{Placement, StreamInput, StreamSpec, Unplaced, WorkerIndex};

/// What is decided for dedicated streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservation {
    /// Per worker: it has a dedicated stream.
    pub(super) reserved: Vec<bool>,
    /// Per set: how many dedicated streams change from one living worker to another.
    pub(super) moved: Vec<usize>,
}

/// A dedicated stream.
#[derive(Clone, Copy, Debug)]
struct DedicatedStream {
    set: usize,
    at: usize,
    stream: StreamSpec,
}

/// The streams that have to leave a worker if it is reserved; compared in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Shared {
    streams: u32,
    frozen: u32,
}

/// Assigns workers to dedicated streams.
#[derive(Clone, Debug)]
pub(super) struct DedicatedPlacement {
    phase: Phase,
    /// The position within the phase; in `Find`, within the present set.
    at: usize,
    set: usize,
    wanted: Vec<DedicatedStream>,
    /// Those that share a worker, and those that have none.
    sharing: Vec<(DedicatedStream, WorkerIndex)>,
    without: Vec<DedicatedStream>,
    any_shared: bool,
    /// Per worker, the streams that are not dedicated.
    shared: Vec<Shared>,
    /// The workers, those that are avoided last, then those with the least to move first, and how
    /// many of them were passed.
    by_load: Vec<WorkerIndex>,
    passed: usize,
    /// The slices, and the workers in the gaps between them, which go to streams without a worker
    /// first; the next worker last.
    gaps: SliceGaps,
    in_gaps: Vec<WorkerIndex>,
    /// How many more workers may be reserved.
    left: usize,
    reservation: Reservation,
}

/// The phases in which dedicated streams get their workers, in order.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Collects the dedicated streams.
    Find,
    /// Streams that are alone on their worker stay.
    Stay,
    /// Streams that share a worker follow.
    Sharing,
    /// Streams without a worker follow.
    Without,
    Done,
}

impl DedicatedPlacement {
    pub(super) fn new(input: &StreamInput<'_>) -> Self {
        Self {
            phase: Phase::Find,
            at: 0,
            set: 0,
            wanted: Vec::new(),
            sharing: Vec::new(),
            without: Vec::new(),
            any_shared: false,
            shared: vec![Shared::default(); input.workers.len()],
            by_load: Vec::new(),
            passed: 0,
            gaps: SliceGaps::new(input),
            in_gaps: Vec::new(),
            left: 0,
            reservation: Reservation {
                reserved: vec![false; input.workers.len()],
                moved: vec![0; input.sets.len()],
            },
        }
    }

    /// Makes a further step; returns the reservation once all dedicated streams are placed.
    pub(super) fn step(
        &mut self,
        input: &StreamInput<'_>,
        placements: &mut [Vec<Placement>],
        budget: &mut StepBudget,
    ) -> Option<Reservation> {
        loop {
            let next = match self.phase {
                Phase::Find => self.find(input, budget),
                Phase::Stay => self.stay(placements, budget),
                Phase::Sharing => self.give_sharing(input, placements, budget),
                Phase::Without => self.give_without(placements, budget),
                Phase::Done => return Some(std::mem::take(&mut self.reservation)),
            };
            (self.phase, self.at) = (next?, 0);
        }
    }

    fn find(&mut self, input: &StreamInput<'_>, budget: &mut StepBudget) -> Option<Phase> {
        while let Some(set) = input.sets.get(self.set) {
            for at in budget.next_range(&mut self.at, set.streams.len()) {
                let stream = set.streams[at];
                if stream.dedicated {
                    self.wanted.push(DedicatedStream { set: self.set, at, stream });
                    continue;
                }
                self.any_shared = true;
                self.gaps.note(input, self.set, stream.present);
                if let Some(on) = stream.present.and_then(|at| self.shared.get_mut(at as usize)) {
                    on.streams += 1;
                    on.frozen += u32::from(stream.frozen);
                }
            }
            if self.at < set.streams.len() {
                return None;
            }
            (self.set, self.at) = (self.set + 1, 0);
        }
        if self.wanted.is_empty() {
            return Some(Phase::Done);
        }
        let workers = (0..).zip(&self.shared).map(|(at, on)| (input.is_avoided(at), *on, at));
        let mut by_load: Vec<_> = workers.collect();
        by_load.sort_unstable();
        budget.spend(by_load.len());
        self.by_load = by_load.into_iter().map(|(_, _, worker)| worker).collect();
        self.left = self.shared.len() - usize::from(self.any_shared);
        Some(Phase::Stay)
    }

    fn stay(
        &mut self,
        placements: &mut [Vec<Placement>],
        budget: &mut StepBudget,
    ) -> Option<Phase> {
        for at in budget.next_range(&mut self.at, self.wanted.len()) {
            let dedicated = self.wanted[at];
            match dedicated.stream.present.filter(|at| (*at as usize) < self.shared.len()) {
                Some(own) if self.shared[own as usize].streams == 0 && self.is_free(own) => {
                    self.give(&dedicated, own, placements);
                }
                Some(own) => self.sharing.push((dedicated, own)),
                None => self.without.push(dedicated),
            }
        }
        (self.at == self.wanted.len()).then_some(Phase::Sharing)
    }

    fn give_sharing(
        &mut self,
        input: &StreamInput<'_>,
        placements: &mut [Vec<Placement>],
        budget: &mut StepBudget,
    ) -> Option<Phase> {
        for at in budget.next_range(&mut self.at, self.sharing.len()) {
            let (dedicated, own) = self.sharing[at];
            self.give_own_or_least(&dedicated, own, placements);
        }
        if self.at < self.sharing.len() {
            return None;
        }
        let more = self.without.len().min(self.left);
        if more > 0 {
            budget.spend(self.shared.len());
            self.in_gaps = self.gaps.find(input, more, |worker| self.used(worker));
            self.in_gaps.retain(|worker| !input.is_avoided(*worker));
            self.in_gaps.reverse();
        }
        Some(Phase::Without)
    }

    fn give_without(
        &mut self,
        placements: &mut [Vec<Placement>],
        budget: &mut StepBudget,
    ) -> Option<Phase> {
        for at in budget.next_range(&mut self.at, self.without.len()) {
            let dedicated = self.without[at];
            match self.in_gaps.pop().or_else(|| self.least()) {
                Some(worker) => self.give(&dedicated, worker, placements),
                None => refuse(&dedicated, placements),
            }
        }
        (self.at == self.without.len()).then_some(Phase::Done)
    }

    fn used(&self, worker: WorkerIndex) -> WorkerUse {
        match self.shared[worker as usize].streams {
            _ if self.reservation.reserved[worker as usize] => WorkerUse::Reserved,
            0 => WorkerUse::Vacant,
            _ => WorkerUse::Shared,
        }
    }

    /// Whether the worker can be reserved.
    fn is_free(&self, worker: WorkerIndex) -> bool {
        self.left > 0 && !self.reservation.reserved[worker as usize]
    }

    fn give(
        &mut self,
        dedicated: &DedicatedStream,
        worker: WorkerIndex,
        placements: &mut [Vec<Placement>],
    ) {
        self.left -= 1;
        self.reservation.reserved[worker as usize] = true;
        let living = |at: &WorkerIndex| (*at as usize) < self.shared.len();
        let moves =
            dedicated.stream.present.filter(living).is_some_and(|present| present != worker);
        self.reservation.moved[dedicated.set] += usize::from(moves);
        placements[dedicated.set][dedicated.at] = Placement::On(worker);
    }

    /// Reserves for a stream the worker that it shares, unless fewer streams move if the stream
    /// itself moves.
    fn give_own_or_least(
        &mut self,
        dedicated: &DedicatedStream,
        own: WorkerIndex,
        placements: &mut [Vec<Placement>],
    ) {
        let Some(least) = self.least() else { return refuse(dedicated, placements) };
        let others = |worker: WorkerIndex| self.shared[worker as usize].streams;
        let stays =
            self.is_free(own) && (dedicated.stream.frozen || others(own) <= others(least) + 1);
        self.give(dedicated, if stays { own } else { least }, placements);
    }

    /// The worker that can be reserved with the least to move.
    fn least(&mut self) -> Option<WorkerIndex> {
        while let Some(&worker) = self.by_load.get(self.passed) {
            if self.is_free(worker) {
                return Some(worker);
            }
            self.passed += 1;
        }
        None
    }
}

fn refuse(dedicated: &DedicatedStream, placements: &mut [Vec<Placement>]) {
    placements[dedicated.set][dedicated.at] = Placement::Unplaced(Unplaced::NoWorkerOfItsOwn);
}
