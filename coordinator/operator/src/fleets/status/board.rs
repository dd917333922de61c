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
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// The same where only figures differ.
const FIGURES_EVERY: Duration = Duration::from_secs(5);
/// How long the API server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long an object waits after a failure, and at most; it doubles with each.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Objects that are written at a time.
const WRITES_AT_ONCE: usize = 8;

/// A kind that has a status to show.
pub(super) trait Shown:
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
    fn outlined(status: &Self::Status) -> Self::Status;
}

/// Which object; another one of the same name has another UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// One object's status as the API server has it.
#[derive(Debug)]
struct Page<S> {
    /// The status, and the version of the object that it was read in.
    known: Option<(S, Option<String>)>,
    wrote_at: Option<Moment>,
    /// Not before this; set by failures.
    retry_at: Moment,
    pause: Duration,
}

impl<S> Default for Page<S> {
    fn default() -> Self {
        Self { known: None, wrote_at: None, retry_at: Moment(0), pause: PAUSE_MIN }
    }
}

/// What became of one object's turn.
enum Turn {
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
pub(super) struct Board<K: Shown> {
    client: Client,
    pages: BTreeMap<Target, Page<K::Status>>,
    pause: Duration,
    rests_until: Moment,
}

impl<K: Shown> Board<K> {
    pub(super) fn new(client: Client) -> Self {
        let (pages, rests_until) = (BTreeMap::new(), Moment(0));
        Self { client, pages, pause: PAUSE_MIN, rests_until }
    }

    /// Forgets what the API server has: another leader may have written since.
    pub(super) fn clear(&mut self) {
        self.pages.clear();
    }

    /// Writes what differs. `wanted` is every object there is, with the function from the status
    /// that it has to the one that it should have.
    pub(super) async fn write<F>(&mut self, wanted: Vec<(Target, F)>, metrics: &Metrics)
    where
        F: Fn(&K::Status) -> K::Status,
    {
        let now = clock::now();
        if now < self.rests_until {
            return;
        }
        let mut pages = std::mem::take(&mut self.pages);
        let client = &self.client;
        let turns = wanted.into_iter().map(|(target, make)| {
            let mut page = pages.remove(&target).unwrap_or_default();
            async move {
                let turn = page.turn::<K>(client, &target, make).await;
                (target, page, turn)
            }
        });
        let turns: Vec<_> = turns.collect();
        let mut turns = futures_util::stream::iter(turns).buffer_unordered(WRITES_AT_ONCE);
        let mut unreachable = None;
        while let Some((target, mut page, turn)) = turns.next().await {
            page.after(&turn, clock::now());
            match turn {
                Turn::Done | Turn::Stale => {}
                Turn::Refused(status) => {
                    metrics.status_write_failed();
                    let Target { namespace, name, .. } = &target;
                    let (kind, why) = (K::kind(&()), status.message);
                    tracing::warn!(%kind, namespace, name, why, "status refused");
                }
                Turn::Unreachable(why) => {
                    metrics.status_write_failed();
                    unreachable = Some(why);
                }
            }
            self.pages.insert(target, page);
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
                self.rests_until = clock::now() + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

impl<S: Serialize> Page<S> {
    async fn turn<K: Shown<Status = S>>(
        &mut self,
        client: &Client,
        target: &Target,
        make: impl Fn(&S) -> S,
    ) -> Turn {
        if clock::now() < self.retry_at {
            return Turn::Done;
        }
        match timeout(ANSWER_WITHIN, self.bring::<K>(client, target, make)).await {
            Ok(Ok(())) => Turn::Done,
            Ok(Err(kube::Error::Api(status))) => match status.code {
                404 | 409 => Turn::Stale,
                429 => Turn::Unreachable(status.message),
                400..500 => Turn::Refused(status),
                _ => Turn::Unreachable(status.message),
            },
            Ok(Err(error)) => Turn::Unreachable(error.to_string()),
            Err(_) => Turn::Unreachable(format!("no answer within {ANSWER_WITHIN:?}")),
        }
    }

    /// Reads the object where it is not known, and writes its status where that is due.
    async fn bring<K: Shown<Status = S>>(
        &mut self,
        client: &Client,
        target: &Target,
        make: impl Fn(&S) -> S,
    ) -> kube::Result<()> {
        let objects: Api<K> = Api::namespaced(client.clone(), &target.namespace);
        let (has, version) = match self.known.take() {
            Some(known) => known,
            None => read_of(objects.get(&target.name).await?),
        };
        let wants = make(&has);
        if !is_due::<K>(&has, &wants, self.wrote_at, clock::now()) {
            self.known = Some((has, version));
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
            "status": wants,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written = objects.patch_status(&target.name, &params, &Patch::Apply(patch)).await?;
        self.known = Some(read_of(written));
        self.wrote_at = Some(clock::now());
        Ok(())
    }

    fn after(&mut self, turn: &Turn, now: Moment) {
        match turn {
            Turn::Done => {
                if self.known.is_some() {
                    self.pause = PAUSE_MIN;
                }
            }
            Turn::Stale => self.known = None,
            Turn::Refused(_) | Turn::Unreachable(_) => {
                self.known = None;
                self.retry_at = now + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

fn read_of<K: Shown>(object: K) -> (K::Status, Option<String>) {
    let version = object.meta().resource_version.clone();
    (object.into_status().unwrap_or_default(), version)
}

/// Whether a status is to be written now.
fn is_due<K: Shown>(
    has: &K::Status,
    wants: &K::Status,
    wrote_at: Option<Moment>,
    now: Moment,
) -> bool {
    if has == wants {
        return false;
    }
    let Some(wrote_at) = wrote_at else { return true };
    let every = match K::outlined(has) == K::outlined(wants) {
        true => FIGURES_EVERY,
        false => WRITE_EVERY,
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
        let has = WorkerClusterStatus::default();
        let due = |wants: &WorkerClusterStatus, wrote: Option<u64>, now| {
            is_due::<WorkerCluster>(&has, wants, wrote.map(at), at(now))
        };
        assert!(!due(&has, None, 60_000));
        let jobs = JobCounts { running: 1, ..JobCounts::default() };
        let figures = WorkerClusterStatus { jobs, ..has.clone() };
        assert!(due(&figures, None, 0));
        assert!(!due(&figures, Some(0), 4_999));
        assert!(due(&figures, Some(0), 5_000));
        let workers = WorkerCounts { lost: 1, ..WorkerCounts::default() };
        let change = WorkerClusterStatus { workers, ..figures };
        assert!(!due(&change, Some(0), 999));
        assert!(due(&change, Some(0), 1_000));
    }
}
