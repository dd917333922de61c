//! The admin API's enums as words, and its numbers as people read them.

use leasehold_proto::admin::v1::{
    BindingPhase, ChangeKind, ClaimPhase, DrainPhase, GetStatusResponse, ManifestProblem,
    OtherCell, PipelinePhase, Presence, Worker,
};

pub(super) fn presence(presence: Presence) -> String {
    word(presence.as_str_name(), "PRESENCE_")
}

/// What a replica does.
pub(super) fn role(status: &GetStatusResponse) -> String {
    match status.leader_address.as_str() {
        _ if status.leads => format!("leads term {}", status.epoch),
        "" => "knows no leader".to_owned(),
        leader => format!("stands by for {leader}"),
    }
}

pub(super) fn drain(worker: &Worker) -> &'static str {
    match (worker.drain(), worker.drain_ordered) {
        (DrainPhase::Unspecified | DrainPhase::Working, false) => "no",
        (DrainPhase::Unspecified | DrainPhase::Working, true) => "ordered",
        (DrainPhase::Draining, true) if !worker.failure.is_empty() => "ordered",
        (DrainPhase::Draining, false) if !worker.failure.is_empty() => "failing",
        (DrainPhase::Draining, _) => "draining",
        (DrainPhase::Leaving, _) => "leaving",
    }
}

/// Whether a worker drains, or is to drain; one that only fails its check does not.
pub(super) fn drains(worker: &Worker) -> bool {
    !matches!(drain(worker), "no" | "failing")
}

pub(super) fn claim(phase: ClaimPhase) -> &'static str {
    match phase {
        ClaimPhase::Unspecified => "unknown",
        ClaimPhase::Held => "owned",
        ClaimPhase::Revoking => "revoked",
        ClaimPhase::Lapsing => "ends with its time",
    }
}

pub(super) fn pipeline(phase: PipelinePhase) -> String {
    word(phase.as_str_name(), "PIPELINE_PHASE_")
}

pub(super) fn binding(phase: BindingPhase) -> String {
    word(phase.as_str_name(), "BINDING_PHASE_").replace('-', " ")
}

pub(super) fn change(kind: ChangeKind) -> String {
    word(kind.as_str_name(), "CHANGE_KIND_")
}

/// A value of an enum as a word: `PRESENCE_LOST` is `lost`.
fn word(name: &str, prefix: &str) -> String {
    match name.strip_prefix(prefix) {
        None | Some("UNSPECIFIED") => "unknown".to_owned(),
        Some(name) => name.to_lowercase().replace('_', "-"),
    }
}

/// A load in documents per second, without a needless fraction.
pub(super) fn load(load: f64) -> String {
    let text = format!("{load:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What is wrong with a manifest, and where.
pub(super) fn problem(problem: &ManifestProblem) -> String {
    let place = match (problem.line, problem.column) {
        (0, _) => problem.file.clone(),
        (line, column) => format!("{}:{line}:{column}", problem.file),
    };
    let field = match problem.field.as_str() {
        "" => String::new(),
        field => format!(" {field}:"),
    };
    let left = match problem.due_seconds {
        0 => String::new(),
        seconds => format!(" ({seconds} s left)"),
    };
    format!("{place}:{field} {}{left}", problem.message)
}

/// A coordinator of another cell, as a line.
pub(super) fn other_cell(other: &OtherCell) -> String {
    let OtherCell { cluster, worker, coordinator, cell } = other;
    format!("Two cells: {cluster}/{worker} also reaches {coordinator}, which is of cell {cell}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enums_are_words() {
        assert_eq!(presence(Presence::Lost), "lost");
        assert_eq!(presence(Presence::Unspecified), "unknown");
        assert_eq!(pipeline(PipelinePhase::Plotted), "plotted");
        assert_eq!(binding(BindingPhase::DeadEnd), "dead end");
        assert_eq!(change(ChangeKind::DrainStarted), "drain-started");
    }

    #[test]
    fn a_worker_that_only_fails_its_check_does_not_drain() {
        let word = |drain: DrainPhase, drain_ordered, failure: &str| {
            let failure = failure.to_owned();
            let worker =
                Worker { drain: drain.into(), drain_ordered, failure, ..Worker::default() };
            (super::drain(&worker), drains(&worker))
        };
        assert_eq!(word(DrainPhase::Working, false, ""), ("no", false));
        assert_eq!(word(DrainPhase::Draining, false, "no answer"), ("failing", false));
        assert_eq!(word(DrainPhase::Draining, true, "no answer"), ("ordered", true));
        assert_eq!(word(DrainPhase::Draining, true, ""), ("draining", true));
    }

    #[test]
    fn loads_have_no_needless_fraction() {
        for (number, text) in [(0.0, "0"), (10.0, "10"), (2.5, "2.5"), (100.125, "100.125")] {
            assert_eq!(load(number), text);
        }
    }
}
