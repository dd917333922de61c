//! How current the desired state is. Only an answer of the platform confirms it; silence never
//! counts as a confirmation.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_types::Moment;

/// How old the last confirmation may be: longer than the interval between two polls of a platform,
/// and longer than a short failure lasts.
pub const STALE_AFTER: Duration = Duration::from_secs(15);

/// When the desired state was last confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// When the platform last confirmed that the driver has the newest state.
    pub confirmed_at: Option<Moment>,
    /// Why it has not been confirmed since, if that is known; shown to people.
    pub trouble: Option<String>,
    /// The namespaces whose state is not confirmed, since the platform forbids to read it.
    pub unreadable: BTreeSet<String>,
}

impl Freshness {
    /// A state that is confirmed as of this moment.
    #[must_use]
    pub fn confirmed(at: Moment) -> Self {
        Self { confirmed_at: Some(at), ..Self::default() }
    }

    /// The same state, after a confirmation has failed.
    #[must_use]
    pub fn troubled(&self, why: String) -> Self {
        Self { trouble: Some(why), ..self.clone() }
    }

    /// The same state, without a confirmation of these namespaces.
    #[must_use]
    pub fn except(self, unreadable: BTreeSet<String>) -> Self {
        Self { unreadable, ..self }
    }

    /// The time since the last confirmation; `None` before the first one.
    #[must_use]
    pub fn age(&self, now: Moment) -> Option<Duration> {
        self.confirmed_at.map(|at| now.since(at))
    }

    /// Why the desired state must no longer be used, or `None` if it may be used.
    #[must_use]
    pub fn stale(&self, now: Moment) -> Option<String> {
        let since = match self.age(now) {
            Some(age) if age <= STALE_AFTER => return None,
            Some(age) => format!("for {} s", age.as_secs()),
            None => "yet".into(),
        };
        let why = self.trouble.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        Some(format!("the desired state has not been confirmed {since}{why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn desired_state_without_recent_confirmation_is_stale_and_says_why() {
        let start = Moment(1);
        assert!(Freshness::default().stale(start).is_some());
        let fresh = Freshness::confirmed(start);
        assert_eq!(fresh.stale(start + STALE_AFTER), None);
        let troubled = fresh.troubled("no answer".into());
        assert_eq!(troubled.stale(start + STALE_AFTER), None, "a short failure is tolerated");
        let late = start + STALE_AFTER + Duration::from_secs(1);
        let why = troubled.stale(late).expect("the state is stale");
        assert!(why.contains("16 s") && why.ends_with("no answer"), "{why}");
    }
}
