//! The contents of the journals so far, for waiting and for the screen.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::Evidence;
use crate::journal::{Event, Line};
use crate::{checker, push};

/// A moment after everything that has happened: only what has not ended reaches to it.
const NOW_NS: u64 = u64::MAX - 1;

/// The state of the fleet, by the workers' journals.
#[derive(Debug, Default)]
pub struct Live {
    /// All of it.
    pub evidence: Evidence,
    watching: BTreeSet<String>,
    lines: Vec<Line>,
}

impl Live {
    /// Takes new lines in.
    pub fn take(&mut self, lines: Vec<Line>) {
        for line in lines {
            match line.event {
                Event::Watching => drop(self.watching.insert(line.worker)),
                Event::Lease { .. } => self.lines.push(line),
                _ => self.evidence.take(line),
            }
        }
    }

    /// Who owns which stream.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<String, String> {
        self.evidence.owners_at(NOW_NS)
    }

    /// Jobs that run, by worker.
    #[must_use]
    pub fn running(&self) -> BTreeMap<&str, usize> {
        let mut running = BTreeMap::new();
        for run in self.evidence.runs.iter().filter(|run| run.to_ns == u64::MAX) {
            *running.entry(&*run.worker).or_default() += 1;
        }
        running
    }

    /// The jobs that a worker runs.
    #[must_use]
    pub fn jobs_of(&self, worker: &str) -> BTreeSet<String> {
        let runs = self.evidence.runs.iter();
        runs.filter(|run| run.worker == worker && run.to_ns == u64::MAX)
            .map(|run| run.job.clone())
            .collect()
    }

    /// Whether all of `workers` watch their leases.
    #[must_use]
    pub fn watching(&self, workers: &BTreeSet<String>) -> bool {
        workers.is_subset(&self.watching)
    }

    /// The streams that a worker owns.
    #[must_use]
    pub fn streams_of(&self, worker: &str) -> BTreeSet<String> {
        let owners = self.owners().into_iter();
        owners.filter(|(_, owner)| owner == worker).map(|(stream, _)| stream).collect()
    }

    /// The streams that a worker stopped by its own clock since a moment.
    #[must_use]
    pub fn expired_since(&self, worker: &str, from_ns: u64) -> BTreeSet<String> {
        let owns = self.evidence.owns.iter().filter(|own| own.worker == worker);
        owns.filter(|own| own.why == "expired" && own.to_ns >= from_ns && own.to_ns < u64::MAX)
            .map(|own| own.stream.clone())
            .collect()
    }

    /// The most jobs at once since a moment.
    #[must_use]
    pub fn peak_since(&self, from_ns: u64) -> usize {
        checker::peak(&self.evidence.runs, from_ns, u64::MAX)
    }

    /// How long a failover took until the last of `workers` had a renewed lease; none while one
    /// has none.
    #[must_use]
    pub fn failover_ns(&self, workers: &BTreeSet<String>, killed_ns: u64) -> Option<u64> {
        let each = workers.iter().map(|worker| push::failover_ns(&self.lines, worker, killed_ns));
        each.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }
}
