//! The fleet at one moment, and what of it differs from an earlier one.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::clock::Timestamp;
use leasehold_proto::admin::v1 as proto;
use leasehold_proto::admin::v1::{RemovedWorker, WatchFleetResponse};
use leasehold_types::{ClusterName, Moment, PipelineName};

use super::super::error::AdminError;
use super::super::status::StatusSource;
use super::super::wire;

/// The pipelines that one question is about: the driver handles messages between two questions.
const PIPELINES_MAX: usize = 1_000;

/// Entries by name. What has not changed is shared between snapshots, so that it is compared by its
/// address.
type Entries<K, T> = BTreeMap<K, Arc<T>>;

/// The fleet at one moment.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    time: String,
    /// Absent from what a watcher of one cluster sees.
    status: Option<Arc<proto::GetStatusResponse>>,
    clusters: Entries<String, proto::Cluster>,
    /// By cluster and name.
    workers: Entries<(String, String), proto::Worker>,
    sets: Entries<String, proto::StreamSet>,
    classes: Entries<String, proto::Class>,
    pipelines: Entries<String, proto::Pipeline>,
}

impl Snapshot {
    /// Asks the driver, cluster by cluster. Shares with `before` what has not changed.
    ///
    /// # Errors
    /// If this replica does not lead, or has ended.
    pub(super) async fn take(
        source: &StatusSource,
        before: Option<&Self>,
    ) -> Result<Self, AdminError> {
        let none = Self::default();
        let before = before.unwrap_or(&none);
        let (clusters, sets, classes) =
            ask(source, |core, now| (core.clusters(now), core.set_summaries(), core.classes(now)))
                .await?;
        let mut workers = Vec::new();
        for name in clusters.iter().map(|cluster| cluster.name.clone()) {
            let asked = ask(source, move |core, now| core.workers(&name, now));
            // A cluster that went meanwhile has none.
            workers.extend(asked.await?.unwrap_or_default().into_iter().map(wire::worker));
        }
        let clusters = clusters.into_iter().map(wire::cluster);
        let sets = sets.into_iter().map(wire::set);
        let classes = classes.iter().map(wire::class);
        let pipelines = pipelines(source).await?.into_iter();
        let workers = workers.into_iter().map(|worker| before.shared_worker(worker));
        let status = source.status();
        let known = before.status.clone().filter(|known| **known == status);
        Ok(Self {
            time: Timestamp::now().to_string(),
            status: Some(known.unwrap_or_else(|| Arc::new(status))),
            clusters: shared(&before.clusters, clusters.map(|one| (one.name.clone(), one))),
            workers: workers.collect(),
            sets: shared(&before.sets, sets.map(|one| (one.name.clone(), one))),
            classes: shared(&before.classes, classes.map(|one| (one.name.clone(), one))),
            pipelines: shared(&before.pipelines, pipelines.map(|one| (one.name.clone(), one))),
        })
    }

    /// The worker, shared with this snapshot if it has not changed, and its key. The growing
    /// silence of a worker is no change.
    fn shared_worker(&self, mut worker: proto::Worker) -> ((String, String), Arc<proto::Worker>) {
        let key = (worker.cluster.clone(), worker.name.clone());
        let silent_for_ms = worker.silent_for_ms;
        if let Some(known) = self.workers.get(&key) {
            worker.silent_for_ms = known.silent_for_ms;
            if **known == worker {
                return (key, Arc::clone(known));
            }
        }
        (key, Arc::new(proto::Worker { silent_for_ms, ..worker }))
    }

    /// When it was so.
    pub(super) fn time(&self) -> &str {
        &self.time
    }

    /// The stream sets that run on a cluster.
    pub(super) fn sets_on(&self, cluster: &ClusterName) -> Vec<String> {
        let sets = self.sets.values().filter(|set| set.cluster == cluster.as_str());
        sets.map(|set| set.name.clone()).collect()
    }

    /// One cluster of it, with its workers, and its stream sets but for those that are hidden.
    pub(super) fn of_cluster(&self, cluster: &ClusterName, hidden: &[String]) -> Self {
        let name = cluster.as_str();
        let sets = self.sets.iter().filter(|(set, _)| !hidden.contains(set));
        let from = (name.to_owned(), String::new());
        let workers = self.workers.range(from..).take_while(|((cluster, _), _)| cluster == name);
        Self {
            time: self.time.clone(),
            clusters: copied(self.clusters.get_key_value(name)),
            workers: copied(workers),
            sets: copied(sets.filter(|(_, set)| set.cluster == name)),
            ..Self::default()
        }
    }

    /// The differences from `before`, or everything without an earlier snapshot. The field `time`
    /// is left empty.
    pub(super) fn changes_since(&self, before: Option<&Self>) -> WatchFleetResponse {
        let none = Self::default();
        let before = before.unwrap_or(&none);
        let is_known = |(status, known): (_, _)| Arc::ptr_eq(status, known);
        let known = self.status.as_ref().zip(before.status.as_ref()).is_some_and(is_known);
        let workers_removed = removed(&self.workers, &before.workers).map(|(cluster, worker)| {
            RemovedWorker { cluster: cluster.clone(), worker: worker.clone() }
        });
        WatchFleetResponse {
            status: self.status.as_deref().filter(|_| !known).cloned(),
            clusters: changed(&self.clusters, &before.clusters),
            clusters_removed: removed(&self.clusters, &before.clusters).cloned().collect(),
            workers: changed(&self.workers, &before.workers),
            workers_removed: workers_removed.collect(),
            sets: changed(&self.sets, &before.sets),
            sets_removed: removed(&self.sets, &before.sets).cloned().collect(),
            classes: changed(&self.classes, &before.classes),
            classes_removed: removed(&self.classes, &before.classes).cloned().collect(),
            pipelines: changed(&self.pipelines, &before.pipelines),
            pipelines_removed: removed(&self.pipelines, &before.pipelines).cloned().collect(),
            ..WatchFleetResponse::default()
        }
    }
}

/// Asks the core, if this replica leads.
async fn ask<T: Send + 'static>(
    source: &StatusSource,
    question: impl FnOnce(&Core, Moment) -> T + Send + 'static,
) -> Result<T, AdminError> {
    let asked = source.handle.ask(move |core, now| match core.leadership() {
        Leadership::Leader(_) => Ok(question(core, now)),
        Leadership::Standby(leader) => Err(AdminError::NotLeading(leader)),
    });
    asked.await.map_err(|_| AdminError::Stopped)?
}

async fn pipelines(source: &StatusSource) -> Result<Vec<proto::Pipeline>, AdminError> {
    let mut all: Vec<proto::Pipeline> = Vec::new();
    let mut after: Option<PipelineName> = None;
    loop {
        let page = ask(source, move |core, _| {
            core.pipelines(after.as_ref()).take(PIPELINES_MAX).collect::<Vec<_>>()
        });
        let page = page.await?;
        let last = page.last().map(|pipeline| pipeline.name.clone());
        let is_last = page.len() < PIPELINES_MAX;
        all.extend(page.into_iter().map(wire::pipeline));
        if is_last {
            return Ok(all);
        }
        after = last;
    }
}

/// The entries, with those of `before` that are the same.
fn shared<T: PartialEq>(
    before: &Entries<String, T>,
    now: impl Iterator<Item = (String, T)>,
) -> Entries<String, T> {
    let entry = |(name, value): (String, T)| {
        let known = before.get(&name).filter(|known| ***known == value).cloned();
        (name, known.unwrap_or_else(|| Arc::new(value)))
    };
    now.map(entry).collect()
}

/// The values that are new or others than before.
fn changed<K: Ord, T: Clone>(now: &Entries<K, T>, before: &Entries<K, T>) -> Vec<T> {
    let is_new = |(key, value): &(&K, &Arc<T>)| {
        before.get(*key).is_none_or(|known| !Arc::ptr_eq(known, value))
    };
    now.iter().filter(is_new).map(|(_, value)| T::clone(value)).collect()
}

/// The keys that are no longer there.
fn removed<'a, K: Ord, T>(
    now: &Entries<K, T>,
    before: &'a Entries<K, T>,
) -> impl Iterator<Item = &'a K> {
    before.keys().filter(|key| !now.contains_key(*key))
}

fn copied<'a, K: Ord + Clone + 'a, T: 'a>(
    entries: impl IntoIterator<Item = (&'a K, &'a Arc<T>)>,
) -> Entries<K, T> {
    entries.into_iter().map(|(key, value)| (key.clone(), Arc::clone(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str, running: u32, silent_for_ms: u64) -> proto::Worker {
        proto::Worker {
            cluster: "builds".into(),
            name: name.into(),
            running: Some(running),
            silent_for_ms: Some(silent_for_ms),
            ..proto::Worker::default()
        }
    }

    fn snapshot(before: &Snapshot, workers: &[proto::Worker], sets: &[(&str, &str)]) -> Snapshot {
        let sets = sets.iter().map(|(name, cluster)| {
            let (name, cluster) = ((*name).to_owned(), (*cluster).to_owned());
            (name.clone(), proto::StreamSet { name, cluster, ..proto::StreamSet::default() })
        });
        let cluster = proto::Cluster { name: "builds".into(), ..proto::Cluster::default() };
        Snapshot {
            clusters: shared(&before.clusters, [("builds".into(), cluster)].into_iter()),
            workers: workers.iter().cloned().map(|one| before.shared_worker(one)).collect(),
            sets: shared(&before.sets, sets),
            ..Snapshot::default()
        }
    }

    #[test]
    fn only_what_is_new_changed_or_gone_is_told() {
        let sets = [("cars", "builds"), ("other", "green")];
        let none = Snapshot::default();
        let first = snapshot(&none, &[worker("a", 1, 5), worker("b", 1, 5)], &sets);
        let all = first.changes_since(None);
        assert_eq!((all.clusters.len(), all.workers.len(), all.sets.len()), (1, 2, 2));

        let second = snapshot(&first, &[worker("a", 1, 9), worker("b", 2, 9)], &sets[..1]);
        let changes = second.changes_since(Some(&first));
        assert_eq!(changes.workers, [worker("b", 2, 9)], "the silence of a is no change");
        assert_eq!(changes.sets_removed, ["other"]);
        assert!(changes.clusters.is_empty() && changes.sets.is_empty(), "{changes:?}");

        let third = snapshot(&second, &[worker("b", 2, 20)], &sets[..1]);
        let gone = RemovedWorker { cluster: "builds".into(), worker: "a".into() };
        let expected =
            WatchFleetResponse { workers_removed: vec![gone], ..WatchFleetResponse::default() };
        assert_eq!(third.changes_since(Some(&second)), expected);
    }

    #[test]
    fn a_watcher_of_one_cluster_sees_what_belongs_to_it() {
        let sets = [("cars", "builds"), ("hidden", "builds"), ("other", "green")];
        let foreign = proto::Worker { cluster: "build".into(), ..worker("a", 1, 5) };
        let all = [foreign, worker("a", 1, 5), worker("b", 1, 5)];
        let whole = snapshot(&Snapshot::default(), &all, &sets);
        let builds = ClusterName::new("builds").expect("a name");
        assert_eq!(whole.sets_on(&builds), ["cars", "hidden"]);
        let seen = whole.of_cluster(&builds, &["hidden".into()]).changes_since(None);
        let names: Vec<_> = seen.workers.iter().map(|one| (&*one.cluster, &*one.name)).collect();
        assert_eq!(names, [("builds", "a"), ("builds", "b")]);
        assert_eq!(seen.sets.iter().map(|set| &*set.name).collect::<Vec<_>>(), ["cars"]);
        let green = ClusterName::new("green").expect("a name");
        assert!(whole.of_cluster(&green, &[]).changes_since(None).clusters.is_empty());
    }
}
