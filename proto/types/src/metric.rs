//! What a program measures: its tables of these create its metrics, and `docs/METRICS.md` is
//! written from them.

use std::fmt::Write;

/// A metric as Prometheus shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its name: a counter's ends in `_total`, and a unit of time stands in it.
    pub name: &'static str,
    /// How its values behave.
    pub kind: MetricKind,
    /// What it counts or measures: `s` for seconds, `1` for a truth, and what is counted in
    /// braces, as the Unified Code for Units of Measure has it.
    pub unit: &'static str,
    /// The labels of each of its series.
    pub labels: &'static [&'static str],
    /// What it says, in sentences.
    pub meaning: &'static str,
}

/// How the values of a metric behave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// It only grows while the program runs.
    Counter,
    /// It is what it is now.
    Gauge,
    /// It counts values by these upper bounds, in its unit.
    Histogram(&'static [f64]),
}

impl MetricKind {
    /// The word that Prometheus has for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

impl Metric {
    /// A counter of what `unit` names.
    #[must_use]
    pub const fn counter(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, unit, labels: &[], meaning }
    }

    /// A gauge in `unit`.
    #[must_use]
    pub const fn gauge(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, unit, labels: &[], meaning }
    }

    /// A histogram of times, with the upper `bounds` of its buckets in seconds.
    #[must_use]
    pub const fn seconds(
        name: &'static str,
        bounds: &'static [f64],
        meaning: &'static str,
    ) -> Self {
        let kind = MetricKind::Histogram(bounds);
        Self { name, kind, unit: "s", labels: &[], meaning }
    }

    /// The same, with a series for each combination of these labels.
    #[must_use]
    pub const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }
}

/// The rows of a table of metrics in Markdown, with its head.
#[must_use]
pub fn markdown(metrics: &[&Metric]) -> String {
    let mut table = "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n".to_owned();
    for Metric { name, kind, unit, labels, meaning } in metrics.iter().copied() {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, labels) = (kind.word(), labels.join(", "));
        let _ = writeln!(table, "| `{name}` | {kind} | `{unit}` | {labels} | {meaning} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_everything_about_a_metric() {
        let grants = Metric::counter("grants_total", "{lease}", "Leases granted.").by(&["kind"]);
        let held = Metric::gauge("held", "1", "1 while it is held.");
        let settle = Metric::seconds("settle_seconds", &[0.1], "Time that a turn took.");
        assert_eq!(
            markdown(&[&grants, &held, &settle]),
            "| name | type | unit | labels | meaning |\n\
             |---|---|---|---|---|\n\
             | `grants_total` | counter | `{lease}` | `kind` | Leases granted. |\n\
             | `held` | gauge | `1` |  | 1 while it is held. |\n\
             | `settle_seconds` | histogram | `s` |  | Time that a turn took. |\n"
        );
    }
}
