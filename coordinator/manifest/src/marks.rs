//! The places of a list's streams. Nearly all lists have one stream in a line, so that the places
//! of a million streams follow from those of a few.

use std::ops::Range;

use super::tree::Position;

/// Places, in the order of the streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    runs: Vec<Run>,
    len: u32,
}

/// Streams in lines that follow each other, at one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// How many streams come before it.
    first: u32,
    at: Position,
}

impl Marks {
    /// How many streams have a place.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Adds the place of the next stream.
    pub(crate) fn push(&mut self, at: Position) {
        self.push_run(at, 1);
    }

    /// Adds the places of some streams of another list. `moved` changes the number of a line, and
    /// keeps the distances of lines.
    pub(crate) fn extend_from(
        &mut self,
        other: &Self,
        streams: Range<u32>,
        moved: impl Fn(u32) -> u32,
    ) {
        for (at, count) in other.runs(streams) {
            self.push_run(Position { line: moved(at.line), ..at }, count);
        }
    }

    /// All places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Position> {
        self.runs(0..self.len).flat_map(|(at, count)| {
            (0..count).map(move |lines| Position { line: at.line + lines, ..at })
        })
    }

    /// How many streams of a list of lines there are up to the end of this line.
    pub(crate) fn up_to_line(&self, line: u32) -> u32 {
        let runs = self.runs.partition_point(|run| run.at.line <= line);
        let Some(last) = self.runs[..runs].last() else { return 0 };
        let end = self.runs.get(runs).map_or(self.len, |next| next.first);
        end.min(last.first.saturating_add(line - last.at.line).saturating_add(1))
    }

    fn push_run(&mut self, at: Position, count: u32) {
        let goes_on = |run: &Run| {
            let line = run.at.line.checked_add(self.len - run.first);
            line == Some(at.line) && run.at.column == at.column
        };
        if !self.runs.last().is_some_and(goes_on) {
            self.runs.push(Run { first: self.len, at });
        }
        self.len += count;
    }

    /// The runs of these streams: the place of the first stream of each, and how many it has.
    fn runs(&self, streams: Range<u32>) -> impl Iterator<Item = (Position, u32)> {
        let ends = self.runs.iter().skip(1).map(|run| run.first).chain([self.len]);
        self.runs.iter().zip(ends).filter_map(move |(run, end)| {
            let (first, end) = (run.first.max(streams.start), end.min(streams.end));
            let line = run.at.line.saturating_add(first - run.first);
            (first < end).then(|| (Position { line, ..run.at }, end - first))
        })
    }
}

impl FromIterator<Position> for Marks {
    fn from_iter<I: IntoIterator<Item = Position>>(places: I) -> Self {
        let mut marks = Self::default();
        places.into_iter().for_each(|at| marks.push(at));
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places of streams in lines, of which some are empty and some are indented.
    fn places(rng: &mut fastrand::Rng) -> Vec<Position> {
        let mut line = 0;
        let place = |_| {
            line += if rng.u8(0..4) == 0 { 2 } else { 1 };
            Position { line, column: if rng.u8(0..4) == 0 { 3 } else { 1 } }
        };
        (0..12).map(place).collect()
    }

    #[test]
    fn places_are_what_they_were_and_equal_however_they_came_together() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1_000 {
            let (places, others) = (places(&mut rng), places(&mut rng));
            let (marks, other): (Marks, Marks) =
                (places.iter().copied().collect(), others.iter().copied().collect());
            assert_eq!(marks.iter().collect::<Vec<_>>(), places);
            for line in 0..30 {
                let wanted = places.iter().filter(|at| at.line <= line).count();
                assert_eq!(marks.up_to_line(line) as usize, wanted, "{line} of {places:?}");
            }
            let (start, end) = (rng.u32(0..=12), rng.u32(0..=12));
            let mut joined = Marks::default();
            joined.extend_from(&marks, 0..start, |line| line);
            joined.extend_from(&other, end..12, |line| line + 5);
            let moved = |at: &Position| Position { line: at.line + 5, ..*at };
            let kept = places[..start as usize].iter().copied();
            let wanted: Marks = kept.chain(others[end as usize..].iter().map(moved)).collect();
            assert_eq!(joined, wanted);
            assert_eq!(joined.len() as usize, joined.iter().count());
        }
    }
}
