//! The time that a version of the manifests waits if it takes much away: the folder may be in the
//! middle of a change, or the change a mistake. An edit that restores what is in force ends the
//! wait without a trace, and a second save of the same content ends it at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::Desired;
use leasehold_driver::clock;
use leasehold_manifest::folder::Stamp;
use leasehold_manifest::{FolderVersion, Loss};
use leasehold_types::{Moment, duration};
use tokio::time::Instant;

/// The stamps of files and folders.
pub type Stamps = BTreeMap<PathBuf, Stamp>;

/// The most graces that a folder waits whose versions take away something else each time.
const GRACES_MAX: u32 = 6;

/// Which version waits, and until when.
#[derive(Debug)]
pub struct RemovalGrace {
    grace: Duration,
    pending: Option<PendingVersion>,
    /// The files when a version was last put in force.
    in_force: Stamps,
}

#[derive(Debug)]
struct PendingVersion {
    desired: Option<Arc<Desired>>,
    losses: Vec<Loss>,
    /// When the folder began to take something away.
    first: Instant,
    /// When it is put in force.
    ends: Instant,
    /// The same, as leases are counted: others read it.
    due: Moment,
    stamps: Stamps,
}

impl RemovalGrace {
    /// A version waits for `grace`; zero means not at all.
    pub fn new(grace: Duration) -> Self {
        Self { grace, pending: None, in_force: Stamps::new() }
    }

    /// When the folder is to be read again, for the sake of a version that waits.
    pub fn ends(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.ends)
    }

    /// What to say of a loss that waits.
    pub fn notice(&self) -> String {
        format!(
            "in force {} after it was seen (--confirm-removals), or when the file is saved again; \
             restore it to keep what is in force",
            duration::format_short(self.grace)
        )
    }

    /// Until when this version of the folder, with these stamps of its files, has to wait; `None`
    /// where it may be put in force now.
    pub fn waits(
        &mut self,
        version: &FolderVersion,
        stamps: Stamps,
        now: Instant,
    ) -> Option<Moment> {
        if !version.losses().is_empty() && !self.grace.is_zero() {
            let is_saved_again = self.is_saved_again(version, &stamps);
            let (ends, due) = self.pend(version, stamps.clone(), now);
            if !is_saved_again && now < ends {
                return Some(due);
            }
        }
        self.pending = None;
        self.in_force = stamps;
        None
    }

    /// Keeps a version waiting, and returns until when.
    fn pend(&mut self, version: &FolderVersion, stamps: Stamps, now: Instant) -> (Instant, Moment) {
        let losses = version.losses().to_vec();
        let desired = version.desired().cloned();
        let before = self.pending.take();
        let first = before.as_ref().map_or(now, |pending| pending.first);
        let (ends, due) = match before.filter(|pending| pending.losses == losses) {
            Some(pending) => (pending.ends, pending.due),
            None => {
                let ends = (now + self.grace).min(first + self.grace * GRACES_MAX);
                (ends, clock::now() + ends.saturating_duration_since(now))
            }
        };
        self.pending = Some(PendingVersion { desired, losses, first, ends, due, stamps });
        (ends, due)
    }

    /// Whether this is the version that waits, and one of the files that make it was saved since.
    fn is_saved_again(&self, version: &FolderVersion, stamps: &Stamps) -> bool {
        let Some(pending) = &self.pending else { return false };
        if pending.desired.as_ref() != version.desired() {
            return false;
        }
        let edited =
            pending.stamps.iter().filter(|(path, stamp)| self.in_force.get(*path) != Some(*stamp));
        let mut edited = edited.filter_map(|(path, stamp)| Some((stamp, stamps.get(path)?)));
        edited.any(|(then, now)| then != now)
    }
}
