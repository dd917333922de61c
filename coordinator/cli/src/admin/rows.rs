//! The kinds of the admin API as rows of tables.

use std::time::Duration;

use leasehold_proto::admin::v1::{
    Class, Cluster, DrainPhase, Pipeline, PipelinePhase, Presence, Stream, StreamSet, Worker,
};
use leasehold_types::duration::format_short;

use super::output::{Column, NONE, TableRow, number, or_none, text, wide_number, wide_text};
use super::tint::Tint;
use super::words;

impl TableRow for Cluster {
    const PLURAL: &'static str = "clusters";
    const COLUMNS: &'static [Column<Self>] = &[
        text("CLUSTER", |cluster| cluster.name.clone()),
        number("BUDGET", |cluster| budget(cluster, cluster.max_jobs)),
        number("RUNNING", |cluster| cluster.running.to_string()),
        number("GRANTED", |cluster| cluster.granted.to_string()),
        number("COMMITTED", |cluster| cluster.committed.to_string()),
        number("WORKERS", |cluster| cluster.workers.to_string()),
        number("CONNECTED", |cluster| cluster.connected.to_string()),
        number("DRAINING", |cluster| cluster.draining.to_string()),
        wide_number("FAILING", |cluster| cluster.failing.to_string()),
        number("LOST", |cluster| cluster.lost.to_string()),
        wide_number("UNREPORTED", |cluster| cluster.unreported.to_string()),
        number("STREAMS", |cluster| part_of(cluster.streams_owned, cluster.streams)),
        wide_number("PER-WORKER", |cluster| budget(cluster, cluster.max_jobs_per_worker)),
        wide_text("HELD", |cluster| or_none(&cluster.held)),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }

    fn tint(&self) -> Option<Tint> {
        match self {
            Self { lost: 1.., .. } => Some(Tint::Alarm),
            Self { failing: 1.., .. } | Self { unreported: 1.., .. } => Some(Tint::Warning),
            Self { held, .. } if !held.is_empty() => Some(Tint::Warning),
            Self { draining: 1.., .. } => Some(Tint::Notice),
            Self { .. } => None,
        }
    }
}

impl TableRow for Worker {
    const PLURAL: &'static str = "workers";
    const COLUMNS: &'static [Column<Self>] = &[
        text("CLUSTER", |worker| worker.cluster.clone()),
        text("WORKER", |worker| worker.name.clone()),
        text("PRESENCE", |worker| words::presence(worker.presence())),
        text("DRAIN", |worker| words::drain(worker).to_owned()),
        number("RUNNING", |worker| optional(worker.running)),
        number("GRANTED", |worker| worker.granted.to_string()),
        number("WANTED", |worker| worker.wanted.to_string()),
        number("COMMITTED", |worker| worker.committed.to_string()),
        number("STREAMS", |worker| worker.streams.to_string()),
        wide_number("LOAD", |worker| words::load(worker.documents_per_second)),
        number("HEARD", |worker| match worker.silent_for_ms {
            Some(millis) => format_short(Duration::from_millis(millis)),
            None => NONE.to_owned(),
        }),
        wide_number("GENERATION", |worker| worker.generation.to_string()),
        wide_text("TOKEN", |worker| or_none(&worker.pool_token)),
        wide_text("ADDRESS", |worker| or_none(&worker.address)),
        wide_text("AGENT", |worker| or_none(&worker.agent_version)),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.cluster, self.name)
    }

    fn tint(&self) -> Option<Tint> {
        match (self.presence(), self.drain()) {
            (Presence::Lost, _) => Some(Tint::Alarm),
            (Presence::Silent | Presence::Unreported | Presence::Unspecified, _) => {
                Some(Tint::Warning)
            }
            (Presence::Connected, _) if !self.failure.is_empty() => Some(Tint::Warning),
            (Presence::Connected, DrainPhase::Draining | DrainPhase::Leaving) => Some(Tint::Notice),
            (Presence::Connected, DrainPhase::Working | DrainPhase::Unspecified) => {
                self.drain_ordered.then_some(Tint::Notice)
            }
        }
    }
}

impl TableRow for StreamSet {
    const PLURAL: &'static str = "stream sets";
    const COLUMNS: &'static [Column<Self>] = &[
        text("SET", |set| set.name.clone()),
        text("CLUSTER", |set| set.cluster.clone()),
        number("STREAMS", |set| set.streams.to_string()),
        number("OWNED", |set| set.streams_owned.to_string()),
        number("UNOWNED", |set| set.streams.saturating_sub(set.streams_owned).to_string()),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }

    fn tint(&self) -> Option<Tint> {
        (self.streams_owned < self.streams).then_some(Tint::Warning)
    }
}

impl TableRow for Stream {
    const PLURAL: &'static str = "streams";
    const COLUMNS: &'static [Column<Self>] = &[
        text("SET", |stream| stream.set.clone()),
        text("STREAM", |stream| stream.name.clone()),
        text("OWNER", |stream| {
            let owners: Vec<_> = stream.claims.iter().map(|claim| claim.worker.as_str()).collect();
            or_none(&owners.join(","))
        }),
        text("LEASE", |stream| {
            let leases = stream.claims.iter().map(|claim| words::claim(claim.phase()));
            or_none(&leases.collect::<Vec<_>>().join(","))
        }),
        text("PLANNED", |stream| or_none(&stream.planned)),
        text("TOKEN", |stream| {
            let tokens: Vec<_> = stream.claims.iter().map(|claim| claim.token.as_str()).collect();
            or_none(&tokens.join(","))
        }),
        wide_number("WEIGHT", |stream| stream.weight.to_string()),
        wide_text("CLUSTER", |stream| stream.cluster.clone()),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.set, self.name)
    }

    fn tint(&self) -> Option<Tint> {
        self.claims.is_empty().then_some(Tint::Warning)
    }
}

impl TableRow for Pipeline {
    const PLURAL: &'static str = "pipelines";
    const COLUMNS: &'static [Column<Self>] = &[
        text("PIPELINE", |pipeline| pipeline.name.clone()),
        number("LOAD", |pipeline| words::load(pipeline.documents_per_second)),
        text("PHASE", |pipeline| words::pipeline(pipeline.phase())),
        number("NODES", |pipeline| pipeline.bindings.len().to_string()),
        text("REASON", |pipeline| or_none(&pipeline.reason)),
        wide_text("BINDINGS", |pipeline| {
            let bindings = pipeline.bindings.iter();
            let bindings =
                bindings.map(|one| format!("{}={}", one.node, words::binding(one.phase())));
            bindings.collect::<Vec<_>>().join(",")
        }),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }

    fn tint(&self) -> Option<Tint> {
        match self.phase() {
            PipelinePhase::Broken => Some(Tint::Alarm),
            PipelinePhase::Pending => Some(Tint::Warning),
            PipelinePhase::Ready if !self.reason.is_empty() => Some(Tint::Warning),
            PipelinePhase::Plotted | PipelinePhase::Ready | PipelinePhase::Unspecified => None,
        }
    }
}

impl TableRow for Class {
    const PLURAL: &'static str = "worker classes";
    const COLUMNS: &'static [Column<Self>] = &[
        text("CLASS", |class| class.name.clone()),
        number("CAPACITY", |class| words::load(class.capacity)),
        number("REQUEST", |class| words::load(class.request)),
        number("PLACED", |class| words::load(class.placed)),
        number("HEADROOM", |class| {
            words::load(f64::from(class.workers) * class.capacity - class.placed)
        }),
        number("WORKERS", |class| class.workers.to_string()),
        number("NEEDED", |class| class.workers_needed.to_string()),
        number("WANTED", |class| class.workers_wanted.to_string()),
        number("WAITING", |class| class.pipelines_waiting.to_string()),
        wide_number("MIN", |class| class.workers_min.to_string()),
        wide_number("MAX", |class| class.workers_max.to_string()),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }

    fn tint(&self) -> Option<Tint> {
        (self.pipelines_waiting > 0).then_some(Tint::Warning)
    }
}

fn budget(cluster: &Cluster, jobs: u32) -> String {
    if cluster.is_class { NONE.to_owned() } else { jobs.to_string() }
}

fn part_of(part: u32, all: u32) -> String {
    if all == 0 { NONE.to_owned() } else { format!("{part}/{all}") }
}

fn optional(number: Option<u32>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}
