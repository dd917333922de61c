//! Which call is made next where more wait than may be made at once: namespaces take turns, so that
//! the work of one does not keep that of others waiting.

use std::collections::{BTreeMap, VecDeque};

/// Work that waits, by rank and namespace.
#[derive(Debug)]
pub(super) struct Turns<T>(BTreeMap<u8, Rank<T>>);

/// The work of one rank.
#[derive(Debug)]
struct Rank<T> {
    by_namespace: BTreeMap<String, VecDeque<T>>,
    /// The namespace that had the last turn.
    last: String,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Turns<T> {
    /// Adds work. Within a namespace and a rank the order stays.
    pub(super) fn push(&mut self, rank: u8, namespace: &str, work: T) {
        let new = || Rank { by_namespace: BTreeMap::new(), last: String::new() };
        let rank = self.0.entry(rank).or_insert_with(new);
        rank.by_namespace.entry(namespace.to_owned()).or_default().push_back(work);
    }

    /// Takes the next work, the lowest rank first. Within a rank each namespace has one turn, from
    /// the one after that of the last turn.
    pub(super) fn next(&mut self) -> Option<T> {
        let rank = self.0.values_mut().find(|rank| !rank.by_namespace.is_empty())?;
        let after = rank.by_namespace.keys().find(|namespace| **namespace > rank.last);
        let namespace = after.or_else(|| rank.by_namespace.keys().next())?.clone();
        let waiting = rank.by_namespace.get_mut(&namespace)?;
        let work = waiting.pop_front();
        if waiting.is_empty() {
            rank.by_namespace.remove(&namespace);
        }
        rank.last = namespace;
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work by namespace and rank.
    fn work(all: &[(&'static str, u8, usize)]) -> Vec<(&'static str, u8)> {
        let some = all.iter().flat_map(|(name, rank, count)| [(*name, *rank)].repeat(*count));
        some.collect()
    }

    /// Adds this work and takes at most `max` of it; the rest is dropped.
    fn take(
        turns: &mut Turns<(&'static str, u8)>,
        all: Vec<(&'static str, u8)>,
        max: usize,
    ) -> String {
        all.into_iter()
            .for_each(|(namespace, rank)| turns.push(rank, namespace, (namespace, rank)));
        let taken = std::iter::from_fn(|| turns.next()).take(max);
        let words: Vec<String> =
            taken.map(|(namespace, rank)| format!("{namespace}{rank}")).collect();
        turns.0.values_mut().for_each(|rank| rank.by_namespace.clear());
        words.join(" ")
    }

    #[test]
    fn a_namespace_with_much_work_leaves_room_for_the_others() {
        let all = work(&[("a", 1, 100), ("b", 1, 1), ("c", 1, 2)]);
        let mut turns = Turns::default();
        assert_eq!(take(&mut turns, all.clone(), 4), "a1 b1 c1 a1");
        assert_eq!(take(&mut turns, all, 4), "b1 c1 a1 c1");
    }

    #[test]
    fn more_namespaces_than_calls_are_served_one_after_the_other() {
        let all = work(&[("a", 1, 9), ("b", 1, 9), ("c", 1, 9), ("d", 1, 9), ("e", 1, 9)]);
        let mut turns = Turns::default();
        let batches: Vec<String> = (0..3).map(|_| take(&mut turns, all.clone(), 2)).collect();
        assert_eq!(batches, ["a1 b1", "c1 d1", "e1 a1"]);
    }

    #[test]
    fn a_lower_rank_goes_first_in_every_namespace() {
        let all = work(&[("a", 2, 1), ("a", 1, 2), ("b", 0, 1), ("b", 2, 1)]);
        assert_eq!(take(&mut Turns::default(), all.clone(), 9), "b0 a1 a1 a2 b2");
        assert_eq!(take(&mut Turns::default(), all, 2), "b0 a1");
    }

    #[test]
    fn work_that_comes_later_does_not_wait_for_a_long_list_of_another_namespace() {
        let mut turns = Turns::default();
        (0..100).for_each(|number| turns.push(1, "a", number));
        assert_eq!([turns.next(), turns.next()], [Some(0), Some(1)]);
        turns.push(1, "b", 100);
        turns.push(0, "a", 101);
        assert_eq!([turns.next(), turns.next(), turns.next()], [Some(101), Some(100), Some(2)]);
    }
}
