//! The epochs on disk. A compare-and-swap on file names in one folder decides who leads: the
//! replica whose file has the highest number. No number is ever taken twice.
//!
//! Each epoch N has three files. `N.json` is the claim: it is written under a temporary name and
//! then linked, which fails if the number is taken. `N.ID.heartbeat` is a counter that the leader
//! writes with every renewal. `N.ID.alive` is locked by the leader from before its claim, so that
//! the end of its process is noticed at once. The lock never prevents another replica from taking
//! the next epoch.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_platform::campaign::EPOCH_MAX;
use leasehold_platform::disk_io::{same_file, sync_folder};
use leasehold_types::Epoch;
use serde::{Deserialize, Serialize};

/// Claims of earlier epochs that are kept for diagnosis.
const CLAIMS_KEPT: usize = 8;

/// The content of an epoch's claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The replica's name.
    pub(crate) identity: String,
    /// Where agents reach it.
    pub(crate) address: String,
    /// How long its leadership lasts after a renewal.
    pub(crate) leadership_ms: u64,
    /// Distinguishes two claims of one replica.
    pub(crate) id: u64,
}

impl Claim {
    pub(crate) fn leadership(&self) -> Duration {
        Duration::from_millis(self.leadership_ms)
    }
}

/// The folder of epochs.
#[derive(Clone, Debug)]
pub(crate) struct Epochs {
    folder: PathBuf,
}

/// An epoch that this replica has taken, with its open files.
#[derive(Debug)]
pub(crate) struct HeldEpoch {
    pub(crate) epoch: Epoch,
    claim: Claim,
    alive: File,
    heartbeat: File,
    beats: u64,
}

/// The highest epoch as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EpochState {
    pub(crate) epoch: Epoch,
    pub(crate) claim: Option<Claim>,
    /// The content of the heartbeat file; any change shows that the leader is alive.
    pub(crate) heartbeat: Vec<u8>,
}

/// The result of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RenewOutcome {
    /// No successor had been elected when it began.
    Leads,
    /// This epoch has taken over.
    Deposed(Epoch),
}

impl Epochs {
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let folder = state_dir.join("epochs");
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// The highest epoch in the folder.
    pub(crate) fn highest(&self) -> io::Result<Option<Epoch>> {
        Ok(self.epochs()?.pop())
    }

    /// Takes an epoch; `None` if another replica already has it.
    pub(crate) fn take(&self, epoch: Epoch, claim: &Claim) -> io::Result<Option<HeldEpoch>> {
        let claim = claim.clone();
        let alive = locked(&self.path(epoch, &claim, "alive"))?;
        let heartbeat = File::create(self.path(epoch, &claim, "heartbeat"))?;
        let held = HeldEpoch { epoch, claim, alive, heartbeat, beats: 0 };
        let taken = self.link_claim(&held);
        if !matches!(taken, Ok(true)) {
            for kind in ["alive", "heartbeat"] {
                let _ = fs::remove_file(self.path(epoch, &held.claim, kind));
            }
        }
        Ok(taken?.then_some(held))
    }

    /// Writes a heartbeat, then checks whether a successor has been elected. The order matters: if
    /// a successor sees no new heartbeat after it took its epoch, no renewal that began since the
    /// last heartbeat can succeed.
    pub(crate) fn renew(&self, held: &mut HeldEpoch) -> io::Result<RenewOutcome> {
        held.write_heartbeat()?;
        match self.claim(held.epoch) {
            Ok(claim) if claim.as_ref() == Some(&held.claim) => {}
            Ok(_) => return Ok(RenewOutcome::Deposed(held.epoch)),
            // It was removed by hand: restore it, so that no replica takes the number again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.folder)?;
                if !self.link_claim(held)? {
                    return Ok(RenewOutcome::Deposed(held.epoch));
                }
            }
            Err(error) => return Err(error),
        }
        self.restore(held)?;
        match self.highest()? {
            Some(highest) if highest > held.epoch => Ok(RenewOutcome::Deposed(highest)),
            Some(highest) if highest == held.epoch => Ok(RenewOutcome::Leads),
            _ => Err(io::Error::other(
                "the epoch's file disappears from the state folder: find out what removes it",
            )),
        }
    }

    /// The highest epoch and its leader.
    pub(crate) fn latest(&self) -> io::Result<Option<EpochState>> {
        let Some(epoch) = self.highest()? else { return Ok(None) };
        let claim = self.claim(epoch).unwrap_or_default();
        let heartbeat = claim.as_ref().map(|claim| self.heartbeat(epoch, claim));
        Ok(Some(EpochState { epoch, claim, heartbeat: heartbeat.unwrap_or_default() }))
    }

    /// The content of a leader's heartbeat file; any change shows that it is alive.
    pub(crate) fn heartbeat(&self, epoch: Epoch, claim: &Claim) -> Vec<u8> {
        fs::read(self.path(epoch, claim, "heartbeat")).unwrap_or_default()
    }

    /// The epochs below `below` whose process may still run, with their claims; `None` if a claim
    /// cannot be read.
    pub(crate) fn unfinished_before(
        &self,
        below: Epoch,
    ) -> io::Result<Vec<(Epoch, Option<Claim>)>> {
        let earlier = self.epochs()?.into_iter().filter(|epoch| *epoch < below);
        let unfinished_before = earlier.filter(|epoch| !self.has_ended(*epoch));
        Ok(unfinished_before.map(|epoch| (epoch, self.claim(epoch).unwrap_or_default())).collect())
    }

    /// Blocks until the leader of an epoch has unlocked its claim or ended.
    pub(crate) fn wait_for_end(&self, epoch: Epoch) -> io::Result<()> {
        let claim = self.claim(epoch)?.ok_or(io::ErrorKind::InvalidData)?;
        let file = File::open(self.path(epoch, &claim, "alive"))?;
        loop {
            match file.lock_shared() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Whether the process that held an epoch has surely stopped granting under it.
    pub(crate) fn has_ended(&self, epoch: Epoch) -> bool {
        let Ok(Some(claim)) = self.claim(epoch) else { return false };
        let file = File::open(self.path(epoch, &claim, "alive"));
        file.is_ok_and(|file| file.try_lock_shared().is_ok())
    }

    /// Removes the files of old epochs, except the newest few and those of running processes.
    pub(crate) fn prune(&self) -> io::Result<()> {
        let epochs = self.epochs()?;
        let old = epochs.len().saturating_sub(CLAIMS_KEPT);
        let Some(oldest_kept) = epochs.get(old) else { return Ok(()) };
        let living: Vec<Epoch> =
            epochs[..old].iter().copied().filter(|epoch| !self.has_ended(*epoch)).collect();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Also removes leftovers of candidates that have lost or ended.
            let epoch = entry.file_name().to_str().and_then(number).map(|(epoch, _)| epoch);
            if epoch.is_some_and(|epoch| epoch < *oldest_kept && !living.contains(&epoch)) {
                match fs::remove_file(entry.path()) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn epochs(&self) -> io::Result<Vec<Epoch>> {
        match numbered(&self.folder, "json") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.folder)?;
                Ok(Vec::new())
            }
            other => other,
        }
    }

    fn claim(&self, epoch: Epoch) -> io::Result<Option<Claim>> {
        Ok(serde_json::from_slice(&fs::read(self.claim_path(epoch))?).ok())
    }

    fn claim_path(&self, epoch: Epoch) -> PathBuf {
        self.folder.join(format!("{:020}.json", epoch.0))
    }

    fn path(&self, epoch: Epoch, claim: &Claim, kind: &str) -> PathBuf {
        self.folder.join(format!("{:020}.{:016x}.{kind}", epoch.0, claim.id))
    }

    /// Writes the claim's file durably, then links it to its name. Returns whether the name was
    /// free.
    fn link_claim(&self, held: &HeldEpoch) -> io::Result<bool> {
        let temporary = self.path(held.epoch, &held.claim, "json.tmp");
        let mut text = serde_json::to_vec_pretty(&held.claim).map_err(io::Error::other)?;
        text.push(b'\n');
        let written = write_durably(&temporary, &text)
            .and_then(|()| fs::hard_link(&temporary, self.claim_path(held.epoch)));
        let _ = fs::remove_file(&temporary);
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(error),
        }
        sync_folder(&self.folder)?;
        Ok(true)
    }

    /// Restores the leader's other files if they were removed by hand.
    fn restore(&self, held: &mut HeldEpoch) -> io::Result<()> {
        let alive = self.path(held.epoch, &held.claim, "alive");
        if !same_file(&held.alive, &alive) {
            let temporary = alive.with_extension("alive.tmp");
            held.alive = locked(&temporary)?;
            fs::rename(temporary, alive)?;
        }
        let heartbeat = self.path(held.epoch, &held.claim, "heartbeat");
        if !same_file(&held.heartbeat, &heartbeat) {
            let temporary = heartbeat.with_extension("heartbeat.tmp");
            held.heartbeat = File::create(&temporary)?;
            held.write_heartbeat()?;
            fs::rename(temporary, heartbeat)?;
        }
        Ok(())
    }
}

impl HeldEpoch {
    fn write_heartbeat(&mut self) -> io::Result<()> {
        self.beats += 1;
        self.heartbeat.write_all_at(format!("{:020}\n", self.beats).as_bytes(), 0)
    }
}

/// The numbers of a folder's files with this extension, lowest first.
pub(crate) fn numbered(folder: &Path, extension: &str) -> io::Result<Vec<Epoch>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if let Some((epoch, found)) = name.to_str().and_then(number)
            && found == extension
        {
            numbers.push(epoch);
        }
    }
    numbers.sort_unstable();
    match numbers.last() {
        Some(epoch) if *epoch > EPOCH_MAX => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{}: the number is above the highest epoch, {EPOCH_MAX}: no coordinator wrote \
                 this file; move it out of the folder",
                folder.join(format!("{:020}.{extension}", epoch.0)).display()
            ),
        )),
        _ => Ok(numbers),
    }
}

/// The number that a file's name begins with, and the rest of the name.
fn number(name: &str) -> Option<(Epoch, &str)> {
    let (stem, rest) = name.split_once('.')?;
    (stem.len() == 20).then(|| stem.parse().ok().map(|epoch| (Epoch(epoch), rest))).flatten()
}

/// Writes a new file and waits until it is on disk.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A new locked file.
pub(crate) fn locked(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::Error(error)) => Err(error),
        Err(TryLockError::WouldBlock) => Err(io::Error::other(format!(
            "another process has locked the new file {}",
            path.display()
        ))),
    }
}
