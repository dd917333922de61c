//! The identity of an agent's installation: it survives restarts, and no other agent has it.

use std::fmt;
use std::str::FromStr;

use crate::hex;

/// An agent's identity: a random number that is drawn once and kept in its state folder. Written
/// as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u128);

/// Why a text is not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not 32 hexadecimal digits")]
pub struct InvalidAgentId;

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(self.0, f)
    }
}

impl FromStr for AgentId {
    type Err = InvalidAgentId;

    fn from_str(text: &str) -> Result<Self, InvalidAgentId> {
        hex::parse(text).map(Self).ok_or(InvalidAgentId)
    }
}
