//! The order of workers' names, with ordinals as in a StatefulSet.
//!
//! Invariant: a total order in which `x-9` comes before `x-10`.

use super::WorkerIndex;

/// The workers in the order in which slices go over them: by the name up to a closing `-<number>`,
/// then by that number, so that `swarm-worker-10` follows `swarm-worker-9`. A name without such a
/// number (or with one above 64 bits) comes before the names that it is a prefix of.
pub(super) fn natural(workers: &[&str]) -> Vec<WorkerIndex> {
    let mut keys: Vec<_> = (0..).zip(workers).map(|(at, name)| (key(name), at)).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, at)| at).collect()
}

fn key(name: &str) -> (&str, Option<u64>) {
    let parts = name.rsplit_once('-').filter(|(_, end)| end.bytes().all(|b| b.is_ascii_digit()));
    match parts.map(|(start, end)| (start, end.parse().ok())) {
        Some((start, Some(number))) => (start, Some(number)),
        _ => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::natural;

    #[test]
    fn numbers_at_the_end_count_as_numbers() {
        let mut names = [
            "a",
            "a-1",
            "a-1-10",
            "a-1-9",
            "a-10",
            "a-9",
            "a-01",
            "a-b",
            "b-1",
            "b-x1",
            "c-99999999999999999999",
            "c-",
        ];
        names.sort_unstable();
        let sorted: Vec<_> = natural(&names).into_iter().map(|at| names[at as usize]).collect();
        assert_eq!(
            sorted,
            [
                "a",
                "a-01",
                "a-1",
                "a-9",
                "a-10",
                "a-1-9",
                "a-1-10",
                "a-b",
                "b-1",
                "b-x1",
                "c-",
                "c-99999999999999999999",
            ]
        );
    }
}
