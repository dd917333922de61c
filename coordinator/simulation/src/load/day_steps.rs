//! A value that changes with the time of the day, in steps.

use std::time::Duration;

use super::day_time::DAY;

/// A value over a day, which repeats.
#[derive(Clone, Debug)]
pub(super) struct DaySteps<T> {
    /// From when in the day which value holds, in the order of time, and at least one. Before the
    /// first one the last one holds, from the day before.
    steps: Vec<(Duration, T)>,
    /// The time of the day at which the simulation starts.
    start: Duration,
}

impl<T: Copy> DaySteps<T> {
    /// These values, from the time of the day `start` on.
    pub(super) fn new(steps: Vec<(Duration, T)>, start: Duration) -> Self {
        assert!(!steps.is_empty(), "a value holds at every time");
        Self { steps, start }
    }

    /// The value at a time after the start, and until when it holds; none if it holds for ever.
    pub(super) fn at(&self, time: Duration) -> (T, Option<Duration>) {
        if let [(_, value)] = self.steps.as_slice() {
            return (*value, None);
        }
        let since_midnight = self.start + time;
        let in_day =
            Duration::new(since_midnight.as_secs() % DAY.as_secs(), since_midnight.subsec_nanos());
        let passed = self.steps.partition_point(|(at, _)| *at <= in_day);
        let (_, value) = self.steps[passed.checked_sub(1).unwrap_or(self.steps.len() - 1)];
        let next = self.steps.get(passed).map_or(self.steps[0].0 + DAY, |(at, _)| *at);
        (value, Some(time + (next - in_day)))
    }

    /// The times after the start at which another step begins, below `length`, with its value.
    pub(super) fn changes(&self, length: Duration) -> impl Iterator<Item = (Duration, T)> {
        let next = move |time: &Duration| {
            let (_, until) = self.at(*time);
            until.filter(|until| *until < length)
        };
        let first = next(&Duration::ZERO);
        std::iter::successors(first, next).map(move |time| (time, self.at(time).0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_step_holds_until_the_next_one_and_the_last_one_into_the_next_day() {
        let steps = DaySteps::new(vec![(HOUR * 8, 'd'), (HOUR * 18, 'n')], HOUR * 20);
        assert_eq!(steps.at(Duration::ZERO), ('n', Some(HOUR * 12)));
        assert_eq!(steps.at(HOUR * 12), ('d', Some(HOUR * 22)));
        assert_eq!(steps.at(HOUR * 30), ('n', Some(HOUR * 36)));
        let changes: Vec<_> = steps.changes(HOUR * 40).collect();
        assert_eq!(changes, [(HOUR * 12, 'd'), (HOUR * 22, 'n'), (HOUR * 36, 'd')]);
        assert_eq!(steps.changes(HOUR * 12).count(), 0, "the end is no change");
        let constant = DaySteps::new(vec![(Duration::ZERO, 'c')], HOUR);
        assert_eq!((constant.at(HOUR * 50), constant.changes(HOUR * 90).count()), (('c', None), 0));
    }
}
