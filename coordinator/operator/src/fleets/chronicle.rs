//! What happens to workers and to leadership by itself, told as events: a worker that is lost, one
//! that drains because its pod ends, another leader. What the operator does is told by it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource};
use leasehold_coordinator_core::effect::Notice;
use leasehold_driver::clock;
use leasehold_driver::history::Change;
use leasehold_driver::port::Stopped;
use leasehold_kube_api::names::LEASE;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::{PodName, Pods};
use leasehold_types::{Epoch, Moment, WorkerKey, duration};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{interval, timeout};

use super::Context;
use super::fleet::Fleet;
use super::tell::pod_reference;
use crate::events::{Happening, Reason};

/// How often it is looked for drains that take too long.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the API server may take to show the Lease.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Workers that are remembered as lost, or as draining.
const REMEMBERED_MAX: usize = 10_000;

/// Tells what happens until the driver ends.
pub(super) async fn run(context: Context) -> Result<(), Stopped> {
    let mut changes = context.handle.watch()?;
    let mut chronicle = Chronicle::default();
    let mut looks = interval(LOOK_EVERY);
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            _ = looks.tick() => {
                let scene = Scene::of(&context);
                let overdue = chronicle.overdue(&scene, clock::now());
                overdue.into_iter().for_each(|it| context.events.record(it));
                continue;
            }
        };
        match change {
            Ok(Change::Notice(Notice::Elected(epoch))) => {
                chronicle = Chronicle::default();
                context.events.record(elected(&context, epoch).await);
            }
            Ok(Change::Notice(notice)) => {
                let told = chronicle.take(&notice, &Scene::of(&context), clock::now());
                told.into_iter().for_each(|it| context.events.record(it));
            }
            // What was missed stands in the status.
            Ok(Change::Manifests { .. }) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return Err(Stopped),
        }
    }
}

/// This replica leads: an event of the election's Lease.
async fn elected(context: &Context, epoch: Epoch) -> Happening {
    let settings = &context.settings;
    let leases: Api<Lease> = Api::namespaced(context.client.clone(), &settings.namespace);
    // Without its UID the event is written all the same.
    let lease = timeout(ANSWER_WITHIN, leases.get(LEASE)).await.ok().and_then(Result::ok);
    let regarding = ObjectReference {
        api_version: Some(Lease::api_version(&()).into()),
        kind: Some(Lease::kind(&()).into()),
        namespace: Some(settings.namespace.clone()),
        name: Some(LEASE.into()),
        uid: lease.and_then(|lease| lease.metadata.uid),
        ..ObjectReference::default()
    };
    let note = format!("{} at {} leads now, epoch {epoch}", settings.identity, settings.address);
    Happening { regarding, related: None, reason: Reason::LeaderChanged, note }
}

/// The objects that happenings are about.
struct Scene {
    objects: Arc<Objects>,
    pods: Pods,
}

impl Scene {
    fn of(context: &Context) -> Self {
        Self { objects: Arc::clone(&context.objects.borrow()), pods: context.pods.clone() }
    }
}

/// Where to look objects up.
trait Places {
    /// The worker's pod, and whether the operator drains it.
    fn pod(&self, key: &WorkerKey) -> Option<(ObjectReference, bool)>;
    /// The worker's fleet, and its `drain.deadline`.
    fn fleet(&self, key: &WorkerKey) -> Option<(ObjectReference, Duration)>;
}

impl Places for Scene {
    fn pod(&self, key: &WorkerKey) -> Option<(ObjectReference, bool)> {
        let name = PodName::of(key)?;
        let pod = self.pods.find(&name.namespace, &name.name)?;
        Some((pod_reference(&pod), pod.drain.is_some()))
    }

    fn fleet(&self, key: &WorkerKey) -> Option<(ObjectReference, Duration)> {
        let fleet = Fleet::find(&self.objects, &key.cluster)?;
        Some((fleet.reference(), fleet.drain_deadline()))
    }
}

/// What is under way.
#[derive(Debug, Default)]
struct Chronicle {
    lost: BTreeSet<WorkerKey>,
    drains: BTreeMap<WorkerKey, Drain>,
}

/// A drain that nobody here ordered.
#[derive(Debug)]
struct Drain {
    pod: Option<ObjectReference>,
    since: Moment,
    is_overdue: bool,
}

impl Chronicle {
    /// What is to be told of a notice.
    fn take(&mut self, notice: &Notice, places: &impl Places, now: Moment) -> Vec<Happening> {
        match notice {
            Notice::Lost(key) => {
                if self.lost.len() < REMEMBERED_MAX {
                    self.lost.insert(key.clone());
                }
                let note = format!(
                    "worker {} has been silent for longer than its leases; its slots and pinned \
                     streams stay its own until it is heard or its pod is gone",
                    key.worker
                );
                of_both(key, places, Reason::WorkerLost, &note)
            }
            Notice::GivenUp { worker: key, after } => {
                let note = format!(
                    "worker {} has been lost for {}, as long as spec.lost.after allows: its slots \
                     and streams go to others, though its jobs may still run",
                    key.worker,
                    duration::format(*after)
                );
                of_both(key, places, Reason::WorkerGivenUp, &note)
            }
            Notice::Joined(key) if self.lost.remove(key) => {
                let note = format!("worker {} is heard again", key.worker);
                of_both(key, places, Reason::WorkerFound, &note)
            }
            Notice::DrainStarted(key) => self.drains(key, places, now),
            Notice::Gone(key) => {
                self.lost.remove(key);
                let Some(drain) = self.drains.remove(key) else { return Vec::new() };
                let note = format!("worker {} has drained and is gone", key.worker);
                told(key, drain.pod, places, Reason::DrainCompleted, &note)
            }
            Notice::EpochAhead { worker, seen } => {
                let note = format!(
                    "the agent of worker {} remembers epoch {seen}, which the leader's store does \
                     not know: it obeys no lower one and cannot be served",
                    worker.worker
                );
                of_both(worker, places, Reason::EpochAhead, &note)
            }
            Notice::Offence { worker, rule } => {
                let note = format!("the agent of worker {} broke a rule: {rule}", worker.worker);
                of_both(worker, places, Reason::AgentMisbehaved, &note)
            }
            Notice::Deposed(_) => {
                *self = Self::default();
                Vec::new()
            }
            Notice::Elected(_)
            | Notice::HoldEnded(_)
            | Notice::Joined(_)
            | Notice::Disconnected(_)
            | Notice::PoolGranted { .. }
            | Notice::StreamGranted { .. }
            | Notice::StreamRevoked { .. }
            | Notice::StreamFreed { .. }
            | Notice::Pipeline { .. }
            | Notice::Binding { .. }
            | Notice::Endpoints { .. } => Vec::new(),
        }
    }

    fn drains(&mut self, key: &WorkerKey, places: &impl Places, now: Moment) -> Vec<Happening> {
        let pod = places.pod(key);
        let is_ordered = pod.as_ref().is_some_and(|(_, is_ordered)| *is_ordered);
        if is_ordered || self.drains.contains_key(key) || self.drains.len() >= REMEMBERED_MAX {
            return Vec::new();
        }
        let pod = pod.map(|(pod, _)| pod);
        let drain = Drain { pod: pod.clone(), since: now, is_overdue: false };
        self.drains.insert(key.clone(), drain);
        let note = format!("worker {} drains: its pod ends, or somebody asked for it", key.worker);
        told(key, pod, places, Reason::DrainStarted, &note)
    }

    /// The drains that have just begun to take too long.
    fn overdue(&mut self, places: &impl Places, now: Moment) -> Vec<Happening> {
        let mut happenings = Vec::new();
        for (key, drain) in &mut self.drains {
            let Some((_, deadline)) = places.fleet(key) else { continue };
            if drain.is_overdue || now.since(drain.since) < deadline {
                continue;
            }
            drain.is_overdue = true;
            let (worker, seconds) = (&key.worker, deadline.as_secs());
            let note = format!("worker {worker} drains for longer than {seconds} s");
            let pod = drain.pod.clone();
            happenings.extend(told(key, pod, places, Reason::DrainDeadlineExceeded, &note));
        }
        happenings
    }
}

fn of_both(key: &WorkerKey, places: &impl Places, reason: Reason, note: &str) -> Vec<Happening> {
    let pod = places.pod(key).map(|(pod, _)| pod);
    told(key, pod, places, reason, note)
}

/// One event of the pod and one of the fleet, each naming the other.
fn told(
    key: &WorkerKey,
    pod: Option<ObjectReference>,
    places: &impl Places,
    reason: Reason,
    note: &str,
) -> Vec<Happening> {
    let fleet = places.fleet(key).map(|(fleet, _)| fleet);
    let event = |regarding: Option<ObjectReference>, related: Option<ObjectReference>| {
        let note = note.to_owned();
        regarding.map(|regarding| Happening { regarding, related, reason, note })
    };
    let events = [event(pod.clone(), fleet.clone()), event(fleet, pod)];
    events.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, WorkerName};

    use super::*;

    /// Pods by this name are there, and drained by the operator where it begins with "marked".
    struct Stage;

    fn reference(kind: &str, name: &str) -> ObjectReference {
        let (kind, name) = (Some(kind.to_owned()), Some(name.to_owned()));
        ObjectReference { kind, name, ..ObjectReference::default() }
    }

    impl Places for Stage {
        fn pod(&self, key: &WorkerKey) -> Option<(ObjectReference, bool)> {
            let name = key.worker.as_str();
            Some((reference("Pod", name), name.starts_with("marked")))
        }

        fn fleet(&self, key: &WorkerKey) -> Option<(ObjectReference, Duration)> {
            Some((reference("WorkerCluster", key.cluster.as_str()), Duration::from_secs(60)))
        }
    }

    fn key(worker: &str) -> WorkerKey {
        let cluster = ClusterName::in_namespace("fleet", "builds").expect("a name");
        WorkerKey { cluster, worker: WorkerName::new(worker).expect("a name") }
    }

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    /// The reason and the kinds that the events are about.
    fn words(events: &[Happening]) -> Vec<(Reason, &str)> {
        let word = |it| {
            let Happening { reason, regarding, .. }: &Happening = it;
            (*reason, regarding.kind.as_deref().unwrap_or_default())
        };
        events.iter().map(word).collect()
    }

    fn both(reason: Reason) -> Vec<(Reason, &'static str)> {
        vec![(reason, "Pod"), (reason, "WorkerCluster")]
    }

    #[test]
    fn a_drain_that_nobody_here_ordered_is_told_from_its_start_to_its_end() {
        let mut chronicle = Chronicle::default();
        let started = Notice::DrainStarted(key("a"));
        let told = chronicle.take(&started, &Stage, at(0));
        assert_eq!(words(&told), both(Reason::DrainStarted));
        assert_eq!(
            told[0].related.as_ref().and_then(|it| it.kind.as_deref()),
            Some("WorkerCluster")
        );
        assert_eq!(chronicle.take(&started, &Stage, at(1)), []);
        assert_eq!(chronicle.overdue(&Stage, at(59)), []);
        let told = chronicle.overdue(&Stage, at(60));
        assert_eq!(words(&told), both(Reason::DrainDeadlineExceeded));
        assert_eq!(chronicle.overdue(&Stage, at(90)), []);
        let told = chronicle.take(&Notice::Gone(key("a")), &Stage, at(99));
        assert_eq!(words(&told), both(Reason::DrainCompleted));
        assert_eq!(chronicle.take(&Notice::Gone(key("a")), &Stage, at(99)), []);
    }

    #[test]
    fn a_drain_that_the_operator_ordered_is_told_by_it() {
        let mut chronicle = Chronicle::default();
        assert_eq!(chronicle.take(&Notice::DrainStarted(key("marked-a")), &Stage, at(0)), []);
        assert_eq!(chronicle.overdue(&Stage, at(600)), []);
        assert_eq!(chronicle.take(&Notice::Gone(key("marked-a")), &Stage, at(601)), []);
    }

    #[test]
    fn a_worker_is_lost_and_found_and_an_ordinary_one_just_joins() {
        let mut chronicle = Chronicle::default();
        let joined = Notice::Joined(key("a"));
        assert_eq!(chronicle.take(&joined, &Stage, at(0)), []);
        let told = chronicle.take(&Notice::Lost(key("a")), &Stage, at(1));
        assert_eq!(words(&told), both(Reason::WorkerLost));
        assert_eq!(words(&chronicle.take(&joined, &Stage, at(2))), both(Reason::WorkerFound));
        assert_eq!(chronicle.take(&joined, &Stage, at(3)), []);
        let notice = Notice::GivenUp { worker: key("a"), after: Duration::from_secs(3600) };
        let told = chronicle.take(&notice, &Stage, at(9));
        assert_eq!(words(&told), both(Reason::WorkerGivenUp));
        assert!(told[0].note.contains("lost for 1h,"), "{}", told[0].note);
    }
}
