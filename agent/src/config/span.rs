//! Spans of time as people write them: `500ms`, `30s`, `1h30m`.

use std::time::Duration;

/// Reads a span, or says how one is written.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no span of time: write 500ms, 30s, 5m, 2h or 1h30m");
    leasehold_types::span::parse(text).ok_or_else(wrong)
}

/// Writes a span with its two largest units, as in `1h59m`.
pub(crate) fn show(span: Duration) -> String {
    let secs = span.as_secs();
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        (0, 0, 0) => format!("{}ms", span.as_millis()),
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, _) => format!("{h}h{m}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_shown_in_its_two_largest_units() {
        assert_eq!(show(Duration::from_secs(7199)), "1h59m");
        assert_eq!(show(Duration::from_secs(61)), "1m1s");
        assert_eq!(show(Duration::from_millis(12)), "12ms");
    }
}
