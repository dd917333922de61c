//! The events of a simulation that are still to come.
//!
//! **Invariant**: events are taken in the order of their moments, and of two at one moment the one
//! that was added first.

use std::collections::BTreeMap;

use leasehold_types::Moment;

/// An event's place among the others: its moment, then the order in which it was added.
pub(crate) type Place = (Moment, u64);

/// Events that are still to come.
#[derive(Debug)]
pub struct Schedule<T> {
    now: Moment,
    added: u64,
    events: BTreeMap<Place, T>,
}

impl<T> Schedule<T> {
    /// A schedule without events, at this moment.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        Self { now, added: 0, events: BTreeMap::new() }
    }

    /// The moment of the event that was taken last.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Adds an event at this moment, or now if that has passed.
    pub fn add(&mut self, at: Moment, event: T) -> Place {
        let place = (at.max(self.now), self.added);
        self.added += 1;
        self.events.insert(place, event);
        place
    }

    /// Removes an event, unless it was taken.
    pub fn cancel(&mut self, place: Place) {
        self.events.remove(&place);
    }

    /// When the next event is due.
    #[must_use]
    pub fn next_at(&self) -> Option<Moment> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next event; from now on its moment is the present.
    pub fn take_next(&mut self) -> Option<T> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_moments_then_as_they_were_added() {
        let mut schedule = Schedule::new(Moment(5));
        schedule.add(Moment(9), "last");
        let cancelled = schedule.add(Moment(7), "cancelled");
        schedule.add(Moment(7), "second");
        schedule.add(Moment(1), "late");
        schedule.cancel(cancelled);
        assert_eq!(schedule.next_at(), Some(Moment(5)), "no event is before the present");
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take_next()).collect();
        assert_eq!(taken, ["late", "second", "last"]);
        assert_eq!((schedule.now(), schedule.next_at()), (Moment(9), None));
    }
}
