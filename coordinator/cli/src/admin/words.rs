//! The admin API's enums as words, and its numbers as people read them.

use std::time::Duration;

use leasehold_proto::admin::v1::{
    BindingPhase, ChangeKind, ClaimPhase, DrainPhase, PipelinePhase, Presence,
};

pub(super) fn presence(presence: Presence) -> &'static str {
    match presence {
        Presence::Unspecified => "unknown",
        Presence::Connected => "connected",
        Presence::Silent => "silent",
        Presence::Lost => "lost",
        Presence::Unreported => "unreported",
    }
}

pub(super) fn drain(phase: DrainPhase, is_ordered: bool) -> &'static str {
    match (phase, is_ordered) {
        (DrainPhase::Unspecified | DrainPhase::Working, false) => "no",
        (DrainPhase::Unspecified | DrainPhase::Working, true) => "ordered",
        (DrainPhase::Draining, _) => "draining",
        (DrainPhase::Leaving, _) => "leaving",
    }
}

pub(super) fn claim(phase: ClaimPhase) -> &'static str {
    match phase {
        ClaimPhase::Unspecified => "unknown",
        ClaimPhase::Held => "owned",
        ClaimPhase::Revoking => "asked back",
        ClaimPhase::Lapsing => "ends with its time",
    }
}

pub(super) fn pipeline(phase: PipelinePhase) -> &'static str {
    match phase {
        PipelinePhase::Unspecified => "unknown",
        PipelinePhase::Pending => "pending",
        PipelinePhase::Plotted => "plotted",
        PipelinePhase::Ready => "ready",
        PipelinePhase::Broken => "broken",
    }
}

pub(super) fn binding(phase: BindingPhase) -> &'static str {
    match phase {
        BindingPhase::Unspecified => "unknown",
        BindingPhase::Pending => "pending",
        BindingPhase::Ready => "ready",
        BindingPhase::DeadEnd => "dead end",
        BindingPhase::Unset => "unset",
    }
}

pub(super) fn change(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Unspecified => "unknown",
        ChangeKind::Elected => "elected",
        ChangeKind::Deposed => "deposed",
        ChangeKind::HoldEnded => "hold-ended",
        ChangeKind::Joined => "joined",
        ChangeKind::Disconnected => "disconnected",
        ChangeKind::Lost => "lost",
        ChangeKind::DrainStarted => "drain-started",
        ChangeKind::Gone => "gone",
        ChangeKind::PoolGranted => "pool-granted",
        ChangeKind::StreamGranted => "stream-granted",
        ChangeKind::StreamRevoked => "stream-revoked",
        ChangeKind::StreamReleased => "stream-released",
        ChangeKind::StreamExpired => "stream-expired",
        ChangeKind::StreamGone => "stream-gone",
        ChangeKind::Offence => "offence",
        ChangeKind::Skipped => "skipped",
        ChangeKind::Manifests => "manifests",
        ChangeKind::Pipeline => "pipeline",
        ChangeKind::Binding => "binding",
        ChangeKind::Ordered => "ordered",
    }
}

/// A span of time in its two greatest units: `350ms`, `12s`, `3m5s`, `2h10m`, `5d3h`.
pub(super) fn age(span: Duration) -> String {
    let seconds = span.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{}ms", span.as_millis()),
        (0, 0, 0, _) => format!("{seconds}s"),
        (0, 0, _, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _, _) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// A load in documents per second, without a needless fraction.
pub(super) fn load(load: f64) -> String {
    let text = format!("{load:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `1 worker`, `2 workers`.
pub(super) fn count(count: impl Into<u64>, noun: &str) -> String {
    match count.into() {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        for (millis, text) in [
            (350, "350ms"),
            (12_900, "12s"),
            (185_000, "3m5s"),
            (7_800_000, "2h10m"),
            (442_800_000, "5d3h"),
        ] {
            assert_eq!(age(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn loads_have_no_needless_fraction() {
        for (number, text) in [(0.0, "0"), (10.0, "10"), (2.5, "2.5"), (100.125, "100.125")] {
            assert_eq!(load(number), text);
        }
    }
}
