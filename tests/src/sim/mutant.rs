//! Deliberate faults of the cores, and the properties that each of them breaks.

use leasehold_types::mutation::{self, Mutation};

/// One fault of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant(Mutation);

impl Mutant {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Mutation::ALL.iter().map(|mutation| Self(*mutation))
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|mutant| mutant.name() == name)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        format!("{:?}", self.0)
    }

    /// Puts it in force on this thread; none takes it back.
    pub(super) fn put_in_force(mutant: Option<Self>) {
        mutation::set(mutant.map(|mutant| mutant.0));
    }
}
