//! How many files this process may open (`ulimit -n`), and how the agent divides them.
//!
//! Invariant: connections of others and programs that start take no file that the agent needs for
//! its own work: its journal, its link to the coordinator, and its children.

use rustix::process::{Resource, getrlimit};

/// Files that the agent needs besides connections, if it may open many.
const KEPT_MAX: usize = 128;
/// Of those, files that are not for programs that start.
const OWN: usize = 24;
/// Open connections of workers.
const WORKER_CONNECTIONS_MAX: usize = 1024;
/// Open connections of kubelets and scrapers.
const HEALTH_CONNECTIONS_MAX: usize = 64;
/// The part of the files for connections that those of kubelets and scrapers may take.
const HEALTH_PART: usize = 4;
/// Programs that start at once.
const STARTS_MAX: usize = 64;

/// The limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileLimit(usize);

impl FileLimit {
    /// The limit of this process.
    pub(crate) fn of_this_process() -> Self {
        let files = getrlimit(Resource::Nofile).current;
        Self(files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX))
    }

    /// Files that connections leave to the agent.
    fn kept(self) -> usize {
        KEPT_MAX.min(self.0 / 2)
    }

    /// The limit of connections to the port for health.
    pub(crate) fn health_connections(self) -> usize {
        HEALTH_CONNECTIONS_MAX.min((self.0 - self.kept()) / HEALTH_PART).max(1)
    }

    /// The limit of workers' connections; `health`: there is a port for health.
    pub(crate) fn worker_connections(self, health: bool) -> usize {
        let taken = if health { self.health_connections() } else { 0 };
        let left = (self.0 - self.kept()).saturating_sub(taken);
        WORKER_CONNECTIONS_MAX.min(left).max(1)
    }

    /// The limit of programs that start at once: until a program runs, the agent has a socket for
    /// it.
    pub(crate) fn starts(self) -> usize {
        STARTS_MAX.min(self.kept().saturating_sub(OWN)).max(1)
    }

    /// Logs how many connections are served, if the files are too few for all of the above.
    pub(crate) fn log(self, health: bool) {
        let connections = self.worker_connections(health);
        if self.kept() < KEPT_MAX {
            tracing::info!(
                files = self.0,
                connections,
                "the limit of open files (ulimit -n) allows fewer connections to the worker API \
                 than {WORKER_CONNECTIONS_MAX}: for one more, the agent closes the one that has \
                 been idle for longest"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_limits_together_fit_into_the_files() {
        for (files, health, workers, starts) in [
            (64, 8, 24, 8),
            (200, 25, 75, 64),
            (1024, 64, 832, 64),
            (1 << 20, 64, 1024, 64),
            (usize::MAX, 64, 1024, 64),
        ] {
            let limit = FileLimit(files);
            let found =
                (limit.health_connections(), limit.worker_connections(true), limit.starts());
            assert_eq!(found, (health, workers, starts), "{files}");
            assert!(health + workers + OWN + starts <= files, "{files}");
        }
        assert_eq!(FileLimit(64).worker_connections(false), 32);
        // Too few for anything: no limit is 0, and none is computed below it.
        let none = FileLimit(0);
        let found = (none.health_connections(), none.worker_connections(true), none.starts());
        assert_eq!(found, (1, 1, 1));
    }
}
