//! The statuses of all objects of a kind, as the API server has them, and the writing of those that
//! differ from what they should be: each object at most so often, never over somebody else's
//! newer write, and after a time without the API server only the newest.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use leasehold_driver::clock;
use leasehold_driver::metrics::Metrics;
use leasehold_kube_api::names::FIELD_MANAGER;
use leasehold_types::Moment;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;

/// The shortest time between two writes of one object.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// The same where only figures differ.
const FIGURES_INTERVAL: Duration = Duration::from_secs(5);
/// How long the API server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long an object waits after a failure, and at most; it doubles with each.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
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
    /// Not before this; set by failures.
    retry_at: Moment,
    pause: Duration,
}

impl<S> Default for StatusEntry<S> {
    fn default() -> Self {
        Self { known: None, wrote_at: None, retry_at: Moment(0), pause: PAUSE_MIN }
    }
}

/// What became of one object's turn.
enum StatusOutcome {
    /// It is as it should be, or was written, or waits for its time.
    Done,
    /// It has changed meanwhile, or is there no more: it is read again.
    Stale,
    /// The API server refuses it.
    Refused(Box<kube::core::Status>),
    /// The API server cannot be reached, or not now.
    Unreachable(String),
}

/// All objects of a kind.
pub(super) struct StatusWriter<K: StatusResource> {
    client: Client,
    entries: BTreeMap<StatusTarget, StatusEntry<K::Status>>,
    pause: Duration,
    paused_until: Moment,
}

impl<K: StatusResource> StatusWriter<K> {
    pub(super) fn new(client: Client) -> Self {
        let (entries, paused_until) = (BTreeMap::new(), Moment(0));
        Self { client, entries, pause: PAUSE_MIN, paused_until }
    }

    /// Forgets what the API server has: another leader may have written since.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Writes what differs. `wanted` is every object there is, with the function from the status
    /// that it has to the one that it should have.
    pub(super) async fn write<F>(&mut self, wanted: Vec<(StatusTarget, F)>, metrics: &Metrics)
    where
        F: Fn(&K::Status) -> K::Status,
    {
        let now = clock::now();
        if now < self.paused_until {
            return;
        }
        let mut entries = std::mem::take(&mut self.entries);
        let client = &self.client;
        let outcomes = wanted.into_iter().map(|(target, make)| {
            let mut entry = entries.remove(&target).unwrap_or_default();
            async move {
                let outcome = entry.write::<K>(client, &target, make).await;
                (target, entry, outcome)
            }
        });
        let outcomes: Vec<_> = outcomes.collect();
        let mut outcomes =
            futures_util::stream::iter(outcomes).buffer_unordered(CONCURRENT_WRITES_MAX);
        let mut unreachable = None;
        while let Some((target, mut entry, outcome)) = outcomes.next().await {
            entry.record_outcome(&outcome, clock::now());
            match outcome {
                StatusOutcome::Done | StatusOutcome::Stale => {}
                StatusOutcome::Refused(status) => {
                    metrics.status_write_failed();
                    let StatusTarget { namespace, name, .. } = &target;
                    let (kind, why) = (K::kind(&()), status.message);
                    tracing::warn!(%kind, namespace, name, why, "status refused");
                }
                StatusOutcome::Unreachable(why) => {
                    metrics.status_write_failed();
                    unreachable = Some(why);
                }
            }
            self.entries.insert(target, entry);
            if unreachable.is_some() {
                // The others would wait as long for nothing. What they know is read again.
                break;
            }
        }
        match unreachable {
            None => self.pause = PAUSE_MIN,
            Some(why) => {
                if self.pause == PAUSE_MIN {
                    tracing::warn!(why, kind = %K::kind(&()), "statuses cannot be written now");
                }
                self.paused_until = clock::now() + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

impl<S: Serialize> StatusEntry<S> {
    async fn write<K: StatusResource<Status = S>>(
        &mut self,
        client: &Client,
        target: &StatusTarget,
        make: impl Fn(&S) -> S,
    ) -> StatusOutcome {
        if clock::now() < self.retry_at {
            return StatusOutcome::Done;
        }
        match timeout(ANSWER_WITHIN, self.sync::<K>(client, target, make)).await {
            Ok(Ok(())) => StatusOutcome::Done,
            Ok(Err(kube::Error::Api(status))) => match status.code {
                404 | 409 => StatusOutcome::Stale,
                429 => StatusOutcome::Unreachable(status.message),
                400..500 => StatusOutcome::Refused(status),
                _ => StatusOutcome::Unreachable(status.message),
            },
            Ok(Err(error)) => StatusOutcome::Unreachable(error.to_string()),
            Err(_) => StatusOutcome::Unreachable(format!("no answer within {ANSWER_WITHIN:?}")),
        }
    }

    /// Reads the object where it is not known, and writes its status where that is due.
    async fn sync<K: StatusResource<Status = S>>(
        &mut self,
        client: &Client,
        target: &StatusTarget,
        make: impl Fn(&S) -> S,
    ) -> kube::Result<()> {
        let objects: Api<K> = Api::namespaced(client.clone(), &target.namespace);
        let (current, version) = match self.known.take() {
            Some(known) => known,
            None => status_and_version(objects.get(&target.name).await?),
        };
        let desired = make(&current);
        if !is_due::<K>(&current, &desired, self.wrote_at, clock::now()) {
            self.known = Some((current, version));
            return Ok(());
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
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written = objects.patch_status(&target.name, &params, &Patch::Apply(patch)).await?;
        self.known = Some(status_and_version(written));
        self.wrote_at = Some(clock::now());
        Ok(())
    }

    fn record_outcome(&mut self, outcome: &StatusOutcome, now: Moment) {
        match outcome {
            StatusOutcome::Done => {
                if self.known.is_some() {
                    self.pause = PAUSE_MIN;
                }
            }
            StatusOutcome::Stale => self.known = None,
            StatusOutcome::Refused(_) | StatusOutcome::Unreachable(_) => {
                self.known = None;
                self.retry_at = now + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

fn status_and_version<K: StatusResource>(object: K) -> (K::Status, Option<String>) {
    let version = object.meta().resource_version.clone();
    (object.into_status().unwrap_or_default(), version)
}

/// Whether a status is to be written now.
fn is_due<K: StatusResource>(
    current: &K::Status,
    desired: &K::Status,
    wrote_at: Option<Moment>,
    now: Moment,
) -> bool {
    if current == desired {
        return false;
    }
    let Some(wrote_at) = wrote_at else { return true };
    let every = match K::without_figures(current) == K::without_figures(desired) {
        true => FIGURES_INTERVAL,
        false => WRITE_INTERVAL,
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
    fn a_status_is_written_on_change_only_and_figures_less_often() {
        let current = WorkerClusterStatus::default();
        let due = |desired: &WorkerClusterStatus, wrote: Option<u64>, now| {
            is_due::<WorkerCluster>(&current, desired, wrote.map(at), at(now))
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
}
