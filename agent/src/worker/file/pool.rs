//! Upper bounds for the pool of a worker that reads its pool size from the file.
//!
//! Invariant: the size is never smaller than one that the worker may still use, and the count is
//! never smaller than the number of running jobs.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

/// How often the worker's own count is read.
pub(super) const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The most bytes of a file with a count.
const COUNT_BYTES_MAX: u64 = 64;

/// The size that the worker uses, and the jobs that it runs.
#[derive(Debug)]
pub(super) struct Pool {
    /// The file in which the worker writes the number of running jobs.
    count: Option<PathBuf>,
    /// The largest size that it may use.
    in_effect: u32,
    running: u32,
    /// When it was notified of the size in the file.
    notified: Option<Instant>,
}

impl Pool {
    /// The pool of a worker that may already use this size.
    pub(super) fn new(count: Option<PathBuf>, in_effect: u32) -> Self {
        Self { count, in_effect, running: in_effect, notified: None }
    }

    /// Whether the worker writes its own count.
    pub(super) fn is_counted(&self) -> bool {
        self.count.is_some()
    }

    /// The worker may read this size from now on.
    pub(super) fn may_grow(&mut self, size: u32) {
        self.in_effect = self.in_effect.max(size);
    }

    /// The file has changed, and the worker was not notified yet.
    pub(super) fn note_change(&mut self) {
        self.notified = None;
    }

    /// The worker was notified of the current file.
    pub(super) fn note_notified(&mut self, now: Instant) {
        self.notified.get_or_insert(now);
    }

    /// When the worker will have reloaded a smaller size, if one was written.
    pub(super) fn settles(&self, in_file: u32, settle: Duration) -> Option<Instant> {
        self.notified.filter(|_| in_file < self.in_effect).map(|notified| notified + settle)
    }

    /// The running jobs and the size that the worker uses, while the file contains `in_file`.
    pub(super) fn count(&mut self, in_file: u32, settle: Duration, now: Instant) -> (u32, u32) {
        let most = self.running.max(self.in_effect);
        if self.settles(in_file, settle).is_some_and(|at| at <= now) {
            self.in_effect = in_file;
        }
        // Read after the reload, so that it includes jobs that began under the larger size.
        self.running = match &self.count {
            None => self.in_effect,
            Some(path) => count_in(path).unwrap_or(most),
        };
        (self.running, self.in_effect)
    }
}

/// Reads a number from a file, if it contains one.
fn count_in(path: &Path) -> Option<u32> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        // The file may have any length.
        file.take(COUNT_BYTES_MAX + 1).read_to_string(&mut text)
    });
    let whole = read.is_ok_and(|read| read as u64 <= COUNT_BYTES_MAX);
    let count = whole.then(|| text.trim().parse().ok()).flatten();
    if count.is_none() {
        let path = path.display();
        tracing::debug!(%path, "the file contains no count of jobs: every slot counts as used");
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(1);

    #[test]
    fn a_smaller_size_counts_after_the_reload_and_a_larger_size_at_once() {
        let now = Instant::now();
        let mut pool = Pool::new(None, 0);
        pool.may_grow(3);
        assert_eq!(pool.count(3, SETTLE, now), (3, 3));
        pool.may_grow(1);
        pool.note_change();
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (3, 3), "the worker was not notified");
        pool.note_notified(now);
        assert_eq!(pool.count(1, SETTLE, now), (3, 3), "the worker may not have reloaded yet");
        assert_eq!(pool.settles(1, SETTLE), Some(now + SETTLE));
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (1, 1));
        assert_eq!(pool.settles(1, SETTLE), None);
    }

    #[test]
    fn uses_the_workers_count_and_the_maximum_if_it_is_unreadable() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("count");
        let now = Instant::now();
        let mut pool = Pool::new(Some(path.clone()), 3);
        pool.note_notified(now);
        assert_eq!(pool.count(3, SETTLE, now), (3, 3), "there is no count yet");
        std::fs::write(&path, "2\n").expect("written");
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (2, 1));
        std::fs::write(&path, "").expect("written");
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (2, 1), "the file is empty");
        std::fs::write(&path, "0\n".to_owned() + &" ".repeat(100)).expect("written");
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (2, 1), "the file is too long");
        std::fs::write(&path, "0").expect("written");
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (0, 1));
    }
}
