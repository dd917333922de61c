//! The errors of this crate.

use tonic::{Code, Status};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The worker is draining: no new job will start.
    #[error("the worker is draining: no new job may start")]
    Draining,
    /// The agent refused.
    #[error("{reason}: {message}")]
    Refused {
        /// A reason of the worker API: `no_slot`, `no_lease`, `invalid`, …
        reason: String,
        /// The refusal in words, for people.
        message: String,
    },
    /// A job of this id runs in this process, or waits to run.
    #[error("the job {0:?} already runs or waits to run: use another id")]
    Runs(String),
    /// The agent did not answer.
    #[error("cannot reach the agent: {0}")]
    Unreachable(String),
    /// The address is neither `http://HOST:PORT` nor `unix:PATH`.
    #[error("invalid address {0:?}: expected http://HOST:PORT or unix:PATH")]
    Address(String),
    /// The worker was closed.
    #[error("the worker was closed")]
    Closed,
}

impl Error {
    /// The agent's reason for a refusal; empty for other errors.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Draining => "draining",
            Self::Refused { reason, .. } => reason,
            _ => "",
        }
    }

    pub(crate) fn lost(why: impl ToString) -> Self {
        Self::Unreachable(why.to_string())
    }
}

/// The agent writes `reason: message`. Any other status comes from the connection.
impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let parts = status.message().split_once(": ");
        match (status.code(), parts) {
            (Code::InvalidArgument, _) => {
                Self::Refused { reason: "invalid".into(), message: status.message().into() }
            }
            (Code::FailedPrecondition, Some(("draining", _))) => Self::Draining,
            (Code::FailedPrecondition, Some((reason, message)))
            | (Code::Unavailable, Some((reason @ "stopping", message))) => {
                Self::Refused { reason: reason.into(), message: message.into() }
            }
            _ => Self::Unreachable(format!("{}: {}", status.code(), status.message())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_the_agent_is_a_refusal_and_any_other_a_lost_connection() {
        let no = Error::from(Status::failed_precondition("no_slot: every slot is in use: 1 of 1"));
        assert_eq!(no.reason(), "no_slot");
        assert_eq!(no.to_string(), "no_slot: every slot is in use: 1 of 1");
        assert_eq!(Error::from(Status::failed_precondition("draining: …")), Error::Draining);
        assert_eq!(
            Error::from(Status::unavailable("stopping: the agent is stopping")).reason(),
            "stopping"
        );
        assert_eq!(Error::from(Status::invalid_argument("job_id: empty")).reason(), "invalid");
        assert!(matches!(Error::from(Status::unavailable("tcp: reset")), Error::Unreachable(_)));
    }
}
