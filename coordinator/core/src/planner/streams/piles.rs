//! The streams that stand on each worker, to be taken heaviest first.

use super::room::Room;
use super::step_budget::StepBudget;
use super::{Placement, StreamSpec};

/// The end of a list of streams.
const END: u32 = u32::MAX;

/// The streams of each touched worker. A worker's are put in order when the first is asked for.
#[derive(Clone, Debug)]
pub(super) struct Piles {
    /// Per touched worker the last of its streams, and per stream the one before it.
    last: Vec<u32>,
    before: Vec<u32>,
    /// The piles that have been asked for, one behind the other.
    streams: Vec<u32>,
    piles: Vec<Option<Pile>>,
}

/// A pile: its frozen streams are `bottom..movable`, the others `movable..top`.
#[derive(Clone, Copy, Debug)]
struct Pile {
    bottom: usize,
    movable: usize,
    top: usize,
}

impl Piles {
    /// Piles for the workers that are touched now, without any of so many streams yet.
    pub(super) fn new(streams: usize, room: &Room) -> Self {
        let last = vec![END; room.touched().len()];
        let piles = vec![None; last.len()];
        Self { last, before: vec![END; streams], streams: Vec::new(), piles }
    }

    /// Puts a stream where it stands, if it stays there. Streams come in the order of the list.
    pub(super) fn enter(
        &mut self,
        at: usize,
        stream: &StreamSpec,
        placement: Placement,
        room: &Room,
    ) {
        let kept = stream.present.filter(|on| placement == Placement::On(*on));
        if let (false, Some(worker)) = (stream.dedicated, kept) {
            let last = &mut self.last[room.slot(worker)];
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
        let mut pile = match self.piles[slot] {
            Some(pile) => pile,
            None => self.stack(slot, streams, budget),
        };
        let end = if any { pile.bottom } else { pile.movable };
        let taken = (pile.top > end).then(|| {
            pile.top -= 1;
            self.streams[pile.top]
        });
        self.piles[slot] = Some(pile);
        taken
    }

    fn stack(&mut self, slot: usize, streams: &[StreamSpec], budget: &mut StepBudget) -> Pile {
        let bottom = self.streams.len();
        let mut at = self.last[slot];
        while at != END {
            self.streams.push(at);
            at = self.before[at as usize];
        }
        let pile = &mut self.streams[bottom..];
        budget.spend(pile.len());
        pile.sort_unstable_by_key(|&at| {
            let stream = &streams[at as usize];
            (!stream.frozen, stream.weight, at)
        });
        let frozen = pile.iter().take_while(|at| streams[**at as usize].frozen).count();
        Pile { bottom, movable: bottom + frozen, top: self.streams.len() }
    }
}
