//! Deliberate faults of the cores, by name.

/// One fault of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    name: &'static str,
}

impl Mutant {
    /// All of them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Vec::new()
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|mutant| mutant.name == name)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Puts it in force on this thread; none takes it back.
    pub fn put_in_force(_mutant: Option<Self>) {}
}
