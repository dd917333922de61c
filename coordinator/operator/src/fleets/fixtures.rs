//! Fixtures of the operator's tests: fleets as users write them, and pods and workers in one line
//! each.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_kube_api::resources::{WorkerClass, WorkerCluster};
use leasehold_manifest::manifest::WorkloadKind;
use leasehold_platform_kube::pods::{Owner, Phase, PodFacts, PodName};
use leasehold_types::message::DrainPhase;
use leasehold_types::{ClusterName, WorkerKey, WorkerName};
use serde_json::Value;

use super::fleet::Fleet;
use super::worker_pod::{DrainReason, WorkerPod};
use super::workload::WorkloadFacts;

/// A `WorkerCluster` ns/ci of this spec.
pub(super) fn cluster(spec: Value) -> Fleet {
    Fleet::Cluster(Arc::new(cluster_object(spec)))
}

/// The same, to be changed.
pub(super) fn cluster_object(spec: Value) -> WorkerCluster {
    let spec = serde_json::from_value(spec).expect("a spec");
    WorkerCluster { metadata: metadata("cluster-uid"), spec, status: None }
}

/// A `WorkerClass` ns/ci of this spec.
pub(super) fn class(spec: Value) -> Arc<WorkerClass> {
    let spec = serde_json::from_value(spec).expect("a spec");
    Arc::new(WorkerClass { metadata: metadata("class-uid"), spec, status: None })
}

fn metadata(uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some("ci".into()),
        namespace: Some("ns".into()),
        uid: Some(uid.into()),
        generation: Some(7),
        ..ObjectMeta::default()
    }
}

/// Its name.
pub(super) fn name() -> ClusterName {
    ClusterName::in_namespace("ns", "ci").expect("a name")
}

/// A workload `ci` with this number of replicas, all of one template.
pub(super) fn facts(kind: WorkloadKind, replicas: u32) -> WorkloadFacts {
    WorkloadFacts {
        kind,
        name: "ci".into(),
        uid: "workload-uid".into(),
        resource_version: "100".into(),
        controller: Some("cluster-uid".into()),
        generation: 1,
        observed_generation: 1,
        replicas,
        pods: replicas,
        updated: replicas,
        ready: replicas,
        available: replicas,
        unavailable_max: super::workload::unavailable_max(None, replicas),
        ..WorkloadFacts::default()
    }
}

/// A pod of the workload `ci` from words: its name, and then of these: `jobs=N`, `unknown`,
/// `streams=N`, `load=N`, `drains`, `ordered`, `lost`, `absent` (no worker is known), `scale-in`,
/// `node`, `eviction`, `restart` (its mark), `cost`, `unready`, `pending`, `going`, `on=NODE`,
/// `of=KIND`, `hash=TEXT`, `age=N`, `labelled`, `began=TEXT`.
pub(crate) fn pod(words: &str) -> WorkerPod {
    let mut words = words.split_whitespace();
    let name = words.next().expect("a name").to_owned();
    let mut worker = WorkerPod::new(Arc::new(bare(&name)), &Default::default(), Some(view(&name)));
    for word in words {
        let facts = Arc::get_mut(&mut worker.pod).expect("the only reference");
        let mut view = worker.view.as_mut();
        let (word, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse().expect("a number");
        match (word, &mut view) {
            ("jobs", Some(view)) => (view.running, view.committed) = (Some(number()), number()),
            ("unknown", Some(view)) => view.running = None,
            ("streams", Some(view)) => view.streams = number() as usize,
            ("load", Some(view)) => {
                view.load = value.parse().expect("a load");
                (view.streams, view.committed) = (usize::from(value != "0"), 0);
            }
            ("drains", Some(view)) => {
                view.drain = DrainPhase::Draining;
                view.committed = view.running.unwrap_or(0);
            }
            ("ordered", Some(view)) => view.drain_ordered = true,
            ("lost", Some(view)) => view.presence = Presence::Lost,
            ("absent", _) => worker.view = None,
            ("scale-in" | "node" | "eviction" | "restart", _) => {
                worker.drain_reason = Some(DrainReason::parse(word));
            }
            ("cost", _) => facts.deletion_cost = Some(super::worker_pod::DRAINED_POD_COST),
            ("unready", _) => facts.ready = false,
            ("pending", _) => (facts.ready, facts.phase) = (false, Phase::Pending),
            ("going", _) => facts.deleted_at = Some(Timestamp::UNIX_EPOCH),
            ("on", _) => facts.node = Some(value.into()),
            ("of", _) => facts.owner.as_mut().expect("an owner").kind = value.into(),
            ("hash", _) => {
                facts.template_hash = Some(value.into());
                facts.owner.as_mut().expect("an owner").name = format!("ci-{value}");
            }
            ("age", _) => {
                let age = Duration::from_secs(number().into());
                facts.created_at = Some(Timestamp::UNIX_EPOCH - age);
            }
            ("began", _) => facts.streams = Some(value.into()),
            ("labelled", _) => facts.busy = true,
            (word, _) => panic!("unknown word {word:?}"),
        }
    }
    worker
}

/// Pods of a StatefulSet: their ordinals are the ends of their names.
pub(super) fn ordinal_pod(words: &str) -> WorkerPod {
    let mut worker = pod(words);
    let facts = Arc::get_mut(&mut worker.pod).expect("the only reference");
    let owner = facts.owner.as_mut().expect("an owner");
    (owner.kind, owner.name) = ("StatefulSet".into(), "ci".into());
    let (_, ordinal) = facts.pod.name.rsplit_once('-').expect("an ordinal");
    facts.ordinal = Some(ordinal.parse().expect("a number"));
    worker
}

fn bare(name: &str) -> PodFacts {
    PodFacts {
        pod: PodName { namespace: "ns".into(), name: name.into() },
        uid: format!("uid-of-{name}"),
        version: 1,
        cluster: Some(self::name()),
        busy: false,
        mark: Default::default(),
        drain: None,
        streams: None,
        exposures: Default::default(),
        generation: None,
        deletion_cost: None,
        node: Some("here".into()),
        addresses: Vec::new(),
        phase: Phase::Running,
        ready: true,
        deleted_at: None,
        over: false,
        created_at: Some(Timestamp::UNIX_EPOCH),
        owner: Some(Owner {
            kind: "ReplicaSet".into(),
            name: "ci-new".into(),
            uid: "workload-uid".into(),
        }),
        ordinal: None,
        template_hash: Some("new".into()),
        revision: None,
        grace: Duration::from_secs(30),
        restarts: 0,
        opted_in: false,
        agent_image: None,
        agent_image_wanted: None,
        warnings: Vec::new(),
    }
}

/// A connected worker with two slots and no jobs.
fn view(name: &str) -> WorkerView {
    let worker = WorkerName::new(name).expect("a name");
    WorkerView {
        key: WorkerKey { cluster: self::name(), worker },
        presence: Presence::Connected,
        drain: DrainPhase::Working,
        failure: None,
        drain_ordered: false,
        drain_overdue: None,
        agent_version: None,
        refused_agent: None,
        agent: None,
        incarnation: None,
        generation: 1,
        silent_for: None,
        granted: 2,
        in_effect: 2,
        running: Some(0),
        committed: 2,
        wanted: 2,
        pool_token: None,
        streams: 0,
        load: leasehold_types::Load::ZERO,
        address: None,
    }
}
