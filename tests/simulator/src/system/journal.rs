//! An agent's journal in memory: it outlives the agent, and can fail, or end the agent right
//! after a write.

use std::cell::RefCell;
use std::rc::Rc;

use leasehold_agent_core::{Journal, JournalError, Memory, Record};
use leasehold_types::AgentId;

/// The disk below one pod's journal.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// What the records add up to.
    pub memory: Memory,
    /// Which installation of an agent it is: lost with the journal.
    pub identity: Option<AgentId>,
    /// What they added up to some time ago: only the record of a start is synced, and so much may
    /// be left of them once the power was lost.
    earlier: Memory,
    /// Every append fails for now.
    pub failing: bool,
    /// Only the shortest records fit: those of renewals.
    pub nearly_full: bool,
    /// This many more appends fail.
    pub failing_next: u32,
    /// After this many more appends the agent's process dies.
    pub crash_after: Option<u32>,
    /// It has died.
    pub crashed: bool,
    /// Records that change what the agent holds or obeys.
    pub lease_records: u64,
    /// Records appended since they were last taken.
    pub fresh: Vec<Record>,
}

/// This many records are appended between two states that a loss of power may leave.
const RECORDS_APART: u64 = 8;

/// What a boot of the host leaves of a journal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JournalLeft {
    /// All of it: the host went down in order.
    All,
    /// What was there some time ago.
    Earlier,
    /// Nothing that can be read.
    Nothing,
}

impl Disk {
    /// The host has booted.
    pub(crate) fn boot(&mut self, left: JournalLeft) {
        let memory = match left {
            JournalLeft::All => std::mem::take(&mut self.memory),
            JournalLeft::Earlier => self.earlier.clone(),
            JournalLeft::Nothing => Memory::default(),
        };
        self.memory = memory.after_boot();
        self.earlier = self.memory.clone();
        (self.crash_after, self.crashed) = (None, false);
    }
}

/// The journal of one agent's process.
#[derive(Clone, Debug)]
pub(crate) struct SimJournal(pub Rc<RefCell<Disk>>);

impl Journal for SimJournal {
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let mut disk = self.0.borrow_mut();
        if disk.crashed {
            // The process is dead: what it does until control returns has no effect.
            return Err(JournalError("the process is dead".into()));
        }
        let fails = disk.failing_next > 0;
        disk.failing_next = disk.failing_next.saturating_sub(1);
        let is_long = disk.nearly_full && !matches!(record, Record::Renewed { .. });
        if disk.failing || fails || is_long {
            return Err(JournalError("no space left on device".into()));
        }
        // Checks that the record survives its text form, as in a file.
        if cfg!(debug_assertions) && disk.lease_records.is_multiple_of(16) {
            let line = serde_json::to_string(record).expect("a record is JSON");
            let back: Record = serde_json::from_str(&line).expect("its own JSON");
            assert_eq!(&back, record, "a record reads back as it was written");
        }
        if record.is_of_lease() && disk.lease_records.is_multiple_of(RECORDS_APART) {
            disk.earlier = disk.memory.clone();
        }
        disk.memory.apply(record);
        if matches!(record, Record::Begun { .. }) {
            disk.earlier = disk.memory.clone();
        }
        disk.lease_records += u64::from(record.is_of_lease());
        disk.fresh.push(record.clone());
        if let Some(left) = disk.crash_after {
            disk.crashed = left == 0;
            disk.crash_after = left.checked_sub(1);
        }
        Ok(())
    }
}
