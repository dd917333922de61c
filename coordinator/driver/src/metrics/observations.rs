//! Gauges. The driver sets the values, and each collection reads the newest ones.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_coordinator_core::view::{ClassView, ClusterView};
use leasehold_types::metric::Metric;
use leasehold_types::{ClusterName, Epoch};
use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::instruments::{observed, observed_f64};
use super::pipelines::PipelineTally;
use super::{FleetSnapshot, table};
use crate::clock;
use crate::demand::Demand;
use crate::view::PublishedView;

/// The newest values of one replica.
#[derive(Debug, Default)]
pub(super) struct Observations {
    pub(super) epoch: Option<Epoch>,
    pub(super) sessions: usize,
    pub(super) sessions_max: usize,
    pub(super) leader_watches: usize,
    pub(super) problems: usize,
    pub(super) fleet: FleetSnapshot,
    pub(super) tally: PipelineTally,
    pub(super) agents_missing: usize,
    pub(super) agents_outdated: usize,
}

/// Registers a gauge for each value.
pub(super) fn register(meter: &Meter, observations: &Arc<Mutex<Observations>>) {
    for (metric, read) in REPLICA_GAUGES {
        let observations = Arc::clone(observations);
        let _ = observed(meter, metric)
            .with_callback(move |observer| {
                let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
                observer.observe(read(&observations), &[]);
            })
            .build();
    }
    for (metric, read) in CLUSTER_GAUGES {
        let observations = Arc::clone(observations);
        let _ = observed(meter, metric)
            .with_callback(move |observer| {
                let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
                for cluster in &observations.fleet.clusters {
                    let label = KeyValue::new("cluster", cluster.name.to_string());
                    observer.observe(read(cluster), &[label]);
                }
            })
            .build();
    }
    workers(meter, observations);
    classes(meter, observations);
}

/// A gauge of one replica, and its value.
type ReplicaGauge = (&'static Metric, fn(&Observations) -> u64);

const REPLICA_GAUGES: &[ReplicaGauge] = &[
    (&table::LEADER, |observed| u64::from(observed.epoch.is_some())),
    (&table::EPOCH, |observed| observed.epoch.map_or(0, |epoch| epoch.0)),
    (&table::SESSIONS, |observed| observed.sessions as u64),
    (&table::SESSIONS_MAX, |observed| observed.sessions_max as u64),
    (&table::LEADER_WATCHES, |observed| observed.leader_watches as u64),
    (&table::MANIFEST_PROBLEMS, |observed| observed.problems as u64),
    (&table::AGENTS_MISSING, |observed| observed.agents_missing as u64),
    (&table::AGENTS_OUTDATED, |observed| observed.agents_outdated as u64),
];

/// Registers the gauge of open watches, by kind.
pub(super) fn watches(
    meter: &Meter,
    open: impl Fn() -> [(&'static str, usize); 2] + Send + Sync + 'static,
) {
    let _ = observed(meter, &table::WATCHES)
        .with_callback(move |observer| {
            for (kind, count) in open() {
                observer.observe(count as u64, &[KeyValue::new("kind", kind)]);
            }
        })
        .build();
}

/// Registers the gauge of the end of the serving certificate.
pub(super) fn certificate(
    meter: &Meter,
    expires_at: impl Fn() -> Option<u64> + Send + Sync + 'static,
) {
    let _ = observed(meter, &table::CERTIFICATE_EXPIRY)
        .with_callback(move |observer| {
            if let Some(seconds) = expires_at() {
                observer.observe(seconds, &[]);
            }
        })
        .build();
}

/// A gauge of each cluster, and its value.
type ClusterGauge = (&'static Metric, fn(&ClusterView) -> u64);

const CLUSTER_GAUGES: &[ClusterGauge] = &[
    (&table::JOBS_MAX, |cluster| cluster.jobs_max.into()),
    (&table::SLOTS_COMMITTED, |cluster| cluster.committed.into()),
    (&table::SLOTS_GRANTED, |cluster| cluster.granted.into()),
    (&table::JOBS_RUNNING, |cluster| cluster.running.into()),
    (&table::STREAMS, |cluster| cluster.streams as u64),
    (&table::STREAMS_OWNED, |cluster| cluster.streams_owned as u64),
    (&table::WORKERS_DRAINING, |cluster| cluster.draining as u64),
    (&table::WORKERS_FAILING, |cluster| cluster.failing as u64),
    (&table::CLUSTER_HELD, |cluster| u64::from(cluster.held.is_some())),
];

fn workers(meter: &Meter, observations: &Arc<Mutex<Observations>>) {
    let observations = Arc::clone(observations);
    let _ = observed(meter, &table::WORKERS)
        .with_callback(move |observer| {
            let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
            for cluster in &observations.fleet.clusters {
                let not_silent = cluster.connected + cluster.lost + cluster.unreported;
                for (presence, workers) in [
                    ("connected", cluster.connected),
                    ("silent", cluster.workers.saturating_sub(not_silent)),
                    ("lost", cluster.lost),
                    ("unreported", cluster.unreported),
                ] {
                    let name = KeyValue::new("cluster", cluster.name.to_string());
                    let labels = [name, KeyValue::new("presence", presence)];
                    observer.observe(workers as u64, &labels);
                }
            }
        })
        .build();
}

/// A gauge of each class, and its value.
type ClassGauge = (&'static Metric, fn(&ClassView) -> f64);

const CLASS_GAUGES: &[ClassGauge] = &[
    (&table::CLASS_CAPACITY, |class| class.capacity.as_f64() * f64::from(class.workers)),
    (&table::CLASS_PLACED, |class| class.placed.as_f64()),
    (&table::CLASS_WORKERS, |class| f64::from(class.workers)),
    (&table::CLASS_WORKERS_NEEDED, |class| f64::from(class.workers_needed)),
    (&table::CLASS_WORKERS_WANTED, |class| f64::from(class.workers_wanted)),
    (&table::CLASS_PIPELINES_WAITING, |class| {
        u32::try_from(class.waiting).map_or(f64::INFINITY, f64::from)
    }),
];

/// Registers the gauges of classes and pipelines, which only a leader has.
fn classes(meter: &Meter, observations: &Arc<Mutex<Observations>>) {
    for (metric, read) in CLASS_GAUGES {
        let observations = Arc::clone(observations);
        let _ = observed_f64(meter, metric)
            .with_callback(move |observer| {
                let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
                for class in &observations.fleet.classes {
                    observer.observe(read(class), &labels(&class.name));
                }
            })
            .build();
    }
    let observations = Arc::clone(observations);
    let _ = observed(meter, &table::PIPELINES)
        .with_callback(move |observer| {
            let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(all) = observations.epoch.and(observations.fleet.pipelines) else { return };
            for (phase, count) in observations.tally.counts(all) {
                observer.observe(count as u64, &[KeyValue::new("phase", phase)]);
            }
        })
        .build();
}

/// A gauge of a class's demand, and its value.
type DemandGauge = (&'static Metric, fn(&Demand) -> f64);

const DEMAND_GAUGES: &[DemandGauge] = &[
    (&table::CLASS_REQUEST, |class| class.request.as_f64()),
    (&table::CLASS_WORKERS_NEEDED_BY_ALL, |class| f64::from(class.needed)),
];

/// Registers the gauges for autoscalers. A replica whose view must not be used exports none.
pub(super) fn demands(meter: &Meter, view: &Arc<PublishedView>) {
    for (metric, read) in DEMAND_GAUGES {
        let view = Arc::clone(view);
        let _ = observed_f64(meter, metric)
            .with_callback(move |observer| {
                let Ok(demands) = view.demands(clock::now()) else { return };
                let is_readable = |class: &&ClusterName| view.check_readable(class).is_ok();
                for (class, demand) in demands.iter().filter(|(class, _)| is_readable(class)) {
                    observer.observe(read(demand), &labels(class));
                }
            })
            .build();
    }
}

/// Registers the gauge of the desired state's age.
pub(super) fn desired_state_age(meter: &Meter, view: &Arc<PublishedView>) {
    let view = Arc::clone(view);
    let _ = observed_f64(meter, &table::DESIRED_STATE_AGE)
        .with_callback(move |observer| {
            if let Some(age) = view.desired_state_age(clock::now()) {
                observer.observe(age.as_secs_f64(), &[]);
            }
        })
        .build();
}

/// Registers the gauge of namespaces that the platform forbids to read.
pub(super) fn unreadable(meter: &Meter, view: &Arc<PublishedView>) {
    let view = Arc::clone(view);
    let _ = observed(meter, &table::UNREADABLE_NAMESPACES)
        .with_callback(move |observer| {
            for namespace in view.unreadable() {
                observer.observe(1, &[KeyValue::new("served_namespace", namespace)]);
            }
        })
        .build();
}

/// A class's labels; the namespace may be empty.
fn labels(class: &ClusterName) -> [KeyValue; 2] {
    let (namespace, name) = class.parts();
    let namespace = namespace.unwrap_or_default().to_owned();
    let name = KeyValue::new("workerclass_name", name.to_owned());
    [name, KeyValue::new("workerclass_namespace", namespace)]
}
