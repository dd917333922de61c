//! Numbers whose only meaning is their order: each is its own type, so that none is compared
//! with another kind.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The number after this one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The leadership term; grows with every new leader. 0 means none yet.
    Epoch
}
number! {
    /// Orders the agents of one worker: a restarted agent's is higher. Only its
    /// order means anything; it is never read as a time.
    Incarnation
}
number! {
    /// Counts one agent's connections, to distinguish older ones from newer.
    LinkNumber
}
number! {
    /// Counts the grants to one worker within one epoch.
    GrantNumber
}
number! {
    /// Counts one agent's reports and beats; a grant echoes the newest that the coordinator has.
    Nonce
}

/// The identity of a leadership term, drawn when the term was taken. A store that was put back from
/// a copy gives a number out again, to another leader: an agent tells both apart by this. 0 where
/// unknown, as in earlier releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TermId(pub u64);

impl TermId {
    /// Whether it is known that these are two terms.
    #[must_use]
    pub fn differs_from(self, other: Self) -> bool {
        self != other && self != Self(0) && other != Self(0)
    }
}

/// The fencing token of a lease: strictly increasing per stream and per pool lease, across
/// owners and leaders. Written `epoch.seq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Token {
    /// The leadership term that granted the lease.
    pub epoch: Epoch,
    /// The position within the term.
    pub seq: u64,
}

impl Token {
    /// A text of 41 characters that compares as the token does, for a store that compares texts.
    #[must_use]
    pub fn sortable(self) -> String {
        format!("{:020}.{:020}", self.epoch.0, self.seq)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}

impl std::str::FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || InvalidToken(text.chars().take(64).collect());
        let (epoch, seq) = text.split_once('.').ok_or_else(wrong)?;
        Ok(Self {
            epoch: Epoch(epoch.parse().map_err(|_| wrong())?),
            seq: seq.parse().map_err(|_| wrong())?,
        })
    }
}

/// A text that is not `epoch.seq`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a token: it is written EPOCH.SEQ, as in 8.17")]
pub struct InvalidToken(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_ordered_by_epoch_first_and_reads_back_what_it_prints() {
        let old = Token { epoch: Epoch(7), seq: 900 };
        let new = Token { epoch: Epoch(8), seq: 1 };
        assert!(old < new);
        assert_eq!(new.to_string().parse(), Ok(new));
        assert!(old.sortable() < new.sortable() && new.sortable().len() == 41);
        assert_eq!(new.sortable().parse(), Ok(new));
        for text in ["", "8", "8.", ".1", "8.1.2", "-1.2", "8. 1"] {
            assert!(text.parse::<Token>().is_err(), "{text:?}");
        }
    }
}
