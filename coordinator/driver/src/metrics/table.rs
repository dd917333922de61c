//! Every metric of a coordinator. The instruments are created from these, and `docs/METRICS.md` is
//! written from [`METRICS`].

use leasehold_types::metric::Metric;

/// Upper bounds of the buckets for work within the process, in seconds.
const TURN_SECONDS: &[f64] = &[1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0];

/// Upper bounds of the buckets for what crosses the network once or twice, in seconds.
const PUSH_SECONDS: &[f64] =
    &[1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0];

/// Upper bounds of the buckets for what workers take part in, in seconds: jobs take hours.
const WORK_SECONDS: &[f64] =
    &[1e-2, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4.0 * 3600.0, 24.0 * 3600.0];

pub(super) const LEADER: Metric =
    Metric::gauge("leasehold_leader", "1", "1 where this replica leads.");
pub(super) const EPOCH: Metric =
    Metric::gauge("leasehold_epoch", "1", "The term that this replica leads, or 0.");
pub(super) const SESSIONS: Metric =
    Metric::gauge("leasehold_sessions", "{agent}", "Agents connected to this replica.");
pub(super) const SESSIONS_MAX: Metric = Metric::gauge(
    "leasehold_sessions_max",
    "{agent}",
    "Agents that may be connected to this replica: --sessions-max, or fewer where the limit of \
     open files is too low.",
);
pub(super) const LEADER_WATCHES: Metric = Metric::gauge(
    "leasehold_leader_watches",
    "{agent}",
    "Agents that follow at this replica who leads, so that they leave a leader that hangs as soon \
     as there is another.",
);
pub(super) const CERTIFICATE_EXPIRY: Metric = Metric::gauge(
    "leasehold_certificate_expiry_timestamp_seconds",
    "s",
    "When the certificate that the gRPC port serves ends (Unix time). Absent without TLS.",
);
pub(super) const WATCHES: Metric = Metric::gauge(
    "leasehold_watches",
    "{watch}",
    "Open watches of the admin API: of changes, of the fleet. Each open page has one of each kind; \
     at most 64 of a kind are open.",
)
.by(&["kind"]);
pub(super) const MANIFEST_PROBLEMS: Metric = Metric::gauge(
    "leasehold_manifest_problems",
    "{problem}",
    "Problems of the manifests. The last valid ones are in force.",
);
pub(super) const DESIRED_STATE_AGE: Metric = Metric::gauge(
    "leasehold_desired_state_age_seconds",
    "s",
    "Time since the platform last confirmed the desired state. Manifests that were edited since \
     have no effect yet; /readyz says why after 15 s.",
);
pub(super) const UNREADABLE_NAMESPACES: Metric = Metric::gauge(
    "leasehold_unreadable_namespaces",
    "1",
    "1 for each served namespace whose objects the coordinator may not read. There is no series \
     otherwise.",
)
.by(&["served_namespace"]);

pub(super) const JOBS_MAX: Metric =
    Metric::gauge("leasehold_jobs_max", "{job}", "The cluster's budget.").by(&["cluster"]);
pub(super) const SLOTS_COMMITTED: Metric = Metric::gauge(
    "leasehold_slots_committed",
    "{slot}",
    "Upper bound of the slots that the cluster's workers use.",
)
.by(&["cluster"]);
pub(super) const SLOTS_GRANTED: Metric =
    Metric::gauge("leasehold_slots_granted", "{slot}", "Slots granted to workers that take jobs.")
        .by(&["cluster"]);
pub(super) const JOBS_RUNNING: Metric =
    Metric::gauge("leasehold_jobs_running", "{job}", "Jobs that run, as reported.")
        .by(&["cluster"]);
pub(super) const STREAMS: Metric =
    Metric::gauge("leasehold_streams", "{stream}", "Streams of the sets that run on the cluster.")
        .by(&["cluster"]);
pub(super) const STREAMS_OWNED: Metric =
    Metric::gauge("leasehold_streams_owned", "{stream}", "Streams of them that a worker owns.")
        .by(&["cluster"]);
/// The metric with the most series: several for each cluster.
pub const WORKERS: Metric = Metric::gauge(
    "leasehold_workers",
    "{worker}",
    "Workers that are connected, silent, lost or unreported.",
)
.by(&["cluster", "presence"]);
pub(super) const WORKERS_DRAINING: Metric =
    Metric::gauge("leasehold_workers_draining", "{worker}", "Workers that drain.").by(&["cluster"]);
pub(super) const WORKERS_FAILING: Metric = Metric::gauge(
    "leasehold_workers_failing",
    "{worker}",
    "Workers that are connected, but fail. Their agents say why.",
)
.by(&["cluster"]);
pub(super) const CLUSTER_HELD: Metric = Metric::gauge(
    "leasehold_cluster_held",
    "1",
    "1 where a new leader does not plan the cluster yet.",
)
.by(&["cluster"]);

/// The labels of a class. They are not `class` and `namespace`: Prometheus has its own `namespace`.
const CLASS: &[&str] = &["workerclass_name", "workerclass_namespace"];
pub(super) const CLASS_REQUEST: Metric = Metric::gauge(
    "workerclass_request",
    "{document}/s",
    "Documents per second that the class must process, of Pending pipelines too. Of every replica; \
     absent where it may be out of date.",
)
.by(CLASS);
pub(super) const CLASS_WORKERS_NEEDED_BY_ALL: Metric = Metric::gauge(
    "workerclass_workers_needed",
    "{worker}",
    "The fewest workers that all pipelines of the class fit on, and at the leader more where its \
     shares lie otherwise: what is there and cannot be spared, or what somebody waits for beside \
     it. Of every replica; absent where it may be out of date. Take the largest.",
)
.by(CLASS);
pub(super) const CLASS_CAPACITY: Metric = Metric::gauge(
    "leasehold_class_capacity",
    "{document}/s",
    "Documents per second that the workers of the class can take. The leader's.",
)
.by(CLASS);
pub(super) const CLASS_PLACED: Metric = Metric::gauge(
    "leasehold_class_placed",
    "{document}/s",
    "Documents per second that workers of the class are chosen for. The leader's.",
)
.by(CLASS);
pub(super) const CLASS_WORKERS: Metric = Metric::gauge(
    "leasehold_class_workers",
    "{worker}",
    "Workers that can take shares now. The leader's.",
)
.by(CLASS);
pub(super) const CLASS_WORKERS_NEEDED: Metric = Metric::gauge(
    "leasehold_class_workers_needed",
    "{worker}",
    "The fewest workers that the pipelines of the class fit on. The leader's.",
)
.by(CLASS);
pub(super) const CLASS_WORKERS_WANTED: Metric = Metric::gauge(
    "leasehold_class_workers_wanted",
    "{worker}",
    "Workers that the target utilisation and the packing ask for, between the least and the most. \
     The leader's.",
)
.by(CLASS);
pub(super) const CLASS_PIPELINES_WAITING: Metric = Metric::gauge(
    "leasehold_class_pipelines_waiting",
    "{pipeline}",
    "Pipelines that wait for workers of the class. The leader's.",
)
.by(CLASS);
pub(super) const PIPELINES: Metric = Metric::gauge(
    "leasehold_pipelines",
    "{pipeline}",
    "Pipelines that are pending, plotted, ready, broken. The leader's.",
)
.by(&["phase"]);
pub(super) const PIPELINE_BREAKS: Metric = Metric::counter(
    "leasehold_pipeline_breaks_total",
    "{pipeline}",
    "Pipelines that became Broken.",
);
pub(super) const PIPELINE_HEALS: Metric = Metric::counter(
    "leasehold_pipeline_heals_total",
    "{pipeline}",
    "Broken pipelines that became Ready again under the same leader.",
);
pub(super) const PIPELINE_HEAL_DURATION: Metric = Metric::seconds(
    "leasehold_pipeline_heal_duration_seconds",
    PUSH_SECONDS,
    "Time from Broken to Ready.",
);

pub(super) const GRANTS: Metric =
    Metric::counter("leasehold_grants_total", "{lease}", "Leases granted: pool, stream.")
        .by(&["kind"]);
pub(super) const REVOKES: Metric =
    Metric::counter("leasehold_revokes_total", "{stream}", "Streams revoked.");
pub(super) const FREED: Metric = Metric::counter(
    "leasehold_freed_total",
    "{stream}",
    "Stream leases that ended, by how it is known: released, expired, gone.",
)
.by(&["how"]);
pub(super) const PUSH_DURATION: Metric = Metric::seconds(
    "leasehold_push_duration_seconds",
    PUSH_SECONDS,
    "Time from the decision to give an agent new leases, or to revoke some, until the agent has \
     applied it, plus the time that the agent's beat takes to arrive. One grant of an agent is \
     measured at a time, by the newest one that the beat acknowledges.",
);
pub(super) const HANDOVER_DURATION: Metric = Metric::seconds(
    "leasehold_handover_duration_seconds",
    WORK_SECONDS,
    "Time from the revoke of a stream until its next grant, under one leader.",
);
pub(super) const DRAIN_DURATION: Metric = Metric::seconds(
    "leasehold_drain_duration_seconds",
    WORK_SECONDS,
    "Time from when a worker began to drain until it was gone, under one leader and one session.",
);
pub(super) const LOSSES: Metric = Metric::counter(
    "leasehold_losses_total",
    "{worker}",
    "Workers silent for longer than their leases last.",
);

pub(super) const ELECTIONS: Metric =
    Metric::counter("leasehold_elections_total", "{term}", "Terms of this replica that began.");
pub(super) const DEPOSITIONS: Metric =
    Metric::counter("leasehold_depositions_total", "{term}", "Terms of this replica that ended.");
pub(super) const RENEWALS: Metric = Metric::counter(
    "leasehold_renewals_total",
    "{renewal}",
    "Renewals of leadership that succeeded.",
);
pub(super) const FAILOVER_DURATION: Metric = Metric::seconds(
    "leasehold_failover_duration_seconds",
    PUSH_SECONDS,
    "Time from the election of this replica until it planned a cluster: everybody who may hold a \
     lease has reported. One value for each cluster that was there at the election.",
);
pub(super) const EPOCHS_AHEAD: Metric = Metric::counter(
    "leasehold_epochs_ahead_total",
    "{report}",
    "Agents that report a later epoch than the leader's, although the term store still has the \
     leader's: the store has lost its history, or the agent's journal is wrong; each is counted \
     once a minute. Also each term that is given up because another leader had had its number.",
);

pub(super) const MESSAGES_RECEIVED: Metric = Metric::counter(
    "leasehold_messages_received_total",
    "{message}",
    "Messages from agents: hello, report, beat.",
)
.by(&["kind"]);
pub(super) const MESSAGES_SENT: Metric = Metric::counter(
    "leasehold_messages_sent_total",
    "{message}",
    "Messages to agents: welcome, refusal, grant.",
)
.by(&["kind"]);
pub(super) const REFUSALS: Metric = Metric::counter(
    "leasehold_refusals_total",
    "{session}",
    "Sessions refused or ended, among them agents that a standby sends to the leader (not_leader), \
     and those that have left (left).",
)
.by(&["reason"]);
pub(super) const PROTOCOL_VIOLATIONS: Metric = Metric::counter(
    "leasehold_protocol_violations_total",
    "{agent}",
    "Agents that broke the protocol's rules.",
);
pub(super) const SESSION_STALLS: Metric = Metric::counter(
    "leasehold_session_stalls_total",
    "{wait}",
    "Times that a session had to wait: its agent sent faster than it may, or than the driver \
     takes.",
);
pub(super) const DENIALS: Metric = Metric::counter(
    "leasehold_denials_total",
    "{call}",
    "Calls of people, autoscalers and replicas that were denied: unauthenticated (no valid token \
     or certificate), forbidden, unavailable (it could not be decided). The log has at most one \
     line a minute about an address.",
)
.by(&["reason"]);
pub(super) const TOKEN_CHECKS: Metric = Metric::counter(
    "leasehold_token_checks_total",
    "{token}",
    "Tokens of agents on Kubernetes, by how they are checked: cache (an earlier review), keys (the \
     API server's, without a call), review (left to a review by the API server).",
)
.by(&["by"]);
pub(super) const ORDERS: Metric = Metric::counter(
    "leasehold_orders_total",
    "{order}",
    "Drains ordered and taken back, and workers declared gone (drain, undrain, declare_gone), by a \
     person or the operator. The log and WatchChanges say by whom.",
)
.by(&["order", "by"]);

pub(super) const STATUS_WRITE_FAILURES: Metric = Metric::counter(
    "leasehold_status_write_failures_total",
    "{write}",
    "Statuses of Kubernetes objects that could not be written. They are tried again.",
);
pub(super) const INJECTIONS: Metric = Metric::counter(
    "leasehold_injections_total",
    "{pod}",
    "Pods that this replica was asked about: injected, unchanged (it has its agent, or wants \
     none), refused, unready. Without --webhook-client-ca the log has at most 60 lines a minute \
     about reviews from one address.",
)
.by(&["result"]);
pub(super) const VALIDATIONS: Metric = Metric::counter(
    "leasehold_validations_total",
    "{object}",
    "Classes and pipelines that this replica was asked about: allowed, warned, refused, unready.",
)
.by(&["result"]);
pub(super) const EVICTIONS: Metric = Metric::counter(
    "leasehold_evictions_total",
    "{eviction}",
    "Evictions of pods that this replica was asked about: allowed, refused (the pod runs jobs), \
     unready.",
)
.by(&["result"]);
pub(super) const AGENTS_MISSING: Metric = Metric::gauge(
    "leasehold_agents_missing",
    "{pod}",
    "Pods that asked for an agent and have none, as the leader sees them.",
);
pub(super) const AGENTS_OUTDATED: Metric = Metric::gauge(
    "leasehold_agents_outdated",
    "{pod}",
    "Pods with another agent than they would get now, as the leader sees them.",
);

pub(super) const SETTLE_DURATION: Metric = Metric::seconds(
    "leasehold_settle_duration_seconds",
    TURN_SECONDS,
    "Time that a turn's planning and granting took.",
);
pub(super) const TURN_DURATION: Metric = Metric::seconds(
    "leasehold_turn_duration_seconds",
    TURN_SECONDS,
    "Time that one whole turn of the driver took. One above 50 ms is logged as a warning.",
);
pub(super) const TURN_DURATION_MAX: Metric = Metric::gauge(
    "leasehold_turn_duration_max_seconds",
    "s",
    "The longest turn since the process began.",
);

/// All of them, in the order of the document.
pub const METRICS: &[&Metric] = &[
    &LEADER,
    &EPOCH,
    &ELECTIONS,
    &DEPOSITIONS,
    &RENEWALS,
    &FAILOVER_DURATION,
    &EPOCHS_AHEAD,
    &SESSIONS,
    &SESSIONS_MAX,
    &LEADER_WATCHES,
    &CERTIFICATE_EXPIRY,
    &WATCHES,
    &MANIFEST_PROBLEMS,
    &DESIRED_STATE_AGE,
    &UNREADABLE_NAMESPACES,
    &JOBS_MAX,
    &SLOTS_COMMITTED,
    &SLOTS_GRANTED,
    &JOBS_RUNNING,
    &STREAMS,
    &STREAMS_OWNED,
    &WORKERS,
    &WORKERS_DRAINING,
    &WORKERS_FAILING,
    &CLUSTER_HELD,
    &GRANTS,
    &REVOKES,
    &FREED,
    &PUSH_DURATION,
    &HANDOVER_DURATION,
    &DRAIN_DURATION,
    &LOSSES,
    &CLASS_REQUEST,
    &CLASS_WORKERS_NEEDED_BY_ALL,
    &CLASS_CAPACITY,
    &CLASS_PLACED,
    &CLASS_WORKERS,
    &CLASS_WORKERS_NEEDED,
    &CLASS_WORKERS_WANTED,
    &CLASS_PIPELINES_WAITING,
    &PIPELINES,
    &PIPELINE_BREAKS,
    &PIPELINE_HEALS,
    &PIPELINE_HEAL_DURATION,
    &MESSAGES_RECEIVED,
    &MESSAGES_SENT,
    &REFUSALS,
    &PROTOCOL_VIOLATIONS,
    &SESSION_STALLS,
    &DENIALS,
    &TOKEN_CHECKS,
    &ORDERS,
    &STATUS_WRITE_FAILURES,
    &INJECTIONS,
    &VALIDATIONS,
    &EVICTIONS,
    &AGENTS_MISSING,
    &AGENTS_OUTDATED,
    &SETTLE_DURATION,
    &TURN_DURATION,
    &TURN_DURATION_MAX,
];
