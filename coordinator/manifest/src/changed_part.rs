//! Where two versions of a list differ, apart from what they have in common at their beginning and
//! their end. Most edits of a long list change little of it.

/// Items that are compared at once: whole slices of bytes compare faster than one byte at a time.
const CHUNK: usize = 4096;

/// How many items two lists have in common at their beginning.
pub(crate) fn common_prefix<T: PartialEq>(one: &[T], other: &[T]) -> usize {
    let chunks = one.chunks(CHUNK).zip(other.chunks(CHUNK));
    let whole = CHUNK * chunks.take_while(|(one, other)| one == other).count();
    let whole = whole.min(one.len()).min(other.len());
    let rest = one[whole..].iter().zip(&other[whole..]);
    whole + rest.take_while(|(one, other)| one == other).count()
}

/// How many items two lists have in common at their end.
pub(crate) fn common_suffix<T: PartialEq>(one: &[T], other: &[T]) -> usize {
    let chunks = one.rchunks(CHUNK).zip(other.rchunks(CHUNK));
    let whole = CHUNK * chunks.take_while(|(one, other)| one == other).count();
    let whole = whole.min(one.len()).min(other.len());
    let (one, other) = (&one[..one.len() - whole], &other[..other.len() - whole]);
    let rest = one.iter().rev().zip(other.iter().rev());
    whole + rest.take_while(|(one, other)| one == other).count()
}

/// What is left of two lists without their common beginning and their common end.
pub(crate) fn changed_part<'a, T: PartialEq>(one: &'a [T], other: &'a [T]) -> (&'a [T], &'a [T]) {
    let prefix = common_prefix(one, other);
    let (one, other) = (&one[prefix..], &other[prefix..]);
    let suffix = common_suffix(one, other);
    (&one[..one.len() - suffix], &other[..other.len() - suffix])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_differ_between_their_common_beginning_and_end() {
        for (one, other, differ) in [
            ("", "", ("", "")),
            ("abc", "abc", ("", "")),
            ("abc", "axc", ("b", "x")),
            ("abc", "ac", ("b", "")),
            ("ac", "abc", ("", "b")),
            ("aaa", "aa", ("a", "")),
            ("abc", "xyz", ("abc", "xyz")),
        ] {
            let (one, other) = (one.as_bytes(), other.as_bytes());
            let (left, right) = differ;
            assert_eq!(changed_part(one, other), (left.as_bytes(), right.as_bytes()));
        }
    }

    #[test]
    fn long_lists_are_compared_to_the_item() {
        let one: Vec<u32> = (0..20_000).collect();
        for at in [0, 1, 4_095, 4_096, 4_097, 10_000, 15_904, 19_999] {
            let mut other = one.clone();
            other[at] = u32::MAX;
            assert_eq!(changed_part(&one, &other), (&one[at..=at], &[u32::MAX][..]));
            other.remove(at);
            assert_eq!(changed_part(&one, &other), (&one[at..=at], &[][..]));
            assert_eq!(changed_part(&other, &one), (&[][..], &one[at..=at]));
        }
    }
}
