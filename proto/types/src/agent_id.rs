//! The identity of an agent's installation: it survives restarts, and no other agent has it.

use std::fmt;
use std::str::FromStr;

/// An agent's identity: a random number that is drawn once and kept in its state folder. Written
/// as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u128);

/// Why a text is not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not 32 hexadecimal digits")]
pub struct InvalidAgentId;

/// Digits of an identity.
const DIGITS: usize = 32;

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

impl FromStr for AgentId {
    type Err = InvalidAgentId;

    fn from_str(text: &str) -> Result<Self, InvalidAgentId> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match text.len() == DIGITS && text.bytes().all(is_digit) {
            true => u128::from_str_radix(text, 16).map(Self).map_err(|_| InvalidAgentId),
            false => Err(InvalidAgentId),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_identities_are_read() {
        for id in [AgentId(0), AgentId(7), AgentId(u128::MAX)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let short = "7".repeat(31);
        let signed = format!("+{short}");
        for text in ["", "7", &short, &signed, &"G".repeat(32), &"A".repeat(32)] {
            assert_eq!(text.parse::<AgentId>(), Err(InvalidAgentId), "{text:?}");
        }
    }
}
