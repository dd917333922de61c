//! The time that a version of the manifests waits if it takes much away: the folder may be in the
//! middle of a change, or the change a mistake. An edit that restores what is in force ends the
//! wait without a trace, and a second save of the same content ends it at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::Desired;
use leasehold_manifest::folder::Stamp;
use leasehold_manifest::{FolderVersion, Loss};
use leasehold_types::duration;
use tokio::time::Instant;

/// The stamps of files and folders.
pub(crate) type Stamps = BTreeMap<PathBuf, Stamp>;

/// The most graces that a folder waits whose versions take away something else each time.
const GRACES_MAX: u32 = 6;

/// Which version waits, and until when.
#[derive(Debug)]
pub(crate) struct RemovalGrace {
    grace: Duration,
    pending: Option<PendingVersion>,
    /// The files when a version was last put in force.
    in_force: Stamps,
}

#[derive(Debug)]
struct PendingVersion {
    desired: Option<Arc<Desired>>,
    losses: Vec<Loss>,
    /// When a version with these losses was first seen.
    since: Instant,
    /// When the folder began to take something away.
    first: Instant,
    stamps: Stamps,
}

impl PendingVersion {
    /// When it is put in force.
    fn ends(&self, grace: Duration) -> Instant {
        (self.since + grace).min(self.first + grace * GRACES_MAX)
    }
}

impl RemovalGrace {
    /// A version waits for `grace`; zero means not at all.
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, pending: None, in_force: Stamps::new() }
    }

    /// When the folder is to be read again, for the sake of a version that waits.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.ends(self.grace))
    }

    /// What to say of a loss that waits.
    pub(crate) fn notice(&self) -> String {
        format!(
            "in force {} after it was seen (--confirm-removals), or when the file is saved again; \
             restore it to keep what is in force",
            duration::format_short(self.grace)
        )
    }

    /// Whether this version of the folder, with these stamps of its files, may be put in force now.
    pub(crate) fn allows(&mut self, version: &FolderVersion, stamps: Stamps, now: Instant) -> bool {
        let may = version.losses().is_empty() || self.grace.is_zero() || {
            let is_saved_again = self.is_saved_again(version, &stamps);
            let pending = self.pend(version, stamps.clone(), now);
            is_saved_again || now >= pending
        };
        if may {
            self.pending = None;
            self.in_force = stamps;
        }
        may
    }

    /// Keeps a version waiting, and returns until when.
    fn pend(&mut self, version: &FolderVersion, stamps: Stamps, now: Instant) -> Instant {
        let losses = version.losses().to_vec();
        let (since, first) = match self.pending.take() {
            Some(pending) if pending.losses == losses => (pending.since, pending.first),
            Some(pending) => (now, pending.first),
            None => (now, now),
        };
        let desired = version.desired().cloned();
        let pending = PendingVersion { desired, losses, since, first, stamps };
        let ends = pending.ends(self.grace);
        self.pending = Some(pending);
        ends
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
