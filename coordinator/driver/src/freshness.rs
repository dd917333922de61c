//! How current the desired state is. It is known for certain only of moments at which the platform
//! was asked and answered: silence never counts as news that nothing has changed.

use std::time::Duration;

use leasehold_types::Moment;

/// How old the last certainty may be: longer than platforms pause between two looks, and than a
/// passing failure takes to pass.
pub const STALE_AFTER: Duration = Duration::from_secs(15);

/// What is known of how current the desired state is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// When the platform last confirmed that the driver has the newest state.
    pub confirmed_at: Option<Moment>,
    /// Why it has not been confirmed since, where that is known; for people.
    pub trouble: Option<String>,
}

impl Freshness {
    /// It is confirmed for this moment.
    #[must_use]
    pub fn confirmed(at: Moment) -> Self {
        Self { confirmed_at: Some(at), trouble: None }
    }

    /// The same, but it cannot be confirmed any more.
    #[must_use]
    pub fn troubled(&self, why: String) -> Self {
        Self { confirmed_at: self.confirmed_at, trouble: Some(why) }
    }

    /// Why the desired state must no longer be used, if so.
    #[must_use]
    pub fn stale(&self, now: Moment) -> Option<String> {
        let age = self.confirmed_at.map(|at| now.since(at));
        let since = match age {
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
    fn what_was_not_confirmed_for_long_is_stale_and_says_why() {
        let start = Moment(1);
        assert!(Freshness::default().stale(start).is_some());
        let fresh = Freshness::confirmed(start);
        assert_eq!(fresh.stale(start + STALE_AFTER), None);
        let troubled = fresh.troubled("no answer".into());
        assert_eq!(troubled.stale(start + STALE_AFTER), None, "a short failure does not count");
        let late = start + STALE_AFTER + Duration::from_secs(1);
        let why = troubled.stale(late).expect("it is stale");
        assert!(why.contains("16 s") && why.ends_with("no answer"), "{why}");
    }
}
