//! Faults, and how many of each a path may hold.

use std::fmt;

/// What a world does to its nodes, or people to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// What goes up a link stays on its way.
    SlowUp,
    /// What goes down a link stays on its way.
    SlowDown,
    /// A store's answers are slow from now on.
    SlowStore,
    /// A worker is slow from now on.
    SlowWorker,
    /// A process is stopped until it is resumed.
    Pause,
    /// A replica's turn takes long: what arrives meanwhile waits.
    LongTurn,
    /// A message is lost; what follows it is not.
    Lose,
    /// A message comes twice.
    Double,
    /// A message overtakes the one before it.
    Swap,
    /// A link breaks.
    Break,
    /// An agent's process dies; its journal is kept.
    CrashAgent,
    /// An agent's process dies, and its journal with it.
    LoseJournal,
    /// A replica's process dies.
    CrashReplica,
    /// Leadership is taken while the leader lives.
    TakeOver,
    /// A worker is asked to drain.
    Drain,
    /// A pod dies whole, and the platform says so.
    Kill,
    /// The manifests are edited.
    Edit,
    /// A journal can no longer be written.
    FullDisk,
    /// A job ends: no fault, but bounded like one.
    EndJob,
}

const ALL: [Fault; 19] = [
    Fault::SlowUp,
    Fault::SlowDown,
    Fault::SlowStore,
    Fault::SlowWorker,
    Fault::Pause,
    Fault::LongTurn,
    Fault::Lose,
    Fault::Double,
    Fault::Swap,
    Fault::Break,
    Fault::CrashAgent,
    Fault::LoseJournal,
    Fault::CrashReplica,
    Fault::TakeOver,
    Fault::Drain,
    Fault::Kill,
    Fault::Edit,
    Fault::FullDisk,
    Fault::EndJob,
];
const KINDS: usize = ALL.len();

/// Faults that may still come.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Of all kinds together, but those that are free.
    pub(crate) total: u8,
    each: [u8; KINDS],
}

impl Budget {
    /// This many in all, of any kind that every scope has.
    pub(crate) fn of(total: u8) -> Self {
        let mut budget = Self { total, each: [total; KINDS] };
        budget.each[Fault::Edit as usize] = 0;
        budget.with(Fault::EndJob, 1).with(Fault::Drain, 1).with(Fault::Kill, 1)
    }

    /// Just these and no others, but for what is free.
    pub(crate) fn only(mut self, faults: &[Fault]) -> Self {
        let of = |kind: &Fault| faults.iter().filter(|fault| *fault == kind).count() as u8;
        for kind in ALL.iter().filter(|kind| !kind.is_free()) {
            self.each[*kind as usize] = of(kind);
        }
        self.total = faults.len() as u8;
        self
    }

    /// At most this many of one kind.
    pub(crate) fn with(mut self, fault: Fault, most: u8) -> Self {
        self.each[fault as usize] = most;
        self
    }

    /// Whether one more of this kind may come.
    pub(crate) fn allows(&self, fault: Fault) -> bool {
        self.each[fault as usize] > 0 && (fault.is_free() || self.total > 0)
    }

    /// One of this kind has come.
    pub(crate) fn spend(&mut self, fault: Fault) {
        self.each[fault as usize] -= 1;
        self.total -= u8::from(!fault.is_free());
    }
}

impl Fault {
    /// Every kind.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &ALL
    }

    /// Whether it is not counted among all faults.
    fn is_free(self) -> bool {
        matches!(self, Self::EndJob | Self::Edit)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} faults", self.total)
    }
}
