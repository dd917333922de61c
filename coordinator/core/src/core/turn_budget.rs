//! The work that one turn may do. Work that grows with the fleet is cut into slices, and each slice
//! spends a part of this budget.

/// Units of work that one turn may take by default. Handling one stream, claim or account is one
/// unit.
pub(super) const SLICE: u32 = 3_072;
/// The most units that one task takes before the next task runs.
pub(super) const STEP: usize = 256;

/// The units of work that a turn may still do, and those it has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnBudget {
    left: u32,
    spent: u32,
}

impl TurnBudget {
    /// Allows this many units from now on.
    pub(super) fn allow(&mut self, units: u32) {
        self.left = units.max(1);
    }

    pub(super) fn spend(&mut self, units: usize) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(units);
        self.spent = self.spent.saturating_add(units);
    }

    /// Counts work that is done even if nothing is left.
    pub(super) fn count(&mut self, units: usize) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.spent = self.spent.saturating_add(units);
    }

    pub(super) fn is_left(&self) -> bool {
        self.left > 0
    }

    pub(super) fn left(&self) -> usize {
        self.left as usize
    }

    /// The units spent since the last call.
    pub(super) fn take_spent(&mut self) -> u32 {
        std::mem::take(&mut self.spent)
    }
}
