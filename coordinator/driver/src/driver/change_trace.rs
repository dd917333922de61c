//! Traces a change of the desired state on its way: the turns that settle it, and each grant until
//! its agent has applied it, are spans of one trace.

use std::time::Duration;

use leasehold_coordinator_core::event::ConnId;
use leasehold_types::message::Grant;
use leasehold_types::{Moment, WorkerKey};
use opentelemetry::Context;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// How long after a change turns and grants belong to its trace: plans may take several turns, and
/// wait for what workers give back.
const TRACED: Duration = Duration::from_secs(10);

/// The trace of the newest change, while it is followed.
#[derive(Debug, Default)]
pub(super) struct ChangeTrace {
    change: Option<(Context, Moment)>,
    /// The turn that goes on, or the last one.
    turn: Option<Context>,
}

impl ChangeTrace {
    /// A change is about to be taken: the span of that begins a new trace.
    pub(super) fn begin(&mut self, now: Moment) -> Span {
        let span = tracing::debug_span!(parent: None, "change");
        self.change = Some((span.context(), now));
        span
    }

    /// The span of a turn that settles what so many events have changed.
    pub(super) fn settle(&mut self, events: usize, now: Moment) -> Span {
        let span = tracing::debug_span!(parent: None, "settle", events);
        self.change = self.change.take().filter(|(_, begun)| now.since(*begun) < TRACED);
        self.turn = self.change.as_ref().map(|(change, _)| {
            // It fails only where nobody collects spans.
            let _ = span.set_parent(change.clone());
            span.context()
        });
        span
    }

    /// The span of a grant that is sent now: it ends when it is dropped. None if it follows from no
    /// change.
    pub(super) fn push(&self, conn: ConnId, worker: Option<&WorkerKey>, grant: &Grant) -> Span {
        let Some(turn) = &self.turn else { return Span::none() };
        let span = tracing::debug_span!(
            parent: None, "push", conn = number(conn.0), cluster = Empty, worker = Empty,
            epoch = number(grant.epoch.0), grant = number(grant.number.0),
            streams = number(grant.streams.len() as u64), pool = Empty, applied = Empty
        );
        let _ = span.set_parent(turn.clone());
        if let Some(WorkerKey { cluster, worker }) = worker {
            span.record("cluster", cluster.as_str()).record("worker", worker.as_str());
        }
        if let Some(pool) = &grant.pool {
            span.record("pool", i64::from(pool.size));
        }
        span
    }
}

/// A number as spans have it: unsigned ones would be sent as texts.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
