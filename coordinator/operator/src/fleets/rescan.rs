//! The slow re-scan: a safety net for changes whose trigger was missed. It goes round all fleets,
//! some at each tick, so that no moment has the work of all of them.

use std::time::Duration;

use leasehold_types::ClusterName;

/// Ticks in which each fleet has its turn.
const TICKS_PER_ROUND: usize = 30;
/// The interval between two ticks.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// The fleets that are left of this round.
#[derive(Debug, Default)]
pub(super) struct Rescan {
    left: Vec<ClusterName>,
    per_tick: usize,
}

impl Rescan {
    /// Takes the fleets of a tick; a new round has those that `all` returns.
    pub(super) fn take(&mut self, all: impl FnOnce() -> Vec<ClusterName>) -> Vec<ClusterName> {
        if self.left.is_empty() {
            self.left = all();
            self.per_tick = self.left.len().div_ceil(TICKS_PER_ROUND);
        }
        self.left.split_off(self.left.len().saturating_sub(self.per_tick))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_fleet_has_one_turn_in_a_round() {
        for fleets in [0, 1, 29, 30, 31, 200] {
            let name = |number: usize| ClusterName::new(&format!("c{number}")).expect("a name");
            let all: Vec<_> = (0..fleets).map(name).collect();
            let mut rescan = Rescan::default();
            let mut turns: BTreeMap<ClusterName, usize> = BTreeMap::new();
            let mut left = fleets;
            while left > 0 {
                let taken = rescan.take(|| all.clone());
                assert!(!taken.is_empty() && taken.len() <= fleets.div_ceil(30), "{fleets}");
                left -= taken.len();
                taken.into_iter().for_each(|name| *turns.entry(name).or_default() += 1);
            }
            assert!(turns.len() == fleets && turns.values().all(|turns| *turns == 1), "{turns:?}");
        }
    }
}
