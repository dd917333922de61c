//! The union of sets, at the cost of the smaller one.

use std::collections::BTreeSet;

/// Adds what is in `more`, at the cost of the smaller of the two: `BTreeSet::append` would build
/// the larger one anew.
pub(crate) fn merge<T: Ord>(set: &mut BTreeSet<T>, mut more: BTreeSet<T>) {
    if set.len() < more.len() {
        std::mem::swap(set, &mut more);
    }
    set.extend(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_of_size_give_the_union() {
        let (small, large) = ([1, 9], [1, 2, 3, 4]);
        for (set, more) in [(&small[..], &large[..]), (&large, &small)] {
            let mut merged: BTreeSet<_> = set.iter().copied().collect();
            merge(&mut merged, more.iter().copied().collect());
            assert_eq!(merged, [1, 2, 3, 4, 9].into());
        }
    }
}
