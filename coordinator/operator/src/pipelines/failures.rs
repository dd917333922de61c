//! What went wrong with the objects of one pipeline, and when each is tried again: what goes wrong
//! with one keeps nobody from another.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::Moment;

use super::managed_kind::ManagedKind;
use super::object_writer::ObjectError;

/// Names an object: without a kind it is the Pipeline itself.
pub(super) type ObjectId = (Option<ManagedKind>, String);

/// The wait after a failure, doubled with each up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What went wrong, by object.
#[derive(Debug, Default)]
pub(super) struct ObjectFailures(BTreeMap<ObjectId, ObjectFailure>);

#[derive(Debug)]
struct ObjectFailure {
    why: ObjectError,
    count: u32,
    until: Moment,
}

impl ObjectFailures {
    /// Whether an object may be tried now.
    pub(super) fn allows(&self, object: &ObjectId, now: Moment) -> bool {
        self.0.get(object).is_none_or(|failure| failure.until <= now)
    }

    /// What an object's last try came to; returns whether that is news, and bad.
    pub(super) fn note(
        &mut self,
        key: ObjectId,
        results: Result<(), ObjectError>,
        now: Moment,
    ) -> bool {
        let Err(why) = results else {
            self.0.remove(&key);
            return false;
        };
        let before = self.0.remove(&key);
        let count = before.as_ref().map_or(0, |it| it.count);
        let wait = RETRY_MIN.saturating_mul(1 << count.min(16)).min(RETRY_MAX);
        let is_news = before.is_none_or(|it| it.why != why);
        self.0.insert(key, ObjectFailure { why, count: count + 1, until: now + wait });
        is_news
    }

    /// What is wrong with an object.
    pub(super) fn error(&self, object: &ObjectId) -> Option<&ObjectError> {
        self.0.get(object).map(|failure| &failure.why)
    }

    /// Forgets all objects but these, after a look that began at `start`: of what could have been
    /// tried since and was not, nobody wants anything any more. It would be due for ever.
    pub(super) fn retain(&mut self, start: Moment, is_there: impl Fn(&ObjectId) -> bool) {
        self.0.retain(|object, failure| failure.until > start && is_there(object));
    }

    /// When the next object is to be tried again.
    pub(super) fn next(&self) -> Option<Moment> {
        self.0.values().map(|failure| failure.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_waits_for_itself_and_longer_with_each_failure() {
        let mut failures = ObjectFailures::default();
        let at = |millis: u64| Moment(millis * 1_000_000);
        let fails = || Err(ObjectError::Retry("away".into()));
        let object = |kind, name: &str| (Some(kind), name.to_owned());
        let a = || object(ManagedKind::Service, "a");
        assert!(failures.note(a(), fails(), at(0)));
        assert!(!failures.allows(&a(), at(199)));
        assert!(failures.allows(&object(ManagedKind::Service, "b"), at(0)));
        assert!(failures.allows(&object(ManagedKind::EndpointSlice, "a"), at(0)));
        assert!(!failures.note(a(), fails(), at(200)), "it is no news");
        assert_eq!(failures.next(), Some(at(600)));
        assert!(failures.note(a(), Err(ObjectError::NameTaken), at(600)));
        for _ in 0..40 {
            failures.note(a(), fails(), at(1_000));
        }
        assert_eq!(failures.next(), Some(at(31_000)));
        assert!(!failures.note(a(), Ok(()), at(31_000)));
        assert_eq!(failures.next(), None);
    }

    #[test]
    fn what_a_look_could_have_tried_and_did_not_is_never_due_again() {
        let mut failures = ObjectFailures::default();
        let at = |millis: u64| Moment(millis * 1_000_000);
        let object = |name: &str| (Some(ManagedKind::EndpointSlice), name.to_owned());
        failures.note(object("passed over"), Err(ObjectError::NameTaken), at(0));
        failures.note(object("early"), Err(ObjectError::NameTaken), at(100));
        failures.note(object("gone"), Err(ObjectError::NameTaken), at(100));
        failures.retain(at(200), |it| it.1 != "gone");
        assert_eq!(failures.error(&object("passed over")), None);
        assert_eq!(failures.error(&object("gone")), None);
        assert_eq!(failures.next(), Some(at(300)));
    }
}
