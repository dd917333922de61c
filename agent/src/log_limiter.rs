//! What went wrong with which coordinator, at a bounded rate: a cause is said at once when it is
//! new, and then every half minute while it lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::Moment;

/// How often a cause that lasts is said again.
const REPEAT: Duration = Duration::from_secs(30);
/// Causes that are remembered; beyond them the oldest is forgotten.
const CAUSES_MAX: usize = 64;

/// The causes that were said, and when.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    said: BTreeMap<(String, String), Said>,
}

#[derive(Debug)]
struct Said {
    last: Moment,
    unsaid: u64,
}

impl LogLimiter {
    /// Whether to say this cause now, and how often it came up unsaid since the last time.
    pub(crate) fn admit(&mut self, address: &str, cause: &str, now: Moment) -> Option<u64> {
        let key = (address.to_owned(), cause.to_owned());
        if let Some(said) = self.said.get_mut(&key) {
            if now.since(said.last) < REPEAT {
                said.unsaid += 1;
                return None;
            }
            said.last = now;
            return Some(std::mem::take(&mut said.unsaid));
        }
        if self.said.len() == CAUSES_MAX {
            let oldest = self.said.iter().min_by_key(|(_, said)| said.last);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.map(|key| self.said.remove(&key));
        }
        self.said.insert(key, Said { last: now, unsaid: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_at_once_then_every_half_minute_with_its_count() {
        let mut log_limiter = LogLimiter::default();
        let at = |secs| Moment::default() + Duration::from_secs(secs);
        assert_eq!(log_limiter.admit("a:1", "refused", at(0)), Some(0));
        assert_eq!(log_limiter.admit("b:1", "refused", at(0)), Some(0));
        assert_eq!(log_limiter.admit("a:1", "garbage", at(1)), Some(0));
        assert_eq!(log_limiter.admit("a:1", "refused", at(2)), None);
        assert_eq!(log_limiter.admit("a:1", "refused", at(29)), None);
        assert_eq!(log_limiter.admit("a:1", "refused", at(30)), Some(2));
        for number in 0..1000 {
            log_limiter.admit("a:1", &number.to_string(), at(31));
        }
        assert_eq!(log_limiter.said.len(), CAUSES_MAX);
    }
}
