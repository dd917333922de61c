//! The labels under which the coverage report counts notices and messages.

use leasehold_agent_core::effect::Notice as AgentNotice;
use leasehold_coordinator_core::effect::{Freed, Notice};
use leasehold_types::message::{CoordinatorMessage, RefusalReason};

/// The label of an agent's notice.
pub(crate) fn of_agent_notice(notice: &AgentNotice) -> &'static str {
    match notice {
        AgentNotice::Welcomed(_) => "agent welcomed",
        AgentNotice::Refused(..) => "agent refused",
        AgentNotice::Unlinked(_) => "agent unlinked",
        AgentNotice::PoolGranted(..) => "agent took a pool",
        AgentNotice::PoolExpired(_) => "agent's pool expired",
        AgentNotice::NewerGeneration { .. } => "agent is of an older generation",
        AgentNotice::PoolRenewed(..) => "agent's pool renewed",
        AgentNotice::StreamGranted(..) => "agent took a stream",
        AgentNotice::StreamRevoked(..) => "agent was asked for a stream",
        AgentNotice::StreamKept(..) => "agent keeps a stream after all",
        AgentNotice::StreamReleased(..) => "agent released a stream",
        AgentNotice::StreamExpired(..) => "agent's stream expired",
        AgentNotice::JobBegan(_) => "job began",
        AgentNotice::JobEnded(_) => "job ended",
        AgentNotice::DrainStarted => "agent began to drain",
        AgentNotice::DrainOver(_) => "agent no longer drains",
        AgentNotice::Failing(_) => "agent's worker fails",
        AgentNotice::Recovered => "agent's worker recovered",
        AgentNotice::JournalFailed(_) => "journal failed",
        AgentNotice::ProtocolViolation(_) => "agent saw a protocol violation",
        AgentNotice::OtherCell { .. } => "an agent refuses another cell",
        AgentNotice::IncarnationRaised(_) => "incarnation raised",
    }
}

/// The label of a replica's notice.
pub(crate) fn of_notice(notice: &Notice) -> &'static str {
    match notice {
        Notice::Elected(_) => "elected",
        Notice::Deposed(_) => "deposed",
        Notice::HoldEnded(_) => "hold ended",
        Notice::Joined(_) => "worker joined",
        Notice::Disconnected(_) => "worker disconnected",
        Notice::Lost(_) => "worker lost",
        Notice::GivenUp { .. } => "worker given up",
        Notice::DrainStarted(_) => "drain started",
        Notice::Failing { .. } => "worker fails",
        Notice::NameRefused { .. } => "name refused to another agent",
        Notice::Recovered(_) => "worker recovered",
        Notice::Gone(_) => "worker gone",
        Notice::PoolGranted { .. } => "pool granted",
        Notice::StreamGranted { .. } => "stream granted",
        Notice::StreamRevoked { .. } => "stream revoked",
        Notice::StreamFreed { how: Freed::Released, .. } => "stream freed: released",
        Notice::StreamFreed { how: Freed::Expired, .. } => "stream freed: expired",
        Notice::StreamFreed { how: Freed::Gone, .. } => "stream freed: gone",
        Notice::Pipeline { .. } => "pipeline in another state",
        Notice::Binding { .. } => "binding in another state",
        Notice::Endpoints { .. } => "endpoints changed",
        Notice::EpochAhead { .. } => "an agent's epoch is ahead",
        Notice::EpochRepeated { .. } => "another leader had this epoch",
        Notice::ProtocolViolation { .. } => "coordinator saw a protocol violation",
    }
}

/// The label of a replica's message.
pub(crate) fn of_message(message: &CoordinatorMessage) -> &'static str {
    match message {
        CoordinatorMessage::Welcome(_) => "sent: welcome",
        CoordinatorMessage::Grant(grant) if grant.snapshot => "sent: snapshot",
        CoordinatorMessage::Grant(grant) if !grant.tables.is_empty() => "sent: tables",
        CoordinatorMessage::Grant(grant) if grant.pool.is_none() && grant.streams.is_empty() => {
            "sent: renewal"
        }
        CoordinatorMessage::Grant(_) => "sent: change",
        CoordinatorMessage::Refusal(refusal) => match refusal.reason {
            RefusalReason::NotLeader(_) => "refused: not leader",
            RefusalReason::UnknownCluster => "refused: unknown cluster",
            RefusalReason::NewerIncarnation(_) => "refused: newer incarnation",
            RefusalReason::NewerLink => "refused: newer link",
            RefusalReason::Protocol => "refused: protocol",
            RefusalReason::Limit => "refused: limit",
            RefusalReason::Invalid => "refused: invalid",
            RefusalReason::Unauthorized => "refused: unauthorized",
            RefusalReason::GoAway => "refused: go away",
            RefusalReason::EpochAhead => "refused: epoch ahead",
            RefusalReason::NameTaken => "refused: name taken",
            RefusalReason::OtherCell => "refused: other cell",
            RefusalReason::Left => "goodbye answered",
        },
    }
}
