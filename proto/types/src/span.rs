//! Spans of time as the agent's flags take them: `500ms`, `30s`, `1h30m`. One reader for the agent
//! and for whoever writes its flags, so that nothing is let through that the agent then refuses.

use std::time::Duration;

/// The longest span: a hundred years.
const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Reads a span: numbers with a unit each (`ms`, `s`, `m`, `h`, `d`), one after another; none
/// where it is not one, or is longer than a hundred years.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let millis: u64 = match &rest[..unit] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        rest = &rest[unit..];
        sum = sum.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
    }
    (!text.is_empty() && sum <= SPAN_MAX).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_write_them_and_nonsense_is_refused() {
        let minutes = |m: u64| Duration::from_secs(60 * m);
        for (text, span) in [("90s", Duration::from_secs(90)), ("2h", minutes(120))] {
            assert_eq!(parse(text), Some(span));
        }
        assert_eq!(parse("1h30m"), Some(minutes(90)));
        assert_eq!(parse("250ms"), Some(Duration::from_millis(250)));
        for text in
            ["", "5", "s", "-1s", "1.5h", "1 h", "3w", "99999999999999999999s", "200000000h"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
