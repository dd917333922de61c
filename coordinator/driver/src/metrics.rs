//! OpenTelemetry metrics; the program exports them. The number of series does not grow with
//! workers, jobs or streams.

mod observations;
mod pipelines;
mod reviews;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::event::Event;
use leasehold_coordinator_core::view::{ClassView, ClusterView, Leadership};
use leasehold_types::limits::CLUSTERS_MAX;
use leasehold_types::message::{CoordinatorMessage, RefusalReason};
use leasehold_types::{Epoch, Moment};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};

use self::observations::Observations;
pub use self::observations::WORKERS;
use self::pipelines::PipelineTransition;
pub use self::reviews::{EvictionResult, InjectionResult, ValidationResult};
use crate::access::{Caller, Denied};
use crate::order::OrderKind;
use crate::view::PublishedView;

/// Upper bounds of the settle histogram's buckets, in seconds.
const SETTLE_SECONDS: [f64; 10] = [1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0];

/// Upper bounds of the buckets of the time from Broken to Ready, in seconds.
const HEAL_SECONDS: [f64; 15] =
    [1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0];

/// The series of [`WORKERS`], the metric with the most: one for each cluster and presence of its
/// workers, and one for the overflow.
pub const SERIES_MAX: usize = 4 * CLUSTERS_MAX + 1;

/// A snapshot of a core's clusters, classes and pipelines.
#[derive(Debug, Default)]
pub struct FleetSnapshot {
    clusters: Vec<ClusterView>,
    /// Empty if this replica does not lead.
    classes: Vec<ClassView>,
    /// The number of pipelines, if this replica leads.
    pipelines: Option<usize>,
}

impl FleetSnapshot {
    /// A snapshot of this core.
    pub fn of(core: &Core, now: Moment) -> Self {
        let clusters = core.clusters(now);
        match core.leadership() {
            Leadership::Standby(_) => Self { clusters, ..Self::default() },
            Leadership::Leader(_) => {
                let pipelines = Some(core.pipelines_len());
                Self { clusters, classes: core.classes(now), pipelines }
            }
        }
    }
}

/// One replica's metrics.
#[derive(Debug)]
pub struct Metrics {
    meter: Meter,
    observations: Arc<Mutex<Observations>>,
    is_pushed: bool,
    grants: Counter<u64>,
    revokes: Counter<u64>,
    freed: Counter<u64>,
    elections: Counter<u64>,
    depositions: Counter<u64>,
    renewals: Counter<u64>,
    protocol_violations: Counter<u64>,
    epochs_ahead: Counter<u64>,
    losses: Counter<u64>,
    received: Counter<u64>,
    sent: Counter<u64>,
    refusals: Counter<u64>,
    denials: Counter<u64>,
    orders: Counter<u64>,
    stalls: Counter<u64>,
    statuses_failed: Counter<u64>,
    injections: Counter<u64>,
    validations: Counter<u64>,
    evictions: Counter<u64>,
    settle: Histogram<f64>,
    turn: Histogram<f64>,
    turn_max: Gauge<f64>,
    turn_max_ns: AtomicU64,
    breaks: Counter<u64>,
    heals: Counter<u64>,
    heal_time: Histogram<f64>,
}

impl Metrics {
    /// Metrics of one replica, all at zero. `is_pushed` says that they are pushed to a collector.
    #[must_use]
    pub fn new(meter: Meter, is_pushed: bool) -> Self {
        let observations = Arc::default();
        observations::register(&meter, &observations);
        let counter = |name: &'static str, help: &'static str| count(&meter, name, help);
        let metrics = Self {
            grants: counter("leasehold_grants", "Leases granted, by kind."),
            revokes: counter("leasehold_revokes", "Streams revoked."),
            freed: counter("leasehold_freed", "Stream leases that ended, by how it is known."),
            elections: counter("leasehold_elections", "Elections that this replica won."),
            depositions: counter("leasehold_depositions", "Terms of this replica that ended."),
            renewals: counter("leasehold_renewals", "Renewals of leadership that succeeded."),
            protocol_violations: counter(
                "leasehold_protocol_violations",
                "Agents that broke the protocol's rules.",
            ),
            epochs_ahead: counter(
                "leasehold_epochs_ahead",
                "Agents that remember a later epoch than the leader's, or another term of it.",
            ),
            losses: counter("leasehold_losses", "Workers silent for longer than their leases."),
            received: counter("leasehold_messages_received", "Messages from agents, by kind."),
            sent: counter("leasehold_messages_sent", "Messages to agents, by kind."),
            refusals: counter("leasehold_refusals", "Sessions refused or ended, by reason."),
            denials: counter(
                "leasehold_denials",
                "Calls of people, autoscalers and replicas that were denied, by reason.",
            ),
            orders: counter("leasehold_orders", "Orders about workers, by what and by whom."),
            stalls: counter("leasehold_session_stalls", "Times that a session had to wait."),
            statuses_failed: counter(
                "leasehold_status_write_failures",
                "Statuses of Kubernetes objects that could not be written; they are tried again.",
            ),
            injections: counter(
                "leasehold_injections",
                "Pods that the webhook was asked about, by what came of it.",
            ),
            validations: counter(
                "leasehold_validations",
                "Classes and pipelines that the webhook was asked about, by what came of it.",
            ),
            evictions: counter(
                "leasehold_evictions",
                "Evictions that the webhook was asked about, by what came of it.",
            ),
            turn: meter
                .f64_histogram("leasehold_turn_duration_seconds")
                .with_description("Time that one turn of the driver took.")
                .with_boundaries(SETTLE_SECONDS.to_vec())
                .build(),
            turn_max: meter
                .f64_gauge("leasehold_turn_duration_max_seconds")
                .with_description("The longest turn of the driver since the process began.")
                .build(),
            turn_max_ns: AtomicU64::new(0),
            settle: meter
                .f64_histogram("leasehold_settle_duration_seconds")
                .with_description("Time that a turn's planning and granting took.")
                .with_boundaries(SETTLE_SECONDS.to_vec())
                .build(),
            breaks: counter("leasehold_pipeline_breaks", "Pipelines that became Broken."),
            heals: counter("leasehold_pipeline_heals", "Broken pipelines that became Ready."),
            heal_time: meter
                .f64_histogram("leasehold_pipeline_heal_duration_seconds")
                .with_description("Time from Broken to Ready.")
                .with_boundaries(HEAL_SECONDS.to_vec())
                .build(),
            meter: meter.clone(),
            observations,
            is_pushed,
        };
        metrics.start_at_zero();
        metrics
    }

    /// Exports from now on when the serving certificate ends (seconds of Unix time), if that is
    /// known.
    pub fn show_certificate(&self, expires_at: impl Fn() -> Option<u64> + Send + Sync + 'static) {
        observations::certificate(&self.meter, expires_at);
    }

    /// Exports from now on how many watches of the admin API are open, by kind.
    pub fn show_watches(
        &self,
        open: impl Fn() -> [(&'static str, usize); 2] + Send + Sync + 'static,
    ) {
        observations::watches(&self.meter, open);
    }

    /// Exports from now on the demands of classes, while this replica's view may be used, and the
    /// namespaces without one.
    pub fn show_view(&self, view: &Arc<PublishedView>) {
        observations::demands(&self.meter, view);
        observations::desired_state_age(&self.meter, view);
        observations::unreadable(&self.meter, view);
    }

    /// Creates the series at zero: an alert cannot use a series that does not exist yet.
    fn start_at_zero(&self) {
        for kind in ["pool", "stream"] {
            self.grants.add(0, &label("kind", kind));
        }
        for how in ["released", "expired", "gone"] {
            self.freed.add(0, &label("how", how));
        }
        for kind in ["hello", "report", "beat"] {
            self.received.add(0, &label("kind", kind));
        }
        for kind in InjectionResult::ALL {
            self.injections.add(0, &label("result", kind.text()));
        }
        for kind in ValidationResult::ALL {
            self.validations.add(0, &label("result", kind.text()));
        }
        for kind in EvictionResult::ALL {
            self.evictions.add(0, &label("result", kind.text()));
        }
        for kind in ["welcome", "refusal", "grant"] {
            self.sent.add(0, &label("kind", kind));
        }
        for counter in [
            &self.revokes,
            &self.elections,
            &self.depositions,
            &self.renewals,
            &self.protocol_violations,
            &self.epochs_ahead,
            &self.losses,
            &self.stalls,
            &self.statuses_failed,
            &self.breaks,
            &self.heals,
        ] {
            counter.add(0, &[]);
        }
        self.refusals.add(0, &label("reason", reason(&RefusalReason::Invalid)));
        for why in Denied::REASONS {
            self.denials.add(0, &label("reason", why));
        }
    }

    /// Counts an event for the core.
    pub fn count_event(&self, event: &Event) {
        match event {
            Event::Hello(..) => self.received.add(1, &label("kind", "hello")),
            Event::Report(..) => self.received.add(1, &label("kind", "report")),
            Event::Beat(..) => self.received.add(1, &label("kind", "beat")),
            Event::Renewed(_) => self.renewals.add(1, &[]),
            Event::Closed(_)
            | Event::Sent(_)
            | Event::Desired(_)
            | Event::Elected(_)
            | Event::Deposed { .. }
            | Event::TermStands { .. }
            | Event::NamespacesRead(_)
            | Event::Registered(_)
            | Event::Unregistered(_)
            | Event::Gone(_)
            | Event::Removed(_)
            | Event::Drain(_)
            | Event::Undrain(_)
            | Event::Avoid(_)
            | Event::Wake => {}
        }
    }

    /// Counts a notice of the core.
    pub fn count_notice(&self, notice: &Notice, now: Moment) {
        match notice {
            Notice::Elected(_) => {
                self.elections.add(1, &[]);
                self.count_transition(notice, now);
            }
            Notice::Deposed(_) => {
                self.depositions.add(1, &[]);
                self.count_transition(notice, now);
            }
            Notice::Pipeline { .. } => self.count_transition(notice, now),
            Notice::Lost(_) => self.losses.add(1, &[]),
            Notice::PoolGranted { .. } => self.grants.add(1, &label("kind", "pool")),
            Notice::StreamGranted { .. } => self.grants.add(1, &label("kind", "stream")),
            Notice::StreamRevoked { .. } => self.revokes.add(1, &[]),
            Notice::StreamFreed { how, .. } => {
                self.freed.add(1, &label("how", how.label()));
            }
            Notice::ProtocolViolation { .. } => self.protocol_violations.add(1, &[]),
            Notice::EpochAhead { .. } | Notice::EpochRepeated { .. } => {
                self.epochs_ahead.add(1, &[]);
            }
            Notice::HoldEnded(_)
            | Notice::Joined(_)
            | Notice::Disconnected(_)
            | Notice::DrainStarted(_)
            | Notice::Failing { .. }
            | Notice::Recovered(_)
            | Notice::NameRefused { .. }
            | Notice::GivenUp { .. }
            | Notice::Gone(_)
            | Notice::Binding { .. }
            | Notice::Endpoints { .. } => {}
        }
    }

    /// Tracks the states of pipelines, and counts breaks and heals.
    fn count_transition(&self, notice: &Notice, now: Moment) {
        let mut observations = self.observations.lock().unwrap_or_else(PoisonError::into_inner);
        match observations.tally.update(notice, now) {
            Some(PipelineTransition::Broken) => self.breaks.add(1, &[]),
            Some(PipelineTransition::Healed(after)) => {
                self.heals.add(1, &[]);
                self.heal_time.record(after.as_secs_f64(), &[]);
            }
            None => {}
        }
    }

    /// Counts a message to an agent.
    pub fn count_sent(&self, message: &CoordinatorMessage) {
        let kind = match message {
            CoordinatorMessage::Welcome(_) => "welcome",
            CoordinatorMessage::Refusal(refusal) => {
                self.refused(&refusal.reason);
                "refusal"
            }
            CoordinatorMessage::Grant(_) => "grant",
        };
        self.sent.add(1, &label("kind", kind));
    }

    /// Counts a refusal.
    pub fn refused(&self, why: &RefusalReason) {
        self.refusals.add(1, &label("reason", reason(why)));
    }

    /// Counts a call that was denied.
    pub fn denied(&self, why: &Denied) {
        self.denials.add(1, &label("reason", why.reason()));
    }

    /// Counts an order.
    pub fn ordered(&self, kind: OrderKind, by: &Caller) {
        let order = match kind {
            OrderKind::Drain => "drain",
            OrderKind::Undrain => "undrain",
            OrderKind::DeclareGone => "declare_gone",
        };
        let by = if *by == Caller::Operator { "operator" } else { "person" };
        self.orders.add(1, &[KeyValue::new("order", order), KeyValue::new("by", by)]);
    }

    /// Counts a session that had to wait.
    pub fn session_stalled(&self) {
        self.stalls.add(1, &[]);
    }

    /// Counts a status that could not be written.
    pub fn status_write_failed(&self) {
        self.statuses_failed.add(1, &[]);
    }

    /// Counts an answer about a pod.
    pub fn reviewed(&self, what: InjectionResult) {
        self.injections.add(1, &label("result", what.text()));
    }

    /// Counts an answer about a class or a pipeline.
    pub fn validated(&self, what: ValidationResult) {
        self.validations.add(1, &label("result", what.text()));
    }

    /// Counts an answer about an eviction.
    pub fn eviction_reviewed(&self, what: EvictionResult) {
        self.evictions.add(1, &label("result", what.text()));
    }

    /// Sets how many pods lack an agent that they asked for, and how many have an outdated one.
    pub fn set_agents(&self, missing: usize, outdated: usize) {
        self.set(|observations| {
            observations.agents_missing = missing;
            observations.agents_outdated = outdated;
        });
    }

    /// Records the duration of a turn.
    pub fn record_turn(&self, took: Duration) {
        self.turn.record(took.as_secs_f64(), &[]);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if self.turn_max_ns.fetch_max(ns, Ordering::Relaxed) < ns {
            self.turn_max.record(took.as_secs_f64(), &[]);
        }
    }

    /// Records the duration of a turn's planning and granting.
    pub fn record_settle(&self, took: Duration) {
        self.settle.record(took.as_secs_f64(), &[]);
    }

    /// Sets the term that this replica leads, if any.
    pub fn set_leadership(&self, epoch: Option<Epoch>) {
        self.set(|observations| observations.epoch = epoch);
    }

    /// Sets how many agents are connected.
    pub fn set_sessions(&self, sessions: usize) {
        self.set(|observations| observations.sessions = sessions);
    }

    /// Sets how many agents may be connected.
    pub fn set_sessions_max(&self, sessions_max: usize) {
        self.set(|observations| observations.sessions_max = sessions_max);
    }

    /// Sets how many problems the manifests have.
    pub fn set_problems(&self, problems: usize) {
        self.set(|observations| observations.problems = problems);
    }

    /// Sets the snapshot of clusters, classes and pipelines.
    pub fn set_fleet(&self, fleet: FleetSnapshot) {
        self.set(|observations| observations.fleet = fleet);
    }

    /// Whether metrics are pushed to a collector.
    pub fn is_pushed(&self) -> bool {
        self.is_pushed
    }

    /// The number of connected agents.
    pub fn sessions(&self) -> usize {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner).sessions
    }

    fn set(&self, change: impl FnOnce(&mut Observations)) {
        change(&mut self.observations.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn count(meter: &Meter, name: &'static str, help: &'static str) -> Counter<u64> {
    meter.u64_counter(name).with_description(help).build()
}

fn label(key: &'static str, value: &'static str) -> [KeyValue; 1] {
    [KeyValue::new(key, value)]
}

fn reason(reason: &RefusalReason) -> &'static str {
    match reason {
        RefusalReason::NotLeader(_) => "not_leader",
        RefusalReason::UnknownCluster => "unknown_cluster",
        RefusalReason::NewerIncarnation(_) => "newer_incarnation",
        RefusalReason::NewerLink => "newer_link",
        RefusalReason::Protocol => "protocol",
        RefusalReason::Limit => "limit",
        RefusalReason::Invalid => "invalid",
        RefusalReason::Unauthorized => "unauthorized",
        RefusalReason::GoAway => "go_away",
        RefusalReason::EpochAhead => "epoch_ahead",
        RefusalReason::NameTaken => "name_taken",
        RefusalReason::OtherCell => "other_cell",
        RefusalReason::Left => "left",
    }
}
