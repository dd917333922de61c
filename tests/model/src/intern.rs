//! Values that many states share are kept once, under a number: a state is then a few numbers, and
//! what a core does with an input is computed once.
//!
//! Invariant: two values have the same number just where their debug texts are the same, but for
//! fields that change nothing of what a core does.

use std::collections::HashMap;
use std::fmt::{Debug, Write};

/// All values of one kind.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    /// Fields that a core counts or backs off by, and decides nothing by.
    ignored: &'static [&'static str],
    numbers: HashMap<u128, u32>,
    values: Vec<T>,
    text: String,
}

/// A value that has no number yet.
pub(crate) struct Unknown(u128);

impl<T> Interner<T> {
    /// An empty one; a number after one of these texts is ignored.
    pub(crate) fn new(ignored: &'static [&'static str]) -> Self {
        Self { ignored, numbers: HashMap::new(), values: Vec::new(), text: String::new() }
    }

    pub(crate) fn get(&self, number: u32) -> &T {
        &self.values[number as usize]
    }

    /// The number of the value that reads so.
    pub(crate) fn find(&mut self, shown: &impl Debug) -> Result<u32, Unknown> {
        self.text.clear();
        write!(self.text, "{shown:?}").expect("a string takes everything");
        let digest = digest(&self.text, self.ignored);
        self.numbers.get(&digest).copied().ok_or(Unknown(digest))
    }

    /// Gives a value a number.
    pub(crate) fn insert(&mut self, Unknown(digest): Unknown, value: T) -> u32 {
        let number = u32::try_from(self.values.len()).expect("fewer than memory holds");
        self.numbers.insert(digest, number);
        self.values.push(value);
        number
    }
}

impl<T: Debug> Interner<T> {
    /// The number of a value, which it gets now if it has none.
    pub(crate) fn put(&mut self, value: T) -> u32 {
        match self.find(&value) {
            Ok(number) => number,
            Err(unknown) => self.insert(unknown, value),
        }
    }
}

/// 128 bits over the text without the numbers that are ignored.
fn digest(text: &str, ignored: &[&str]) -> u128 {
    let mut sums = (0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
    let mut rest = text;
    loop {
        let ends = ignored.iter().filter_map(|name| Some(rest.find(name)? + name.len()));
        let Some(end) = ends.min() else { break };
        sums = mix(sums, &rest.as_bytes()[..end]);
        rest = rest[end..].trim_start_matches(|c: char| c.is_ascii_digit());
    }
    let (low, high) = mix(sums, rest.as_bytes());
    u128::from(high) << 64 | u128::from(low)
}

fn mix((mut low, mut high): (u64, u64), text: &[u8]) -> (u64, u64) {
    let fold = |one: u64, other: u64| {
        let product = u128::from(one) * u128::from(other);
        (product >> 64) as u64 ^ product as u64
    };
    for word in text.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        let word = u64::from_le_bytes(bytes) ^ (word.len() as u64) << 56;
        low = fold(low ^ word, 0xa076_1d64_78bd_642f).rotate_left(17) ^ word;
        high = fold(high.rotate_left(31) ^ word, 0xe703_7ed1_a0b4_28db) ^ low;
    }
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Shown {
        kept: u32,
        version: u64,
        last: u32,
    }

    #[test]
    fn treats_values_that_differ_only_in_an_ignored_field_as_equal() {
        let mut all = Interner::new(&[" version: "]);
        let mut put = |kept, version, last| all.put(Shown { kept, version, last });
        let first = put(1, 7, 2);
        assert_eq!(put(1, 12, 2), first);
        assert_ne!(put(2, 7, 2), first);
        assert_ne!(put(1, 7, 3), first);
        let kept = all.get(first);
        assert_eq!((kept.kept, kept.version, kept.last), (1, 7, 2));
    }
}
