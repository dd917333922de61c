//! Gauges. The driver sets the values, and each collection reads the newest ones.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_coordinator_core::view::{ClassView, ClusterView};
use leasehold_types::{ClusterName, Epoch};
use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::FleetSnapshot;
use super::pipelines::PipelineTally;
use crate::clock;
use crate::demand::Demand;
use crate::view::PublishedView;

/// The metric with the most series: several for each cluster.
pub const WORKERS: &str = "leasehold_workers";

/// The newest values of one replica.
#[derive(Debug, Default)]
pub(super) struct Observations {
    pub(super) epoch: Option<Epoch>,
    pub(super) sessions: usize,
    pub(super) sessions_max: usize,
    pub(super) problems: usize,
    pub(super) fleet: FleetSnapshot,
    pub(super) tally: PipelineTally,
    pub(super) agents_missing: usize,
    pub(super) agents_outdated: usize,
}

/// Registers a gauge for each value.
pub(super) fn register(meter: &Meter, observations: &Arc<Mutex<Observations>>) {
    gauge(meter, observations, "leasehold_leader", "1 where this replica leads.", |observations| {
        u64::from(observations.epoch.is_some())
    });
    gauge(
        meter,
        observations,
        "leasehold_epoch",
        "The term that this replica leads, or 0.",
        |observations| observations.epoch.map_or(0, |epoch| epoch.0),
    );
    gauge(
        meter,
        observations,
        "leasehold_sessions",
        "Agents connected to this replica.",
        |observations| observations.sessions as u64,
    );
    let help = "Agents that may be connected to this replica.";
    gauge(meter, observations, "leasehold_sessions_max", help, |observations| {
        observations.sessions_max as u64
    });
    let help = "Problems of the manifests; the last valid ones are in force.";
    gauge(meter, observations, "leasehold_manifest_problems", help, |observations| {
        observations.problems as u64
    });
    let help = "Pods that asked for an agent and have none, as the leader sees them.";
    gauge(meter, observations, "leasehold_agents_missing", help, |observed| {
        observed.agents_missing as u64
    });
    let help = "Pods with another agent than they would get now, as the leader sees them.";
    gauge(meter, observations, "leasehold_agents_outdated", help, |observed| {
        observed.agents_outdated as u64
    });
    for (name, help, read) in CLUSTER_GAUGES {
        per_cluster(meter, observations, name, help, *read);
    }
    workers(meter, observations);
    classes(meter, observations);
}

/// Registers the gauge of open watches, by kind.
pub(super) fn watches(
    meter: &Meter,
    open: impl Fn() -> [(&'static str, usize); 2] + Send + Sync + 'static,
) {
    let _ = meter
        .u64_observable_gauge("leasehold_watches")
        .with_description("Open watches of the admin API, by kind.")
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
    let _ = meter
        .u64_observable_gauge("leasehold_certificate_expiry_timestamp_seconds")
        .with_description("When the certificate that the gRPC port serves ends (Unix time).")
        .with_callback(move |observer| {
            if let Some(seconds) = expires_at() {
                observer.observe(seconds, &[]);
            }
        })
        .build();
}

/// Name, help text and value of a gauge per cluster.
type ClusterGauge = (&'static str, &'static str, fn(&ClusterView) -> u64);

const CLUSTER_GAUGES: &[ClusterGauge] = &[
    ("leasehold_jobs_max", "The cluster's budget of concurrent jobs.", |c| c.jobs_max.into()),
    ("leasehold_slots_committed", "Upper bound of the slots that workers are using.", {
        |c| c.committed.into()
    }),
    ("leasehold_slots_granted", "Slots granted to workers that take jobs.", |c| c.granted.into()),
    ("leasehold_jobs_running", "Jobs that run, as reported.", |c| c.running.into()),
    ("leasehold_streams", "Streams of the sets that run on the cluster.", |c| c.streams as u64),
    ("leasehold_streams_owned", "Streams that a worker owns.", |c| c.streams_owned as u64),
    ("leasehold_workers_draining", "Workers that drain.", |c| c.draining as u64),
    ("leasehold_workers_failing", "Connected workers that fail.", |c| c.failing as u64),
    ("leasehold_cluster_held", "1 where a new leader does not plan the cluster yet.", |c| {
        u64::from(c.held.is_some())
    }),
];

fn gauge(
    meter: &Meter,
    observations: &Arc<Mutex<Observations>>,
    name: &'static str,
    help: &'static str,
    read: impl Fn(&Observations) -> u64 + Send + Sync + 'static,
) {
    let observations = Arc::clone(observations);
    let gauge = meter.u64_observable_gauge(name).with_description(help);
    let _ = gauge
        .with_callback(move |observer| {
            let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
            observer.observe(read(&observations), &[]);
        })
        .build();
}

fn per_cluster(
    meter: &Meter,
    observations: &Arc<Mutex<Observations>>,
    name: &'static str,
    help: &'static str,
    read: fn(&ClusterView) -> u64,
) {
    let observations = Arc::clone(observations);
    let gauge = meter.u64_observable_gauge(name).with_description(help);
    let _ = gauge
        .with_callback(move |observer| {
            let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
            for cluster in &observations.fleet.clusters {
                let label = KeyValue::new("cluster", cluster.name.to_string());
                observer.observe(read(cluster), &[label]);
            }
        })
        .build();
}

fn workers(meter: &Meter, observations: &Arc<Mutex<Observations>>) {
    let observations = Arc::clone(observations);
    let gauge = meter
        .u64_observable_gauge(WORKERS)
        .with_description("Workers known, by whether they are heard.");
    let _ = gauge
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

/// Name, help text and value of a gauge per class.
type ClassGauge = (&'static str, &'static str, fn(&ClassView) -> f64);

const CLASS_GAUGES: &[ClassGauge] = &[
    ("leasehold_class_capacity", "Documents per second that all its workers can take.", |c| {
        c.capacity.as_f64() * f64::from(c.workers)
    }),
    ("leasehold_class_placed", "Documents per second that workers are chosen for.", |c| {
        c.placed.as_f64()
    }),
    ("leasehold_class_workers", "Workers that can take shares now.", |c| f64::from(c.workers)),
    ("leasehold_class_workers_needed", "The fewest workers that its pipelines fit on.", |c| {
        f64::from(c.workers_needed)
    }),
    ("leasehold_class_workers_wanted", "Workers that the target utilisation asks for.", |c| {
        f64::from(c.workers_wanted)
    }),
    ("leasehold_class_pipelines_waiting", "Pipelines that wait for workers of the class.", {
        |c| u32::try_from(c.waiting).map_or(f64::INFINITY, f64::from)
    }),
];

/// Registers the gauges of classes and pipelines, which only a leader has.
fn classes(meter: &Meter, observations: &Arc<Mutex<Observations>>) {
    for (name, help, read) in CLASS_GAUGES {
        let observations = Arc::clone(observations);
        let gauge = meter.f64_observable_gauge(*name).with_description(*help);
        let _ = gauge
            .with_callback(move |observer| {
                let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
                for class in &observations.fleet.classes {
                    observer.observe(read(class), &labels(&class.name));
                }
            })
            .build();
    }
    let observations = Arc::clone(observations);
    let _ = meter
        .u64_observable_gauge("leasehold_pipelines")
        .with_description("Pipelines by their state, as the leader sees them.")
        .with_callback(move |observer| {
            let observations = observations.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(all) = observations.epoch.and(observations.fleet.pipelines) else { return };
            for (phase, count) in observations.tally.counts(all) {
                observer.observe(count as u64, &[KeyValue::new("phase", phase)]);
            }
        })
        .build();
}

/// Name, help text and value of a gauge of a class's demand.
type DemandGauge = (&'static str, &'static str, fn(&Demand) -> f64);

const DEMAND_GAUGES: &[DemandGauge] = &[
    ("workerclass_request", "Documents per second that the class must process.", |class| {
        class.request.as_f64()
    }),
    ("workerclass_workers_needed", "The fewest workers that all its pipelines fit on.", |class| {
        f64::from(class.needed)
    }),
];

/// Registers the gauges for autoscalers. A replica whose view must not be used exports none.
pub(super) fn demands(meter: &Meter, view: &Arc<PublishedView>) {
    for (name, help, read) in DEMAND_GAUGES {
        let view = Arc::clone(view);
        let gauge = meter.f64_observable_gauge(*name).with_description(*help);
        let _ = gauge
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
    let gauge = meter
        .f64_observable_gauge("leasehold_desired_state_age_seconds")
        .with_description("Time since the platform last confirmed the desired state.");
    let _ = gauge
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
    let gauge = meter
        .u64_observable_gauge("leasehold_unreadable_namespaces")
        .with_description("1 for each served namespace that the coordinator may not read.");
    let _ = gauge
        .with_callback(move |observer| {
            for namespace in view.unreadable() {
                observer.observe(1, &[KeyValue::new("namespace", namespace)]);
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
