//! What is recorded of a class while it is simulated, and its figures.

use leasehold_types::Moment;
use serde::Serialize;

use crate::record::PARTS;
use crate::served_shares::ShareFigures;

/// What became of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassFigures {
    /// How often a share went from one worker to another.
    pub moves: u64,
    /// The load of the shares that its workers had, as a part of their capacity, over the whole
    /// time: from 0 to 1.
    pub utilization: f64,
    /// The most load that one worker had, as a part of its capacity.
    pub worker_load_max: f64,
    /// The most workers that ran at once, those that end included.
    pub workers_max: u32,
    /// The most workers that autoscalers were told to have.
    pub workers_wanted_max: u32,
    /// The course: the most workers that autoscalers were told to have in each part of the time.
    pub workers_wanted: Vec<u32>,
}

/// The figures of a class that people compare: for each a title, and what it counts. The texts of
/// [`ClassFigures::figures`] are in this order.
pub const CLASS_FIGURES: [(&str, &str); 5] = [
    ("WORKERS", "the most workers at once, those that end included"),
    ("SHARED", "the part of the workers' capacity that their shares had, over the whole time"),
    ("FULLEST", "the most of its capacity that the shares of one worker had"),
    ("WANTED", "the most workers that autoscalers were told to have"),
    ("MOVES", "how often a share went from one worker to another"),
];

impl ClassFigures {
    /// The figures that people compare, as text, in the order of [`CLASS_FIGURES`].
    #[must_use]
    pub fn figures(&self) -> [String; CLASS_FIGURES.len()] {
        let percent = |part: f64| format!("{:.1}%", part * 100.0);
        [
            self.workers_max.to_string(),
            percent(self.utilization),
            percent(self.worker_load_max),
            self.workers_wanted_max.to_string(),
            self.moves.to_string(),
        ]
    }
}

/// Records how many workers autoscalers were told to have, from `start` to `end`.
#[derive(Debug)]
pub(crate) struct WantedRecorder {
    start: Moment,
    part_seconds: f64,
    wanted: u32,
    /// The part of the last change.
    part: usize,
    course: Vec<u32>,
}

impl WantedRecorder {
    /// From the start on so many are wanted.
    pub(crate) fn new(wanted: u32, start: Moment, end: Moment) -> Self {
        let part_seconds = end.since(start).as_secs_f64() / PARTS as f64;
        Self { start, part_seconds, wanted, part: 0, course: vec![0; PARTS] }
    }

    /// So many are wanted from now on.
    pub(crate) fn set(&mut self, wanted: u32, now: Moment) {
        let part = (now.since(self.start).as_secs_f64() / self.part_seconds) as usize;
        self.fill(part.min(PARTS - 1));
        self.wanted = wanted;
        self.fill(self.part);
    }

    /// The figures, with the most workers that ran, and those of the shares.
    pub(crate) fn finish(mut self, workers_max: u32, shares: ShareFigures) -> ClassFigures {
        self.fill(PARTS - 1);
        let ShareFigures { moves, utilization, worker_load_max } = shares;
        ClassFigures {
            moves,
            utilization,
            worker_load_max,
            workers_max,
            workers_wanted_max: self.course.iter().copied().max().unwrap_or(0),
            workers_wanted: self.course,
        }
    }

    /// Counts what is wanted, up to this part.
    fn fill(&mut self, part: usize) {
        for value in &mut self.course[self.part..=part] {
            *value = self.wanted.max(*value);
        }
        self.part = part;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_part_has_the_most_that_was_wanted_in_it() {
        let at = |seconds: u64| Moment(1_000) + Duration::from_secs(seconds);
        let mut recorder = WantedRecorder::new(3, at(0), at(PARTS as u64 * 10));
        recorder.set(5, at(25));
        recorder.set(1, at(27));
        recorder.set(2, at(40));
        let figures = recorder.finish(7, ShareFigures::default());
        assert_eq!(figures.workers_wanted[..6], [3, 3, 5, 1, 2, 2]);
        assert_eq!((figures.workers_wanted[PARTS - 1], figures.workers_wanted_max), (2, 5));
        assert_eq!(figures.figures(), ["7", "0.0%", "0.0%", "5", "0"]);
    }
}
