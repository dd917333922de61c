//! The part of the deliberate faults that one run of the tests looks for. Each commit runs one
//! part, since all of them take minutes.

/// `make test` sets it to `NUMBER/SHARDS`, by the commit. Without it all faults are looked for.
const VARIABLE: &str = "LEASEHOLD_SHARD";

/// Whether the fault with this number is looked for.
///
/// # Panics
/// If `LEASEHOLD_SHARD` is not two numbers with a slash in between.
#[must_use]
pub fn is_in_shard(number: usize) -> bool {
    let Ok(shard) = std::env::var(VARIABLE) else { return true };
    let is_in = || {
        let (own, shards) = shard.split_once('/')?;
        let (own, shards): (usize, usize) = (own.parse().ok()?, shards.parse().ok()?);
        Some(number.checked_rem(shards)? == own)
    };
    is_in().unwrap_or_else(|| panic!("{VARIABLE} is NUMBER/SHARDS, as in 0/4, and not {shard}"))
}
