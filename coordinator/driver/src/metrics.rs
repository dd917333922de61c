//! Counters and gauges of OpenTelemetry, and histograms of Prometheus; the program exports them.
//! The number of series does not grow with workers, jobs or streams.

mod durations;
mod exposition;
mod histogram;
mod instruments;
mod observations;
mod pipelines;
mod reviews;
mod table;
mod turn_counts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::effect::{Freed, Notice};
use leasehold_coordinator_core::event::Event;
use leasehold_coordinator_core::view::{ClassView, ClusterView, Leadership};
use leasehold_types::limits::CLUSTERS_MAX;
use leasehold_types::message::RefusalReason;
use leasehold_types::{Epoch, Moment};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Meter};

use self::durations::{Durations, Measured};
pub use self::exposition::{Exposition, ExpositionFormat};
use self::histogram::Histogram;
pub use self::histogram::SampledSpan;
use self::instruments::{counter, gauge};
use self::observations::Observations;
use self::pipelines::PipelineTransition;
pub use self::reviews::{EvictionResult, InjectionResult, TokenCheck, ValidationResult};
pub use self::table::{METRICS, WORKERS};
pub use self::turn_counts::TurnCounts;
use crate::access::{Caller, Denied};
use crate::order::OrderKind;
use crate::view::PublishedView;

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
    durations: Mutex<Durations>,
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
    token_checks: Counter<u64>,
    orders: Counter<u64>,
    stalls: Counter<u64>,
    statuses_failed: Counter<u64>,
    injections: Counter<u64>,
    validations: Counter<u64>,
    evictions: Counter<u64>,
    settle: Histogram,
    turn: Histogram,
    turn_max: Gauge<f64>,
    turn_max_ns: AtomicU64,
    breaks: Counter<u64>,
    heals: Counter<u64>,
    heal_time: Histogram,
    push: Histogram,
    handover: Histogram,
    drain: Histogram,
    failover: Histogram,
}

impl Metrics {
    /// Metrics of one replica, all at zero. The histograms are in `exposition`, and `meter` has
    /// them only if `is_pushed` says that metrics are pushed to a collector.
    #[must_use]
    pub fn new(meter: Meter, exposition: &mut Exposition, is_pushed: bool) -> Self {
        let observations = Arc::default();
        observations::register(&meter, &observations);
        let pushed = is_pushed.then_some(&meter);
        let mut histogram = |metric| Histogram::new(exposition, pushed, metric);
        let metrics = Self {
            grants: counter(&meter, &table::GRANTS),
            revokes: counter(&meter, &table::REVOKES),
            freed: counter(&meter, &table::FREED),
            elections: counter(&meter, &table::ELECTIONS),
            depositions: counter(&meter, &table::DEPOSITIONS),
            renewals: counter(&meter, &table::RENEWALS),
            protocol_violations: counter(&meter, &table::PROTOCOL_VIOLATIONS),
            epochs_ahead: counter(&meter, &table::EPOCHS_AHEAD),
            losses: counter(&meter, &table::LOSSES),
            received: counter(&meter, &table::MESSAGES_RECEIVED),
            sent: counter(&meter, &table::MESSAGES_SENT),
            refusals: counter(&meter, &table::REFUSALS),
            denials: counter(&meter, &table::DENIALS),
            token_checks: counter(&meter, &table::TOKEN_CHECKS),
            orders: counter(&meter, &table::ORDERS),
            stalls: counter(&meter, &table::SESSION_STALLS),
            statuses_failed: counter(&meter, &table::STATUS_WRITE_FAILURES),
            injections: counter(&meter, &table::INJECTIONS),
            validations: counter(&meter, &table::VALIDATIONS),
            evictions: counter(&meter, &table::EVICTIONS),
            breaks: counter(&meter, &table::PIPELINE_BREAKS),
            heals: counter(&meter, &table::PIPELINE_HEALS),
            settle: histogram(&table::SETTLE_DURATION),
            turn: histogram(&table::TURN_DURATION),
            heal_time: histogram(&table::PIPELINE_HEAL_DURATION),
            push: histogram(&table::PUSH_DURATION),
            handover: histogram(&table::HANDOVER_DURATION),
            drain: histogram(&table::DRAIN_DURATION),
            failover: histogram(&table::FAILOVER_DURATION),
            turn_max: gauge(&meter, &table::TURN_DURATION_MAX),
            turn_max_ns: AtomicU64::new(0),
            durations: Mutex::default(),
            meter,
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
        for check in TokenCheck::ALL {
            self.token_checks.add(0, &label("by", check.text()));
        }
        for kind in OrderKind::ALL {
            for by in ["operator", "person"] {
                self.orders.add(0, &order_labels(kind, by));
            }
        }
    }

    /// Counts an event for the core.
    pub fn count_event(&self, event: &Event, now: Moment) {
        self.durations().record_event(event, now);
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

    /// Counts a notice of the core. Those about leases are counted by [`Metrics::count_turn`].
    pub fn count_notice(&self, notice: &Notice, now: Moment) {
        let measured = self.durations().update(notice, now);
        match measured {
            Some(Measured::Handover(took)) => self.handover.record(took, None),
            Some(Measured::Drain(took)) => self.drain.record(took, None),
            Some(Measured::Failover(took)) => self.failover.record(took, None),
            None => {}
        }
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
            | Notice::PoolGranted { .. }
            | Notice::StreamGranted { .. }
            | Notice::StreamRevoked { .. }
            | Notice::StreamFreed { .. }
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
                self.heal_time.record(after, None);
            }
            None => {}
        }
    }

    /// Counts what a turn has granted, freed and sent.
    pub fn count_turn(&self, counts: &TurnCounts) {
        let add = |counter: &Counter<u64>, count, labels: &[KeyValue]| {
            if count > 0 {
                counter.add(count, labels);
            }
        };
        add(&self.grants, counts.pools_granted, &label("kind", "pool"));
        add(&self.grants, counts.streams_granted, &label("kind", "stream"));
        add(&self.revokes, counts.revoked, &[]);
        add(&self.freed, counts.released, &label("how", Freed::Released.label()));
        add(&self.freed, counts.expired, &label("how", Freed::Expired.label()));
        add(&self.freed, counts.gone, &label("how", Freed::Gone.label()));
        add(&self.sent, counts.welcomes, &label("kind", "welcome"));
        add(&self.sent, counts.refusals, &label("kind", "refusal"));
        add(&self.sent, counts.grants, &label("kind", "grant"));
    }

    /// Counts a refusal.
    pub fn refused(&self, why: &RefusalReason) {
        self.refusals.add(1, &label("reason", reason(why)));
    }

    /// Counts a call that was denied.
    pub fn denied(&self, why: &Denied) {
        self.denials.add(1, &label("reason", why.reason()));
    }

    /// Counts a check of an agent's token.
    pub fn token_checked(&self, how: TokenCheck) {
        self.token_checks.add(1, &label("by", how.text()));
    }

    /// Counts an order.
    pub fn ordered(&self, kind: OrderKind, by: &Caller) {
        let by = if *by == Caller::Operator { "operator" } else { "person" };
        self.orders.add(1, &order_labels(kind, by));
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

    /// Records the duration of a turn, and the span of what it settled.
    pub fn record_turn(&self, took: Duration, settle: Option<SampledSpan>) {
        self.turn.record(took, settle);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if self.turn_max_ns.fetch_max(ns, Ordering::Relaxed) < ns {
            self.turn_max.record(took.as_secs_f64(), &[]);
        }
    }

    /// Records the duration of a turn's planning and granting, and the span of these.
    pub fn record_settle(&self, took: Duration, settle: Option<SampledSpan>) {
        self.settle.record(took, settle);
    }

    /// Records how long a grant took until its agent said that it is applied, and the span of that.
    pub fn record_push(&self, took: Duration, push: Option<SampledSpan>) {
        self.push.record(took, push);
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

    /// Counts an agent that follows who leads.
    pub fn leader_watch_began(&self) {
        self.set(|observations| observations.leader_watches += 1);
    }

    /// An agent no longer follows who leads.
    pub fn leader_watch_ended(&self) {
        self.set(|observations| observations.leader_watches -= 1);
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

    fn durations(&self) -> MutexGuard<'_, Durations> {
        self.durations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut Observations)) {
        change(&mut self.observations.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn order_labels(kind: OrderKind, by: &'static str) -> [KeyValue; 2] {
    let order = match kind {
        OrderKind::Drain => "drain",
        OrderKind::Undrain => "undrain",
        OrderKind::DeclareGone => "declare_gone",
    };
    [KeyValue::new("order", order), KeyValue::new("by", by)]
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
