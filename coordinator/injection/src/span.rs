//! Spans of time as the agent's flags take them: `500ms`, `30s`, `1h30m`.

use std::time::Duration;

/// Reads a span: numbers with a unit each (`ms`, `s`, `m`, `h`, `d`), one after another.
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
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_what_the_agent_takes() {
        assert_eq!(parse("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(parse("250ms"), Some(Duration::from_millis(250)));
        for bad in ["", "5", "s", "-1s", "1.5h", "1 h", "3w", "99999999999999999999s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
