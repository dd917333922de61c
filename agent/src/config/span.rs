//! Spans of time as people write them: `500ms`, `30s`, `1h30m`.

use std::time::Duration;

/// The longest span that an option takes: a hundred years.
const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Reads a span: numbers with a unit each (`ms`, `s`, `m`, `h`, `d`), one after another.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no span of time: write 500ms, 30s, 5m, 2h or 1h30m");
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let millis: u64 = match &rest[..unit] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        rest = &rest[unit..];
        sum += Duration::from_millis(number.saturating_mul(millis));
    }
    match text.is_empty() || sum > SPAN_MAX {
        true => Err(wrong()),
        false => Ok(sum),
    }
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
    fn spans_read_as_people_write_them_and_nonsense_is_refused() {
        let minutes = |m: u64| Duration::from_secs(60 * m);
        for (text, span) in [("90s", Duration::from_secs(90)), ("2h", minutes(120))] {
            assert_eq!(parse(text), Ok(span));
        }
        assert_eq!(parse("1h30m"), Ok(minutes(90)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        for text in
            ["", "5", "s", "-1s", "1.5h", "1 h", "3w", "99999999999999999999s", "200000000h"]
        {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_span_is_shown_in_its_two_largest_units() {
        assert_eq!(show(Duration::from_secs(7199)), "1h59m");
        assert_eq!(show(Duration::from_secs(61)), "1m1s");
        assert_eq!(show(Duration::from_millis(12)), "12ms");
    }
}
