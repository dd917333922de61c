//! Workers for dedicated streams.
//!
//! Invariant: where any stream is not dedicated, at least one worker is reserved for none.
//!
//! A dedicated stream whose worker has no stream that is not dedicated stays there and goes
//! before all others; then come those that share a worker, then those that have none, each in the
//! order of the sets and their lists. So nobody loses a worker to a stream that had none, and
//! where workers run out, the later in the list is without.

use super::{Placement, StreamInput, StreamSpec, Unplaced, WorkerIndex};

/// What is decided for dedicated streams.
pub(super) struct Reservation {
    /// Per worker: it has a dedicated stream.
    pub(super) reserved: Vec<bool>,
    /// Per set: how many dedicated streams change from one living worker to another.
    pub(super) moved: Vec<usize>,
}

/// Places the dedicated streams of all sets.
pub(super) fn reserve(input: &StreamInput<'_>, placements: &mut [Vec<Placement>]) -> Reservation {
    let none = Reservation {
        reserved: vec![false; input.workers.len()],
        moved: vec![0; input.sets.len()],
    };
    let wanted = wanted(input);
    if wanted.is_empty() {
        return none;
    }
    let mut desk = Desk::new(input, none, placements);
    let (mut sharing, mut without) = (Vec::new(), Vec::new());
    for want in wanted {
        let present = want.stream.present.filter(|at| (*at as usize) < input.workers.len());
        match present {
            Some(own) if desk.shared[own as usize].streams == 0 && desk.is_free(own) => {
                desk.give(&want, own);
            }
            Some(own) => sharing.push((want, own)),
            None => without.push(want),
        }
    }
    for (want, own) in sharing {
        desk.give_own_or_least(&want, own);
    }
    for want in without {
        desk.give_least(&want);
    }
    desk.reservation
}

/// A dedicated stream.
struct Want {
    set: usize,
    at: usize,
    stream: StreamSpec,
}

fn wanted(input: &StreamInput<'_>) -> Vec<Want> {
    let mut wanted = Vec::new();
    for (set, streams) in input.sets.iter().map(|set| set.streams).enumerate() {
        for (at, stream) in streams.iter().enumerate().filter(|(_, stream)| stream.dedicated) {
            wanted.push(Want { set, at, stream: *stream });
        }
    }
    wanted
}

/// What has to move from a worker if it is reserved, in the order of what matters.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Shared {
    streams: u32,
    frozen: u32,
}

/// Where workers are given out.
struct Desk<'a> {
    /// Per worker, the streams that are not dedicated.
    shared: Vec<Shared>,
    /// The workers, those with the least to move first, and how many of them are looked at.
    by_shared: Vec<WorkerIndex>,
    passed: usize,
    /// How many more workers may be reserved.
    left: usize,
    reservation: Reservation,
    placements: &'a mut [Vec<Placement>],
}

impl<'a> Desk<'a> {
    fn new(
        input: &StreamInput<'_>,
        reservation: Reservation,
        placements: &'a mut [Vec<Placement>],
    ) -> Self {
        let mut shared = vec![Shared::default(); input.workers.len()];
        let mut any_shared = false;
        for stream in input.sets.iter().flat_map(|set| set.streams).filter(|s| !s.dedicated) {
            any_shared = true;
            if let Some(on) = stream.present.and_then(|at| shared.get_mut(at as usize)) {
                on.streams += 1;
                on.frozen += u32::from(stream.frozen);
            }
        }
        let mut by_shared: Vec<_> = (0..).zip(&shared).map(|(worker, on)| (*on, worker)).collect();
        by_shared.sort_unstable();
        Self {
            shared,
            by_shared: by_shared.into_iter().map(|(_, worker)| worker).collect(),
            passed: 0,
            left: input.workers.len() - usize::from(any_shared),
            reservation,
            placements,
        }
    }

    /// Whether the worker can be reserved.
    fn is_free(&self, worker: WorkerIndex) -> bool {
        self.left > 0 && !self.reservation.reserved[worker as usize]
    }

    fn give(&mut self, want: &Want, worker: WorkerIndex) {
        self.left -= 1;
        self.reservation.reserved[worker as usize] = true;
        let living = |at: &WorkerIndex| (*at as usize) < self.shared.len();
        let moves = want.stream.present.filter(living).is_some_and(|present| present != worker);
        self.reservation.moved[want.set] += usize::from(moves);
        self.placements[want.set][want.at] = Placement::On(worker);
    }

    /// Gives a stream that shares a worker that worker, unless fewer streams move if it goes to
    /// another one itself.
    fn give_own_or_least(&mut self, want: &Want, own: WorkerIndex) {
        let Some(least) = self.least() else { return self.refuse(want) };
        let others = |worker: WorkerIndex| self.shared[worker as usize].streams;
        let stays = self.is_free(own) && (want.stream.frozen || others(own) <= others(least) + 1);
        self.give(want, if stays { own } else { least });
    }

    fn give_least(&mut self, want: &Want) {
        match self.least() {
            Some(least) => self.give(want, least),
            None => self.refuse(want),
        }
    }

    fn refuse(&mut self, want: &Want) {
        self.placements[want.set][want.at] = Placement::Unplaced(Unplaced::NoWorkerOfItsOwn);
    }

    /// The worker that can be reserved with the least to move.
    fn least(&mut self) -> Option<WorkerIndex> {
        while let Some(&worker) = self.by_shared.get(self.passed) {
            if self.is_free(worker) {
                return Some(worker);
            }
            self.passed += 1;
        }
        None
    }
}
