//! Results of the webhooks' reviews, and how tokens are checked.

/// The result of a review of a class or pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidationResult {
    /// It was allowed.
    Allowed,
    /// It was allowed with a warning.
    Warned,
    /// It was refused.
    Refused,
    /// This replica had not read everything yet.
    Unready,
}

impl ValidationResult {
    pub(super) const ALL: [Self; 4] = [Self::Allowed, Self::Warned, Self::Refused, Self::Unready];

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Warned => "warned",
            Self::Refused => "refused",
            Self::Unready => "unready",
        }
    }
}

/// The result of a review of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionResult {
    /// It got an agent.
    Injected,
    /// It has its agent already, or wants none.
    Unchanged,
    /// It was refused.
    Refused,
    /// This replica had not read the WorkerClusters yet.
    Unready,
}

impl InjectionResult {
    pub(super) const ALL: [Self; 4] =
        [Self::Injected, Self::Unchanged, Self::Refused, Self::Unready];

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
            Self::Unready => "unready",
        }
    }
}

/// The result of a review of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionResult {
    /// The pod runs no jobs, or is not a worker.
    Allowed,
    /// The pod runs jobs.
    Refused,
    /// This replica had not read the pods yet.
    Unready,
}

impl EvictionResult {
    pub(super) const ALL: [Self; 3] = [Self::Allowed, Self::Refused, Self::Unready];

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Unready => "unready",
        }
    }
}

/// How the token of an agent is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// By the result of an earlier review.
    Cache,
    /// By the API server's keys, without a call.
    Keys,
    /// It is left to a review by the API server, which may be in flight already, or fail.
    Review,
}

impl TokenCheck {
    pub(super) const ALL: [Self; 3] = [Self::Cache, Self::Keys, Self::Review];

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Keys => "keys",
            Self::Review => "review",
        }
    }
}
