//! Limits repeated log lines: a new cause is logged at once, and then every half minute while it
//! repeats.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::Moment;

/// The interval between log lines of the same cause.
const REPEAT: Duration = Duration::from_secs(30);
/// Remembered causes; one more replaces the oldest.
const CAUSES_MAX: usize = 64;

/// The causes that were logged, and when.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    logged: BTreeMap<(String, String), LoggedCause>,
}

#[derive(Debug)]
struct LoggedCause {
    last: Moment,
    suppressed: u64,
}

/// A line that is to be logged now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// How often it was suppressed since the last one, if it was.
    pub(crate) suppressed: Option<u64>,
}

impl LogLimiter {
    /// Whether this cause is to be logged now.
    pub(crate) fn admit(&mut self, address: &str, cause: &str, now: Moment) -> Option<Admitted> {
        let key = (address.to_owned(), cause.to_owned());
        if let Some(entry) = self.logged.get_mut(&key) {
            if now.since(entry.last) < REPEAT {
                entry.suppressed += 1;
                return None;
            }
            entry.last = now;
            let suppressed = std::mem::take(&mut entry.suppressed);
            let suppressed = (suppressed > 0).then_some(suppressed);
            return Some(Admitted { suppressed });
        }
        if self.logged.len() == CAUSES_MAX {
            let oldest = self.logged.iter().min_by_key(|(_, entry)| entry.last);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.map(|key| self.logged.remove(&key));
        }
        self.logged.insert(key, LoggedCause { last: now, suppressed: 0 });
        Some(Admitted { suppressed: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_a_cause_at_once_then_every_half_minute_with_the_suppressed_count() {
        let mut log_limiter = LogLimiter::default();
        let admitted = |suppressed| Some(Admitted { suppressed });
        let at = |secs| Moment::default() + Duration::from_secs(secs);
        assert_eq!(log_limiter.admit("a:1", "refused", at(0)), admitted(None));
        assert_eq!(log_limiter.admit("b:1", "refused", at(0)), admitted(None));
        assert_eq!(log_limiter.admit("a:1", "garbage", at(1)), admitted(None));
        assert_eq!(log_limiter.admit("a:1", "refused", at(2)), None);
        assert_eq!(log_limiter.admit("a:1", "refused", at(29)), None);
        assert_eq!(log_limiter.admit("a:1", "refused", at(30)), admitted(Some(2)));
        for number in 0..1000 {
            log_limiter.admit("a:1", &number.to_string(), at(31));
        }
        assert_eq!(log_limiter.logged.len(), CAUSES_MAX);
    }
}
