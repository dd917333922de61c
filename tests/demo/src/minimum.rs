//! The fewest moves that a change of workers forces. Computed from who owned what before and who
//! lives after, without any look at what the planner did.

use std::collections::{BTreeMap, BTreeSet};

/// How many streams must change their worker so that the living ones own all of them, balanced
/// within one: those whose owner left, and what stayers have above the share that balance leaves
/// them. Streams without an owner before do not count.
#[must_use]
pub fn moves_min(owners: &BTreeMap<String, String>, living: &BTreeSet<String>) -> usize {
    if living.is_empty() {
        return 0;
    }
    let orphans = owners.values().filter(|owner| !living.contains(*owner)).count();
    let mut have: Vec<usize> = living
        .iter()
        .map(|worker| owners.values().filter(|owner| *owner == worker).count())
        .collect();
    // The bigger shares go to those who have most already: no other choice moves fewer.
    have.sort_unstable_by(|a, b| b.cmp(a));
    let (share, bigger) = (owners.len() / living.len(), owners.len() % living.len());
    let above = have.iter().enumerate().map(|(rank, have)| {
        let target = share + usize::from(rank < bigger);
        have.saturating_sub(target)
    });
    orphans + above.sum::<usize>()
}

/// Whether the living workers own all `streams`, balanced within one.
#[must_use]
pub fn is_balanced(
    owners: &BTreeMap<String, String>,
    living: &BTreeSet<String>,
    streams: usize,
) -> bool {
    if owners.len() != streams || owners.values().any(|owner| !living.contains(owner)) {
        return false;
    }
    let counts: Vec<usize> = living
        .iter()
        .map(|worker| owners.values().filter(|owner| *owner == worker).count())
        .collect();
    match (counts.iter().min(), counts.iter().max()) {
        (Some(min), Some(max)) => max - min <= 1,
        _ => streams == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "a3 b2" is: worker a owns three streams, worker b two.
    fn owners(text: &str) -> BTreeMap<String, String> {
        let mut owners = BTreeMap::new();
        for part in text.split_whitespace() {
            let (worker, count) = part.split_at(1);
            for number in 0..count.parse::<usize>().unwrap() {
                owners.insert(format!("{worker}/{number}"), worker.to_owned());
            }
        }
        owners
    }

    fn living(text: &str) -> BTreeSet<String> {
        text.chars().map(String::from).collect()
    }

    #[track_caller]
    fn check(before: &str, after: &str, want: usize) {
        assert_eq!(moves_min(&owners(before), &living(after)), want, "{before} -> {after}");
    }

    #[test]
    fn counts_the_moves_that_a_change_forces() {
        check("a5 b5 c5 d4 e4 f4", "abcdef", 0);
        // A seventh worker: six of 4 and one of 3.
        check("a5 b5 c5 d4 e4 f4", "abcdefg", 3);
        // One of seven leaves: only its own streams move.
        check("a4 b4 c4 d4 e4 f4 g3", "bcdefg", 4);
        check("a4 b4 c4 d4 e4 f4 g3", "abcdef", 3);
        // One leaves and another comes.
        check("a5 b5 c5 d4 e4 f4", "bcdefg", 5);
        // Out of balance before: that counts too.
        check("a9 b1", "ab", 4);
        check("", "ab", 0);
        check("a3", "", 0);
    }

    /// Against every possible outcome of small cases.
    #[test]
    fn finds_the_minimum_of_all_outcomes() {
        for before in ["a3 b1", "a4 b0 c0", "a2 b2 c1", "a5", "a1 b1 c3", "a2 b3"] {
            for after in ["a", "ab", "abc", "bc", "bcd", "abcd", "d"] {
                let (owners, living) = (owners(before), living(after));
                let streams: Vec<&String> = owners.keys().collect();
                let workers: Vec<&String> = living.iter().collect();
                let outcomes = workers.len().pow(u32::try_from(streams.len()).unwrap());
                let best = (0..outcomes)
                    .filter_map(|mut outcome| {
                        let mut then = BTreeMap::new();
                        for stream in &streams {
                            let worker = workers[outcome % workers.len()];
                            then.insert((*stream).clone(), worker.clone());
                            outcome /= workers.len();
                        }
                        is_balanced(&then, &living, streams.len())
                            .then(|| then.iter().filter(|(s, w)| owners[*s] != **w).count())
                    })
                    .min();
                assert_eq!(Some(moves_min(&owners, &living)), best, "{before} -> {after}");
            }
        }
    }

    #[test]
    fn balance() {
        assert!(is_balanced(&owners("a2 b1"), &living("ab"), 3));
        assert!(!is_balanced(&owners("a3 b1"), &living("ab"), 4));
        assert!(!is_balanced(&owners("a2 b1"), &living("abc"), 4), "a stream is missing");
        assert!(!is_balanced(&owners("a1 b1"), &living("a"), 2), "an owner does not live");
        assert!(!is_balanced(&owners("a2"), &living("ab"), 2));
    }
}
