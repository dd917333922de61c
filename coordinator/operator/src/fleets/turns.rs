//! Which calls a batch makes where there are more than it may make: namespaces take turns, so that
//! the work of one does not keep that of others waiting.

use std::collections::BTreeMap;

/// The namespace that had the last turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    last: String,
}

impl Turns {
    /// Takes at most `max` of this work, the lowest ranks first; `place` says the rank and the
    /// namespace. Within a rank each namespace has one call in turn, from the one after that of the
    /// last call before. The order within a namespace stays.
    pub(super) fn take<T>(
        &mut self,
        work: Vec<T>,
        max: usize,
        place: impl Fn(&T) -> (u8, &str),
    ) -> Vec<T> {
        let mut rounds: BTreeMap<(u8, String), usize> = BTreeMap::new();
        let with_turn = |call: T| {
            let (rank, namespace) = place(&call);
            let namespace = namespace.to_owned();
            let round = rounds.entry((rank, namespace.clone())).or_default();
            *round += 1;
            ((rank, *round, namespace <= self.last, namespace), call)
        };
        let mut work: Vec<_> = work.into_iter().map(with_turn).collect();
        work.sort_by(|(one, _), (other, _)| one.cmp(other));
        work.truncate(max);
        if let Some(((.., namespace), _)) = work.last() {
            self.last.clone_from(namespace);
        }
        work.into_iter().map(|(_, call)| call).collect()
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

    fn take(turns: &mut Turns, all: Vec<(&'static str, u8)>, max: usize) -> String {
        let taken = turns.take(all, max, |(namespace, rank)| (*rank, *namespace));
        let words: Vec<String> =
            taken.iter().map(|(namespace, rank)| format!("{namespace}{rank}")).collect();
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
}
