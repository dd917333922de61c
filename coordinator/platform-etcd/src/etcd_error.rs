//! Why a call to etcd failed, and what that says of the member, of the token and of the store.

use std::error::Error;
use std::time::Duration;

use tonic::{Code, Status};

/// How long one call may take: etcd itself waits longer where it has no quorum.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a call to etcd failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EtcdError {
    /// There was no answer in time: a write may still happen.
    #[error("{member} has not answered within {} s", CALL_TIMEOUT.as_secs())]
    Silent {
        /// The member.
        member: String,
    },
    /// The member, or the way to it, refused the call. A write may have happened nevertheless.
    #[error("{member}: {message}{}", advice(.code))]
    Refused {
        /// The member.
        member: String,
        /// The code of the answer.
        code: Code,
        /// What it said.
        message: String,
    },
    /// A file that the connection needs cannot be used.
    #[error("{0}")]
    Files(String),
    /// What the store has cannot be used.
    #[error("{0}")]
    Invalid(String),
}

impl EtcdError {
    /// The refusal of a call to a member.
    pub(crate) fn refused(member: String, status: &Status) -> Self {
        Self::Refused { member, code: status.code(), message: describe(status) }
    }

    /// Whether another member may answer.
    pub(crate) fn is_of_member(&self) -> bool {
        match self {
            Self::Silent { .. } => true,
            Self::Refused { code, .. } => matches!(
                code,
                Code::Unavailable
                    | Code::DeadlineExceeded
                    | Code::Unknown
                    | Code::Internal
                    | Code::Cancelled
                    | Code::DataLoss
                    // A learner answers nobody.
                    | Code::FailedPrecondition
            ),
            Self::Files(_) | Self::Invalid(_) => false,
        }
    }

    /// Whether a new token may help: tokens expire, and a change of users or roles ends all.
    pub(crate) fn is_of_token(&self) -> bool {
        match self {
            Self::Refused { code: Code::Unauthenticated, .. } => true,
            Self::Refused { code: Code::InvalidArgument, message, .. } => {
                message.contains("revision of auth store")
            }
            Self::Silent { .. } | Self::Refused { .. } | Self::Files(_) | Self::Invalid(_) => false,
        }
    }

    /// Whether a wanted revision was compacted away.
    pub(crate) fn is_compacted(&self) -> bool {
        matches!(self, Self::Refused { code: Code::OutOfRange, .. })
    }

    /// Whether a person must fix something before this replica can lead.
    pub(crate) fn needs_a_person(&self) -> bool {
        match self {
            Self::Files(_) | Self::Invalid(_) => true,
            Self::Refused { code, .. } => matches!(
                code,
                Code::PermissionDenied
                    | Code::Unauthenticated
                    | Code::InvalidArgument
                    | Code::FailedPrecondition
            ),
            Self::Silent { .. } => false,
        }
    }
}

/// What to do after a refusal with this code.
fn advice(code: &Code) -> &'static str {
    match *code {
        Code::PermissionDenied => {
            "; grant the role of --etcd-user, or of the common name in --etcd-cert, what \
             docs/OPERATIONS.md lists"
        }
        // etcd answers a wrong password, and no user at all, with an invalid argument.
        Code::Unauthenticated | Code::InvalidArgument => {
            "; check --etcd-user and --etcd-password-file, or --etcd-cert"
        }
        Code::FailedPrecondition => {
            "; leave --etcd-user out where etcd has no users, and name no learner in --etcd"
        }
        Code::ResourceExhausted => {
            "; if the store is full, compact it, defragment it, and disarm the alarm"
        }
        _ => "",
    }
}

/// A status with its causes: that of a transport says only "transport error".
fn describe(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}
