//! What went wrong with the objects of one pipeline, and when each is tried again: what goes wrong
//! with one keeps nobody from another.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::Moment;

use super::hand::Trouble;
use super::kinds::Kind;

/// Names an object: without a kind it is the Pipeline itself.
pub(super) type Object = (Option<Kind>, String);

/// The wait after a failure, doubled with each up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What went wrong, by object.
#[derive(Debug, Default)]
pub(super) struct Setbacks(BTreeMap<Object, Setback>);

#[derive(Debug)]
struct Setback {
    why: Trouble,
    count: u32,
    until: Moment,
}

impl Setbacks {
    /// Whether an object may be tried now.
    pub(super) fn allows(&self, object: &Object, now: Moment) -> bool {
        self.0.get(object).is_none_or(|setback| setback.until <= now)
    }

    /// What an object's last try came to; returns whether that is news, and bad.
    pub(super) fn note(&mut self, key: Object, came: Result<(), Trouble>, now: Moment) -> bool {
        let Err(why) = came else {
            self.0.remove(&key);
            return false;
        };
        let before = self.0.remove(&key);
        let count = before.as_ref().map_or(0, |it| it.count);
        let wait = RETRY_MIN.saturating_mul(1 << count.min(16)).min(RETRY_MAX);
        let is_news = before.is_none_or(|it| it.why != why);
        self.0.insert(key, Setback { why, count: count + 1, until: now + wait });
        is_news
    }

    /// What is wrong with an object.
    pub(super) fn trouble(&self, object: &Object) -> Option<&Trouble> {
        self.0.get(object).map(|setback| &setback.why)
    }

    /// Forgets all objects but these, after a look that began at `start`: of what could have been
    /// tried since and was not, nobody wants anything any more. It would be due for ever.
    pub(super) fn retain(&mut self, start: Moment, is_there: impl Fn(&Object) -> bool) {
        self.0.retain(|object, setback| setback.until > start && is_there(object));
    }

    /// When the next object is to be tried again.
    pub(super) fn next(&self) -> Option<Moment> {
        self.0.values().map(|setback| setback.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_waits_for_itself_and_longer_with_each_failure() {
        let mut setbacks = Setbacks::default();
        let at = |millis: u64| Moment(millis * 1_000_000);
        let fails = || Err(Trouble::Later("away".into()));
        let object = |kind, name: &str| (Some(kind), name.to_owned());
        let a = || object(Kind::Service, "a");
        assert!(setbacks.note(a(), fails(), at(0)));
        assert!(!setbacks.allows(&a(), at(199)));
        assert!(setbacks.allows(&object(Kind::Service, "b"), at(0)));
        assert!(setbacks.allows(&object(Kind::EndpointSlice, "a"), at(0)));
        assert!(!setbacks.note(a(), fails(), at(200)), "it is no news");
        assert_eq!(setbacks.next(), Some(at(600)));
        assert!(setbacks.note(a(), Err(Trouble::Taken), at(600)));
        for _ in 0..40 {
            setbacks.note(a(), fails(), at(1_000));
        }
        assert_eq!(setbacks.next(), Some(at(31_000)));
        assert!(!setbacks.note(a(), Ok(()), at(31_000)));
        assert_eq!(setbacks.next(), None);
    }

    #[test]
    fn what_a_look_could_have_tried_and_did_not_is_never_due_again() {
        let mut setbacks = Setbacks::default();
        let at = |millis: u64| Moment(millis * 1_000_000);
        let object = |name: &str| (Some(Kind::EndpointSlice), name.to_owned());
        setbacks.note(object("passed over"), Err(Trouble::Taken), at(0));
        setbacks.note(object("early"), Err(Trouble::Taken), at(100));
        setbacks.note(object("gone"), Err(Trouble::Taken), at(100));
        setbacks.retain(at(200), |it| it.1 != "gone");
        assert_eq!(setbacks.trouble(&object("passed over")), None);
        assert_eq!(setbacks.trouble(&object("gone")), None);
        assert_eq!(setbacks.next(), Some(at(300)));
    }
}
