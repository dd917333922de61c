//! Writes the statuses of all objects of a kind where they differ from the desired ones: each
//! object at a limited rate, never over another client's newer write, and after an outage of the
//! API server only the newest status.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use leasehold_driver::clock;
use leasehold_driver::metrics::Metrics;
use leasehold_platform_kube::api_call::{CALL_TIMEOUT, call_together};
use leasehold_types::Moment;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::applier::{Applier, ApplyError};
use crate::workqueue::{Backoff, Delays, Failures, WorkQueue};

/// The shortest time between two writes of one object.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// The same if only numbers differ and the objects are few.
const FIGURES_INTERVAL: Duration = Duration::from_secs(5);
/// The same for each of many objects: figures alone cost at most two writes a second of a kind.
const FIGURES_INTERVAL_PER_OBJECT: Duration = Duration::from_millis(500);
/// How long an object waits after a failure, and all objects while the API server is away.
const RETRY_DELAYS: Delays =
    Delays { first: Duration::from_secs(1), longest: Duration::from_secs(30) };
/// Objects that are written at a time.
const CONCURRENT_WRITES_MAX: usize = 8;

/// A kind that has a status to show.
pub(super) trait StatusResource:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + 'static
{
    /// Its status.
    type Status: Clone + Debug + Default + PartialEq + Serialize + Send + Sync;
    /// The status that it has.
    fn into_status(self) -> Option<Self::Status>;
    /// The status without the figures and words that change all the time.
    fn without_figures(status: &Self::Status) -> Self::Status;
}

/// Which object; another one of the same name has another UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StatusTarget {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// One object's status as the API server has it.
#[derive(Debug)]
struct StatusEntry<S> {
    /// The status, and the version of the object that it was read in.
    known: Option<(S, Option<String>)>,
    wrote_at: Option<Moment>,
}

impl<S> Default for StatusEntry<S> {
    fn default() -> Self {
        Self { known: None, wrote_at: None }
    }
}

/// Writes the statuses of all objects of a kind.
pub(super) struct StatusWriter<K: StatusResource> {
    applier: Applier,
    entries: BTreeMap<StatusTarget, StatusEntry<K::Status>>,
    queue: WorkQueue<StatusTarget>,
    failures: Failures<StatusTarget, String>,
    /// While the API server cannot be reached: one delay for all objects.
    outage: Option<Backoff>,
    paused_until: Moment,
}

impl<K: StatusResource> StatusWriter<K> {
    pub(super) fn new(applier: Applier) -> Self {
        Self {
            applier,
            entries: BTreeMap::new(),
            queue: WorkQueue::new(CONCURRENT_WRITES_MAX),
            failures: Failures::new(RETRY_DELAYS),
            outage: None,
            paused_until: Moment(0),
        }
    }

    /// Forgets the last written statuses: another leader may have written since.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.failures.clear();
    }

    /// Writes the statuses that differ. `desired` is every object that exists, with the function
    /// from its present status to the desired one. Returns whether all are written: a status waits
    /// after the last write of it, and after a failure.
    pub(super) async fn write<F>(
        &mut self,
        desired: Vec<(StatusTarget, F)>,
        metrics: &Metrics,
    ) -> bool
    where
        F: Fn(&K::Status) -> K::Status,
    {
        let now = clock::now();
        if now < self.paused_until {
            return false;
        }
        let mut are_written = true;
        let mut desired: BTreeMap<StatusTarget, F> = desired.into_iter().collect();
        let figures_every = figures_interval(desired.len());
        self.entries.retain(|target, _| desired.contains_key(target));
        self.failures.retain(|target, _| desired.contains_key(target));
        let due = desired.keys().filter(|target| self.failures.is_due(target, now));
        due.for_each(|target| self.queue.add(target.clone(), now));
        let applier = self.applier.clone();
        let mut running = FuturesUnordered::new();
        let outage = loop {
            for target in self.queue.take_due(now) {
                let Some(make) = desired.remove(&target) else { continue };
                let mut entry = self.entries.remove(&target).unwrap_or_default();
                let applier = &applier;
                running.push(async move {
                    let calls = entry.sync::<K>(applier, &target, make, figures_every);
                    let result = call_together(CALL_TIMEOUT, calls).await;
                    (target, entry, result)
                });
            }
            let Some((target, entry, result)) = running.next().await else { break None };
            self.queue.done(&target);
            are_written &= matches!(result, Ok(true));
            if let Some(outage) = self.record_result(target, entry, result, metrics) {
                // The others would fail, too. Their statuses are read again.
                self.entries.retain(|target, _| !desired.contains_key(target));
                break Some(outage);
            }
        };
        self.queue.clear();
        let Some(why) = outage else {
            self.outage = None;
            // Those that are left wait after a failure.
            return are_written && desired.is_empty();
        };
        if self.outage.is_none() {
            tracing::warn!(why, kind = %K::kind(&()), "cannot write statuses: retrying");
        }
        let backoff = self.outage.get_or_insert_with(|| Backoff::new(RETRY_DELAYS));
        self.paused_until = clock::now() + backoff.next_delay();
        false
    }

    /// Records the result of one write; returns the error if the API server cannot be reached.
    fn record_result(
        &mut self,
        target: StatusTarget,
        mut entry: StatusEntry<K::Status>,
        result: Result<bool, ApplyError>,
        metrics: &Metrics,
    ) -> Option<String> {
        let mut outage = None;
        match result {
            Ok(_) => self.failures.succeeded(&target),
            // It has changed or is another object: it is read again.
            Err(ApplyError::Conflict(_) | ApplyError::Gone(_)) => entry.known = None,
            // It is about this object: the statuses of others are written meanwhile.
            Err(ApplyError::Refused(why) | ApplyError::Internal(why)) => {
                entry.known = None;
                metrics.status_write_failed();
                let StatusTarget { namespace, name, .. } = &target;
                tracing::warn!(kind = %K::kind(&()), namespace, name, why, "status refused");
                self.failures.failed(target.clone(), why, clock::now());
            }
            Err(ApplyError::Retry(why)) => {
                entry.known = None;
                metrics.status_write_failed();
                self.failures.failed(target.clone(), why.clone(), clock::now());
                outage = Some(why);
            }
        }
        self.entries.insert(target, entry);
        outage
    }
}

impl<S: PartialEq + Serialize> StatusEntry<S> {
    /// Reads the object where it is not known, and writes its status where that is due. Returns
    /// whether the object has the status now.
    async fn sync<K: StatusResource<Status = S>>(
        &mut self,
        applier: &Applier,
        target: &StatusTarget,
        make: impl Fn(&S) -> S,
        figures_every: Duration,
    ) -> Result<bool, ApplyError> {
        let api = applier.api::<K>(&target.namespace);
        let (current, version) = match self.known.take() {
            Some(known) => known,
            None => status_and_version(applier.get(&api, &target.name).await?),
        };
        let desired = make(&current);
        if !is_due::<K>(&current, &desired, self.wrote_at, figures_every, clock::now()) {
            let is_written = current == desired;
            self.known = Some((current, version));
            return Ok(is_written);
        }
        let patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {
                "name": target.name,
                "namespace": target.namespace,
                "uid": target.uid,
                "resourceVersion": version,
            },
            "status": desired,
        });
        let written = applier.apply_status(&api, &target.name, &patch).await?;
        self.known = Some(status_and_version(written));
        self.wrote_at = Some(clock::now());
        Ok(true)
    }
}

fn status_and_version<K: StatusResource>(object: K) -> (K::Status, Option<String>) {
    let version = object.meta().resource_version.clone();
    (object.into_status().unwrap_or_default(), version)
}

/// The shortest time between two writes of one object of so many if only numbers differ.
fn figures_interval(objects: usize) -> Duration {
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    FIGURES_INTERVAL.max(FIGURES_INTERVAL_PER_OBJECT.saturating_mul(objects))
}

/// Whether a status is to be written now.
fn is_due<K: StatusResource>(
    current: &K::Status,
    desired: &K::Status,
    wrote_at: Option<Moment>,
    figures_every: Duration,
    now: Moment,
) -> bool {
    if current == desired {
        return false;
    }
    let Some(wrote_at) = wrote_at else { return true };
    let every = if K::without_figures(current) == K::without_figures(desired) {
        figures_every
    } else {
        WRITE_INTERVAL
    };
    now.since(wrote_at) >= every
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_kube_api::resources::WorkerCluster;
    use leasehold_kube_api::status::JobCounts;
    use leasehold_kube_api::status::WorkerClusterStatus;
    use leasehold_kube_api::status::WorkerCounts;

    fn at(millis: u64) -> Moment {
        Moment(millis * 1_000_000)
    }

    #[test]
    fn writes_a_status_only_on_change_and_figures_less_often() {
        let current = WorkerClusterStatus::default();
        let due = |desired: &WorkerClusterStatus, wrote: Option<u64>, now| {
            let every = figures_interval(10);
            is_due::<WorkerCluster>(&current, desired, wrote.map(at), every, at(now))
        };
        assert!(!due(&current, None, 60_000));
        let jobs = JobCounts { running: 1, ..JobCounts::default() };
        let figures = WorkerClusterStatus { jobs, ..current.clone() };
        assert!(due(&figures, None, 0));
        assert!(!due(&figures, Some(0), 4_999));
        assert!(due(&figures, Some(0), 5_000));
        let workers = WorkerCounts { lost: 1, ..WorkerCounts::default() };
        let change = WorkerClusterStatus { workers, ..figures };
        assert!(!due(&change, Some(0), 999));
        assert!(due(&change, Some(0), 1_000));
    }

    #[test]
    fn figures_of_many_objects_are_written_twice_a_second_in_all() {
        for (objects, seconds) in [(0, 5), (10, 5), (11, 5), (200, 100), (1_000, 500)] {
            assert_eq!(figures_interval(objects).as_secs(), seconds, "{objects}");
        }
    }
}
