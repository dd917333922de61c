//! Every metric of an agent. `docs/METRICS.md` is written from [`METRICS`].

use leasehold_types::metric::Metric;

pub(super) const CONNECTED: Metric =
    Metric::gauge("leasehold_agent_connected", "1", "1 while a leading coordinator answers.");
pub(super) const EPOCH: Metric = Metric::gauge(
    "leasehold_agent_epoch",
    "1",
    "The highest term of a coordinator that has welcomed the agent.",
);
pub(super) const POOL_SIZE: Metric =
    Metric::gauge("leasehold_agent_pool_size", "{job}", "Jobs that may run at once.");
pub(super) const RUNNING: Metric =
    Metric::gauge("leasehold_agent_running", "{job}", "Jobs that run.");
pub(super) const STREAMS: Metric =
    Metric::gauge("leasehold_agent_streams", "{stream}", "Stream leases that the agent holds.");
pub(super) const BINDINGS: Metric = Metric::gauge(
    "leasehold_agent_bindings",
    "{share}",
    "Shares of pipelines that the agent holds.",
);
pub(super) const DRAINING: Metric =
    Metric::gauge("leasehold_agent_draining", "1", "1 while the worker drains.");
pub(super) const RECONNECTS: Metric =
    Metric::counter("leasehold_agent_reconnects_total", "{dial}", "Dials after the first.");
pub(super) const BEGIN_REFUSED: Metric = Metric::counter(
    "leasehold_agent_begin_refused_total",
    "{job}",
    "Jobs that were not let begin.",
)
.by(&["reason"]);
pub(super) const JOURNAL_OK: Metric =
    Metric::gauge("leasehold_agent_journal_ok", "1", "0 while the agent cannot write its journal.");
pub(super) const FILE_OK: Metric = Metric::gauge(
    "leasehold_agent_file_ok",
    "1",
    "0 while the worker's file is out of date, or the worker does not know of its change.",
);
pub(super) const FILE_FAILURES: Metric = Metric::counter(
    "leasehold_agent_file_failures_total",
    "{write}",
    "Failed writes of the worker's file.",
);
pub(super) const PROCESSES: Metric = Metric::gauge(
    "leasehold_agent_processes",
    "{stream}",
    "Streams whose program runs, with the adapter process.",
);
pub(super) const PROCESSES_MISSING: Metric = Metric::gauge(
    "leasehold_agent_processes_missing",
    "{stream}",
    "Streams that wait for their program to start.",
);
pub(super) const PROCESS_EXITS: Metric = Metric::counter(
    "leasehold_agent_process_exits_total",
    "{program}",
    "Programs that ended by themselves.",
);
pub(super) const PROCESS_KILLS: Metric = Metric::counter(
    "leasehold_agent_process_kills_total",
    "{program}",
    "Programs that the agent ended by SIGKILL.",
);
pub(super) const WORKER_OK: Metric = Metric::gauge(
    "leasehold_agent_worker_ok",
    "1",
    "0 while the agent cannot reach a worker that it polls, or the worker fails.",
);
pub(super) const WORKER_FAILURES: Metric = Metric::counter(
    "leasehold_agent_worker_failures_total",
    "{call}",
    "Failed calls of a worker that the agent polls.",
);
pub(super) const BUILD_INFO: Metric =
    Metric::gauge("leasehold_agent_build_info", "1", "1, with the version that runs.")
        .by(&["version"]);

/// All of them, in the order of the document.
pub const METRICS: &[&Metric] = &[
    &CONNECTED,
    &EPOCH,
    &POOL_SIZE,
    &RUNNING,
    &STREAMS,
    &BINDINGS,
    &DRAINING,
    &RECONNECTS,
    &BEGIN_REFUSED,
    &JOURNAL_OK,
    &FILE_OK,
    &FILE_FAILURES,
    &PROCESSES,
    &PROCESSES_MISSING,
    &PROCESS_EXITS,
    &PROCESS_KILLS,
    &WORKER_OK,
    &WORKER_FAILURES,
    &BUILD_INFO,
];
