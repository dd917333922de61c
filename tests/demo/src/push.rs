//! How long a decision takes to reach the worker that it concerns: from the coordinator's log
//! line about a grant to the worker's journal line about the first sight of its token. And how
//! long a failover takes, as the workers see it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::clock;
use crate::journal::{Event, Line};

/// A grant in a coordinator's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// When, by the wall clock.
    pub wall_us: u64,
    /// To whom.
    pub worker: String,
    /// Of which set and stream; none for a pool.
    pub stream: Option<(String, String)>,
    /// The token.
    pub token: String,
}

/// Reads a line of a coordinator's JSON log, or `None` if it is not a grant.
#[must_use]
pub fn parse_grant(line: &str) -> Option<Grant> {
    let line: Value = serde_json::from_str(line).ok()?;
    if line.get("target")?.as_str()? != "leasehold::lease" {
        return None;
    }
    // The subscriber writes an event's fields below `fields`, or beside the others if flattened.
    let fields = line.get("fields").unwrap_or(&line);
    let field = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    let stream = match field("message")?.as_str() {
        "pool granted" => None,
        "stream granted" => Some((field("set")?, field("stream")?)),
        _ => return None,
    };
    let wall_us = clock::parse_rfc3339_us(line.get("timestamp")?.as_str()?)?;
    Some(Grant { wall_us, worker: field("worker")?, stream, token: field("token")? })
}

/// Microseconds from grants to their first sight, and how many grants were never seen: they were
/// replaced or withdrawn before, or their worker was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushes {
    /// In ascending order.
    pub sorted_us: Vec<u64>,
    /// Grants that no worker saw.
    pub unseen: usize,
}

/// A worker, its stream (none for its pool), and a token.
type Sight<'a> = (&'a str, Option<(&'a str, &'a str)>, &'a str);

impl Pushes {
    /// Matches grants with sights. A grant that was made while its worker did not watch is left
    /// out: that worker was answered when it began to, nothing was pushed to it.
    #[must_use]
    pub fn new(grants: &[Grant], lines: &[Line]) -> Self {
        let mut watching: BTreeMap<&str, BTreeMap<u64, bool>> = BTreeMap::new();
        let mut sights: BTreeMap<Sight<'_>, u64> = BTreeMap::new();
        for line in lines {
            match &line.event {
                Event::Watching | Event::Ended => {
                    let watches = matches!(line.event, Event::Watching);
                    watching.entry(&line.worker).or_default().insert(line.wall_us, watches);
                }
                Event::Seen { set, stream, token } => {
                    let stream = set.as_deref().zip(stream.as_deref());
                    sights.entry((&line.worker, stream, token)).or_insert(line.wall_us);
                }
                _ => {}
            }
        }
        let mut pushes = Self::default();
        for grant in grants {
            let before = watching.get(&*grant.worker).and_then(|times| {
                times.range(..=grant.wall_us).next_back().map(|(_, watches)| *watches)
            });
            if before != Some(true) {
                continue;
            }
            let stream = grant.stream.as_ref().map(|(set, stream)| (&**set, &**stream));
            match sights.get(&(&*grant.worker, stream, &*grant.token)) {
                Some(seen_us) => pushes.sorted_us.push(seen_us.saturating_sub(grant.wall_us)),
                None => pushes.unseen += 1,
            }
        }
        pushes.sorted_us.sort_unstable();
        pushes
    }

    /// The value below which `percent` of all are, in milliseconds with three digits behind the
    /// point, or `None` if nothing was measured.
    #[must_use]
    pub fn percentile_ms(&self, percent: usize) -> Option<f64> {
        let last = self.sorted_us.len().checked_sub(1)?;
        let index = (self.sorted_us.len() * percent).div_ceil(100).saturating_sub(1).min(last);
        #[allow(clippy::cast_precision_loss)] // Microseconds of minutes fit.
        Some(self.sorted_us[index] as f64 / 1000.0)
    }
}

/// Nanoseconds from `killed_ns` (the leader's death) until `worker` sees, on a link that was down
/// after that and is up again, a lease that ends later than any that it saw before: it was renewed
/// by a new leader. None where that did not happen.
#[must_use]
pub fn failover_ns(lines: &[Line], worker: &str, killed_ns: u64) -> Option<u64> {
    let (mut was_down, mut until_max_ns) = (false, 0);
    for line in lines.iter().filter(|line| line.worker == worker) {
        let Event::Lease { connected, until_ns, .. } = line.event else { continue };
        let until_ns = until_ns.unwrap_or(0);
        if line.at_ns > killed_ns {
            was_down |= !connected;
            if was_down && connected && until_ns > until_max_ns {
                return Some(line.at_ns - killed_ns);
            }
        }
        until_max_ns = until_max_ns.max(until_ns);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::parse;

    const POOL: &str = r#"{"timestamp":"1970-01-01T00:00:01.000100Z","level":"INFO","fields":
        {"message":"pool granted","cluster":"demo","worker":"w1","size":3,"token":"8.17"},
        "target":"leasehold::lease"}"#;

    fn seen(wall_us: u64, worker: &str, stream: &str, token: &str) -> Line {
        let stream = match stream {
            "" => r#""set": null, "stream": null"#.to_owned(),
            stream => format!(r#""set": "s", "stream": "{stream}""#),
        };
        parse(&format!(
            r#"{{"event": "seen", "at_ns": 1, "wall_us": {wall_us}, "worker": "{worker}",
                {stream}, "token": "{token}"}}"#
        ))
        .unwrap()
    }

    fn watching(wall_us: u64, worker: &str) -> Line {
        let event = Event::Watching;
        Line { at_ns: 1, wall_us, worker: worker.to_owned(), event }
    }

    #[test]
    fn reads_grants_only() {
        let grant = parse_grant(POOL).unwrap();
        assert_eq!((grant.wall_us, &*grant.token, grant.stream), (1_000_100, "8.17", None));
        let flat = r#"{"timestamp":"1970-01-01T00:00:01Z","message":"stream granted","set":"s",
            "stream":"a:b","worker":"w1","token":"8.18","target":"leasehold::lease"}"#;
        assert_eq!(parse_grant(flat).unwrap().stream, Some(("s".to_owned(), "a:b".to_owned())));
        assert_eq!(parse_grant(&POOL.replace("pool granted", "stream freed")), None);
        assert_eq!(parse_grant("not JSON"), None);
    }

    #[test]
    fn matches_by_worker_stream_and_token() {
        let grant = |wall_us, worker: &str, stream: &str, token: &str| Grant {
            wall_us,
            worker: worker.to_owned(),
            stream: (!stream.is_empty()).then(|| ("s".to_owned(), stream.to_owned())),
            token: token.to_owned(),
        };
        let grants = [
            grant(1000, "w1", "", "1.1"),
            grant(1000, "w1", "a", "1.2"),
            grant(1000, "w2", "a", "1.3"),
            grant(2000, "w1", "a", "1.4"),
        ];
        let lines = [
            watching(500, "w1"),
            watching(1500, "w2"),
            seen(3000, "w1", "", "1.1"),
            seen(5000, "w1", "a", "1.2"),
            seen(5001, "w2", "a", "1.3"),
        ];
        let pushes = Pushes::new(&grants, &lines);
        assert_eq!(pushes, Pushes { sorted_us: vec![2000, 4000], unseen: 1 });
        assert_eq!(pushes.percentile_ms(50), Some(2.0));
        assert_eq!(pushes.percentile_ms(99), Some(4.0));
        assert_eq!(Pushes::default().percentile_ms(50), None);
    }

    #[test]
    fn expects_no_push_between_a_workers_end_and_its_next_start() {
        let grant = |wall_us, token: &str| Grant {
            wall_us,
            worker: "w1".to_owned(),
            stream: None,
            token: token.to_owned(),
        };
        let ended = Line { event: Event::Ended, ..watching(2000, "w1") };
        let lines = [
            watching(500, "w1"),
            seen(1500, "w1", "", "1.1"),
            ended,
            watching(3000, "w1"),
            seen(3000, "w1", "", "1.2"),
            seen(4500, "w1", "", "1.3"),
        ];
        let grants = [grant(1000, "1.1"), grant(2500, "1.2"), grant(4000, "1.3")];
        let want = Pushes { sorted_us: vec![500, 500], unseen: 0 };
        assert_eq!(Pushes::new(&grants, &lines), want);
    }

    #[test]
    fn a_failover_ends_with_a_renewal_on_a_new_link() {
        let lease = |at_ns, connected, until_ns| Line {
            at_ns,
            wall_us: 1,
            worker: "w1".to_owned(),
            event: Event::Lease { connected, pool: 1, until_ns: Some(until_ns) },
        };
        let mut lines = vec![lease(90, true, 3000), lease(101, true, 3001)];
        assert_eq!(failover_ns(&lines, "w1", 100), None, "the old leader's last renewal");
        lines.extend([lease(102, false, 3001), lease(110, true, 3001)]);
        assert_eq!(failover_ns(&lines, "w1", 100), None, "connected, not renewed");
        lines.push(lease(115, true, 3002));
        assert_eq!(failover_ns(&lines, "w1", 100), Some(15));
        assert_eq!(failover_ns(&lines, "w2", 100), None);
    }
}
