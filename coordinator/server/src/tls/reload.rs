//! Reads files again when they change. Files with an error replace nothing: what was read before
//! stays in use, and the error is logged once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold_platform::file_watcher::FileWatcher;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

/// How often files are read without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Files that belong together are replaced one after the other: an error is logged only if it lasts
/// this long.
const ERROR_GRACE: Duration = Duration::from_secs(1);
/// The most rounds of watching files whose links keep changing.
const ROUNDS_MAX: usize = 4;

/// Files that have a meaning together.
pub(super) trait ReloadedFiles: Send + Sync + 'static {
    /// What the files contain.
    type Contents: PartialEq + Send;
    /// What that means.
    type Value: Send + Sync;

    /// Reads the files.
    fn contents(&self) -> anyhow::Result<Self::Contents>;

    /// Checks what they contain.
    fn parse(&self, contents: &Self::Contents) -> anyhow::Result<Self::Value>;

    /// Where they are.
    fn paths(&self) -> Vec<PathBuf>;

    /// Logs that new contents are in use.
    fn log_use(&self, value: &Self::Value);
}

/// Reads the files now, and again whenever they change, until the receiver is dropped. Must run
/// within a Tokio runtime.
///
/// # Errors
/// If the files as they are now cannot be read or used. Later errors are logged.
pub(super) fn follow<F: ReloadedFiles>(files: F) -> anyhow::Result<watch::Receiver<F::Value>> {
    let contents = files.contents()?;
    let (value, receiver) = watch::channel(files.parse(&contents)?);
    let (watcher, wakes) = FileWatcher::new();
    let reloader = Reloader { files: Arc::new(files), contents, value, error: None };
    tokio::spawn(reloader.run(watcher, wakes));
    Ok(receiver)
}

struct Reloader<F: ReloadedFiles> {
    files: Arc<F>,
    /// The contents in use.
    contents: F::Contents,
    value: watch::Sender<F::Value>,
    error: Option<ReloadError>,
}

/// The problem of the files as they are now.
struct ReloadError {
    problem: String,
    since: Instant,
    is_logged: bool,
}

impl<F: ReloadedFiles> Reloader<F> {
    async fn run(mut self, mut watcher: FileWatcher, mut wakes: mpsc::Receiver<()>) {
        let mut is_notified = true;
        loop {
            let files = Arc::clone(&self.files);
            let check = tokio::task::spawn_blocking(move || {
                let paths = files.paths();
                let paths = paths.iter().filter_map(|path| std::path::absolute(path).ok());
                let paths: Vec<_> = paths.collect();
                let mut contents = files.contents();
                for _ in 0..ROUNDS_MAX {
                    if !watcher.watch(&[], &paths) {
                        break;
                    }
                    contents = files.contents();
                }
                (watcher, contents)
            });
            // Fails only if the runtime shuts down, which also ends this task.
            let Ok((back, contents)) = check.await else { return };
            watcher = back;
            let next_check = self.take(contents);
            tokio::select! {
                () = self.value.closed() => return,
                woken = wakes.recv(), if is_notified => is_notified = woken.is_some(),
                () = sleep(next_check) => {}
            }
        }
    }

    /// Uses the files if they are valid. Returns when to check again.
    fn take(&mut self, contents: anyhow::Result<F::Contents>) -> Duration {
        let read = contents.and_then(|contents| {
            let is_new = contents != self.contents;
            let value = is_new.then(|| self.files.parse(&contents)).transpose()?;
            Ok((contents, value))
        });
        match read {
            Ok((contents, Some(value))) => {
                self.files.log_use(&value);
                self.contents = contents;
                self.value.send_replace(value);
                self.error = None;
                POLL_INTERVAL
            }
            Ok((_, None)) => {
                if self.error.take().is_some_and(|error| error.is_logged) {
                    tracing::info!("the TLS files are valid again");
                }
                POLL_INTERVAL
            }
            Err(error) => self.note_error(format!("{error:#}")),
        }
    }

    fn note_error(&mut self, problem: String) -> Duration {
        let now = Instant::now();
        let known = self.error.take().filter(|known| known.problem == problem);
        let mut error = known.unwrap_or(ReloadError { problem, since: now, is_logged: false });
        let is_old = now.duration_since(error.since) >= ERROR_GRACE;
        if is_old && !error.is_logged {
            error.is_logged = true;
            let problem = &error.problem;
            tracing::warn!(%problem, "cannot use the new TLS files: the old ones stay in use");
        }
        let next_check = if error.is_logged { POLL_INTERVAL } else { ERROR_GRACE };
        self.error = Some(error);
        next_check
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    /// Two halves that must be the same.
    struct Halves;

    impl ReloadedFiles for Halves {
        type Contents = (&'static str, &'static str);
        type Value = &'static str;

        fn contents(&self) -> anyhow::Result<Self::Contents> {
            bail!("the test gives them")
        }

        fn parse(&self, &(one, other): &Self::Contents) -> anyhow::Result<&'static str> {
            if one != other {
                bail!("{one} is not {other}");
            }
            Ok(one)
        }

        fn paths(&self) -> Vec<PathBuf> {
            Vec::new()
        }

        fn log_use(&self, _: &&'static str) {}
    }

    #[test]
    fn invalid_files_are_logged_only_if_they_stay_invalid_and_replace_nothing() {
        let (value, used) = watch::channel("old");
        let (files, contents) = (Arc::new(Halves), ("old", "old"));
        let mut reloader = Reloader { files, contents, value, error: None };
        let is_logged =
            |reloader: &Reloader<Halves>| reloader.error.as_ref().map(|error| error.is_logged);
        // The second half has not been written yet.
        for _ in 0..3 {
            assert_eq!(reloader.take(Ok(("new", "old"))), ERROR_GRACE);
        }
        assert_eq!((is_logged(&reloader), *used.borrow()), (Some(false), "old"));
        reloader.error.as_mut().expect("an error").since -= ERROR_GRACE;
        assert_eq!(reloader.take(Ok(("new", "old"))), POLL_INTERVAL);
        assert_eq!((is_logged(&reloader), *used.borrow()), (Some(true), "old"));
        // The old files again.
        reloader.take(Ok(("old", "old")));
        assert_eq!((is_logged(&reloader), *used.borrow()), (None, "old"));
        // The new ones, one after the other.
        reloader.take(Ok(("new", "old")));
        assert_eq!(reloader.take(Ok(("new", "new"))), POLL_INTERVAL);
        assert_eq!((is_logged(&reloader), *used.borrow()), (None, "new"));
    }
}
