//! How the clusters used their budgets in the last minutes, for people who have just begun to look.
//! Nothing is decided by it, and it is lost with leadership.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::view::{ClusterView, Leadership};
use leasehold_driver::clock;
use leasehold_driver::port::Handle;
use leasehold_types::{ClusterName, Moment};
use tokio::time::{MissedTickBehavior, interval};

/// The time between two samples.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long a sample is kept.
const RETENTION: Duration = Duration::from_secs(600);
/// The most clusters whose samples are kept: about 3 MB.
const CLUSTERS_MAX: usize = 1_000;

/// The last samples of the clusters with a budget.
#[derive(Debug, Default)]
pub struct ClusterHistories(Mutex<BTreeMap<ClusterName, VecDeque<Sample>>>);

/// How much of a budget was used at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at: Moment,
    pub(crate) jobs_max: u32,
    pub(crate) committed: u32,
    pub(crate) running: u32,
    pub(crate) granted: u32,
}

impl ClusterHistories {
    /// Samples the clusters until the driver has ended, for as long as this replica leads.
    pub async fn sample(self: Arc<Self>, handle: Handle) {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let asked = handle.ask(|core, now| match core.leadership() {
                Leadership::Leader(_) => core.clusters(now),
                Leadership::Standby(_) => Vec::new(),
            });
            let Ok(clusters) = asked.await else { return };
            self.add(&clusters, clock::now());
        }
    }

    /// Adds a sample of each cluster; forgets those that are no longer among them.
    fn add(&self, clusters: &[ClusterView], at: Moment) {
        let mut histories = self.lock();
        let mut former = std::mem::take(&mut *histories);
        for view in clusters.iter().filter(|view| !view.is_class).take(CLUSTERS_MAX) {
            let ClusterView { name, jobs_max, committed, running, granted, .. } = view;
            let mut samples = former.remove(name).unwrap_or_default();
            while samples.front().is_some_and(|sample| at.since(sample.at) > RETENTION) {
                samples.pop_front();
            }
            samples.push_back(Sample {
                at,
                jobs_max: *jobs_max,
                committed: *committed,
                running: *running,
                granted: *granted,
            });
            histories.insert(name.clone(), samples);
        }
    }

    /// The samples of all clusters, or of one; oldest first.
    pub(crate) fn of(&self, only: Option<&ClusterName>) -> Vec<(ClusterName, Vec<Sample>)> {
        let histories = self.lock();
        let wanted = histories.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
        wanted.map(|(name, samples)| (name.clone(), samples.iter().copied().collect())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClusterName, VecDeque<Sample>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(name: &str, running: u32, is_class: bool) -> ClusterView {
        ClusterView {
            name: ClusterName::new(name).expect("a name"),
            jobs_max: 6,
            jobs_per_worker_max: 3,
            committed: 5,
            running,
            granted: 4,
            workers: 2,
            connected: 2,
            draining: 0,
            failing: 0,
            names_wanted: 0,
            lost: 0,
            unreported: 0,
            streams: 0,
            streams_owned: 0,
            held: None,
            is_class,
        }
    }

    #[test]
    fn samples_are_kept_for_ten_minutes_and_as_long_as_their_cluster_is_there() {
        let histories = ClusterHistories::default();
        let at = |seconds: u64| Moment(0) + Duration::from_secs(seconds);
        let running = |name: &str| -> Vec<u32> {
            let name = ClusterName::new(name).expect("a name");
            let histories = histories.of(Some(&name));
            histories.into_iter().flat_map(|(_, all)| all).map(|one| one.running).collect()
        };
        histories.add(&[view("a", 1, false), view("b", 7, false), view("green", 1, true)], at(0));
        histories.add(&[view("a", 2, false), view("b", 8, false)], at(600));
        assert_eq!((running("a"), running("b")), (vec![1, 2], vec![7, 8]));
        assert_eq!(running("green"), [0; 0], "a class has no budget");
        histories.add(&[view("a", 3, false)], at(605));
        assert_eq!((running("a"), running("b")), (vec![2, 3], vec![]));
        // The replica no longer leads.
        histories.add(&[], at(610));
        assert!(histories.of(None).is_empty());
    }
}
