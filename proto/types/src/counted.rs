//! Numbers with their nouns, as people read them.

use std::fmt::Display;

/// A number with its noun: `1 worker`, `2 workers`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_is_singular() {
        let texts = [counted(0u32, "slot"), counted(1usize, "slot"), counted(2u64, "slot")];
        assert_eq!(texts, ["0 slots", "1 slot", "2 slots"]);
    }
}
