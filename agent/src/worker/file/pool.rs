//! The pool of a worker that reads its size in the file, as far as it is known from here.
//!
//! Invariant: no size is smaller here than one that the worker may still keep to, and no count of
//! jobs is smaller than the jobs that may run under it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

/// How often the worker's own count is read.
pub(super) const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of a file with a count; a longer file is invalid.
const COUNT_BYTES_MAX: u64 = 64;

/// What the worker keeps to, and runs.
#[derive(Debug)]
pub(super) struct Pool {
    /// Where the worker writes how many jobs run.
    count: Option<PathBuf>,
    /// The largest size that it may keep to.
    obeyed: u32,
    running: u32,
    /// Since when it knows the size in the file.
    notified: Option<Instant>,
}

impl Pool {
    /// A pool of a worker that may keep to this size already.
    pub(super) fn new(count: Option<PathBuf>, obeyed: u32) -> Self {
        Self { count, obeyed, running: obeyed, notified: None }
    }

    /// Whether the worker counts for itself.
    pub(super) fn is_counted(&self) -> bool {
        self.count.is_some()
    }

    /// The worker may see this size from now on.
    pub(super) fn may_grow(&mut self, size: u32) {
        self.obeyed = self.obeyed.max(size);
    }

    /// The file has another size: the worker does not know it yet.
    pub(super) fn note_change(&mut self) {
        self.notified = None;
    }

    /// The worker was notified of the file as it is.
    pub(super) fn note_notified(&mut self, now: Instant) {
        self.notified.get_or_insert(now);
    }

    /// When the worker will have taken up a smaller size in the file; none if no such size waits.
    pub(super) fn settles(&self, in_file: u32, settle: Duration) -> Option<Instant> {
        self.notified.filter(|_| in_file < self.obeyed).map(|notified| notified + settle)
    }

    /// The jobs that run and the size that the worker keeps to, now that the file says `in_file`.
    pub(super) fn count(&mut self, in_file: u32, settle: Duration, now: Instant) -> (u32, u32) {
        let most = self.running.max(self.obeyed);
        if self.settles(in_file, settle).is_some_and(|at| at <= now) {
            self.obeyed = in_file;
        }
        // Read after the size was taken up: a job that began under the larger one is in it.
        self.running = match &self.count {
            None => self.obeyed,
            Some(path) => count_in(path).unwrap_or(most),
        };
        (self.running, self.obeyed)
    }
}

/// The number in a file, if it holds one.
fn count_in(path: &Path) -> Option<u32> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        // The worker may write what it likes.
        file.take(COUNT_BYTES_MAX + 1).read_to_string(&mut text)
    });
    let whole = read.is_ok_and(|read| read as u64 <= COUNT_BYTES_MAX);
    let count = whole.then(|| text.trim().parse().ok()).flatten();
    if count.is_none() {
        tracing::debug!(path = %path.display(), "no count of jobs: every slot counts as used");
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(1);

    #[test]
    fn a_smaller_size_counts_once_it_was_told_and_taken_up_and_a_larger_one_before() {
        let now = Instant::now();
        let mut pool = Pool::new(None, 0);
        pool.may_grow(3);
        assert_eq!(pool.count(3, SETTLE, now), (3, 3));
        pool.may_grow(1);
        pool.note_change();
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (3, 3), "it was not notified");
        pool.note_notified(now);
        assert_eq!(pool.count(1, SETTLE, now), (3, 3), "it was notified just now");
        assert_eq!(pool.settles(1, SETTLE), Some(now + SETTLE));
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (1, 1));
        assert_eq!(pool.settles(1, SETTLE), None);
    }

    #[test]
    fn the_workers_count_outlasts_a_smaller_size_and_an_unreadable_one_is_the_most() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("count");
        let now = Instant::now();
        let mut pool = Pool::new(Some(path.clone()), 3);
        pool.note_notified(now);
        assert_eq!(pool.count(3, SETTLE, now), (3, 3), "there is no count yet");
        std::fs::write(&path, "2\n").expect("written");
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (2, 1));
        std::fs::write(&path, "").expect("written");
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (2, 1), "it was torn");
        std::fs::write(&path, "0\n".to_owned() + &" ".repeat(100)).expect("written");
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (2, 1), "it is too long to be a count");
        std::fs::write(&path, "0").expect("written");
        assert_eq!(pool.count(1, SETTLE, now + SETTLE), (0, 1));
    }
}
