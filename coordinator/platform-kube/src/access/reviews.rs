//! What the API server said of tokens, for a while: good news for minutes, and until the token's
//! own end while the API server is away; bad news for seconds, so that a refused peer that dials
//! again and again costs nothing. Tokens are kept as their hashes only.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_types::Moment;
use ring::digest::{SHA256, digest};

use super::identity::Identity;

/// How long good news is as good as new.
const GOOD_FOR: Duration = Duration::from_secs(300);
/// How long bad news is.
const BAD_FOR: Duration = Duration::from_secs(5);
/// Tokens that are remembered as good: twice the workers that a coordinator takes.
const GOOD_MAX: usize = 40_000;
/// Tokens that are remembered as bad.
const BAD_MAX: usize = 4_096;

/// A token's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenHash([u8; 32]);

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Reviews {
    good: HashMap<TokenHash, Good>,
    bad: HashMap<TokenHash, Bad>,
}

#[derive(Debug)]
struct Good {
    identity: Identity,
    reviewed_at: Moment,
    /// When the token ends by its own word; none where it says nothing.
    ends_at: Option<Moment>,
}

#[derive(Debug)]
struct Bad {
    why: String,
    reviewed_at: Moment,
}

/// What is known of a token without asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is this one's.
    Good(Identity),
    /// It was refused a moment ago, and why.
    Bad(String),
    /// It was this one's when it was last looked at; it has not ended since.
    Stale(Identity),
    /// Nothing.
    Nothing,
}

impl TokenHash {
    pub(super) fn of(token: &str) -> Self {
        let hash = digest(&SHA256, token.as_bytes());
        Self(hash.as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }
}

impl Reviews {
    /// What is known of a token; `good_for` is how long good news is as good as new.
    pub(super) fn get(&self, token: &TokenHash, good_for: Duration, now: Moment) -> Known {
        if let Some(bad) = self.bad.get(token)
            && now.since(bad.reviewed_at) < BAD_FOR
        {
            return Known::Bad(bad.why.clone());
        }
        let Some(good) = self.good.get(token) else { return Known::Nothing };
        match good.ends_at {
            Some(end) if now >= end => Known::Nothing,
            _ if now.since(good.reviewed_at) < good_for.min(GOOD_FOR) => {
                Known::Good(good.identity.clone())
            }
            Some(_) => Known::Stale(good.identity.clone()),
            None => Known::Nothing,
        }
    }

    /// The API server vouches for a token that ends at `ends_at`.
    pub(super) fn vouched(
        &mut self,
        token: TokenHash,
        identity: Identity,
        ends_at: Option<Moment>,
        now: Moment,
    ) {
        self.bad.remove(&token);
        if self.good.len() >= GOOD_MAX {
            self.good.retain(|_, good| good.ends_at.is_some_and(|end| now < end));
            evict(&mut self.good, GOOD_MAX, |good| good.reviewed_at);
        }
        self.good.insert(token, Good { identity, reviewed_at: now, ends_at });
    }

    /// The API server refuses a token.
    pub(super) fn refused(&mut self, token: TokenHash, why: String, now: Moment) {
        self.good.remove(&token);
        if self.bad.len() >= BAD_MAX {
            self.bad.retain(|_, bad| now.since(bad.reviewed_at) < BAD_FOR);
            evict(&mut self.bad, BAD_MAX, |bad| bad.reviewed_at);
        }
        self.bad.insert(token, Bad { why, reviewed_at: now });
    }
}

/// Makes room where there is none: the older half goes.
fn evict<T>(map: &mut HashMap<TokenHash, T>, max: usize, at: impl Fn(&T) -> Moment) {
    if map.len() < max {
        return;
    }
    let mut ages: Vec<_> = map.values().map(&at).collect();
    let middle = ages.len() / 2;
    let (_, median, _) = ages.select_nth_unstable(middle);
    let median = *median;
    map.retain(|_, value| at(value) > median);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            username: "system:serviceaccount:ci:default".into(),
            uid: None,
            groups: Vec::new(),
            extra: Default::default(),
        }
    }

    fn at(secs: u64) -> Moment {
        Moment(0) + Duration::from_secs(secs)
    }

    #[test]
    fn good_news_is_new_for_minutes_and_holds_until_the_tokens_end() {
        let mut reviews = Reviews::default();
        let token = TokenHash::of("a");
        reviews.vouched(token, identity(), Some(at(3_000)), at(0));
        let get = |secs| reviews.get(&token, GOOD_FOR, at(secs));
        assert_eq!(get(299), Known::Good(identity()));
        assert_eq!(get(300), Known::Stale(identity()));
        assert_eq!(get(2_999), Known::Stale(identity()));
        assert_eq!(get(3_000), Known::Nothing);
        assert_eq!(reviews.get(&token, Duration::from_secs(10), at(10)), Known::Stale(identity()));
        assert_eq!(reviews.get(&TokenHash::of("b"), GOOD_FOR, at(0)), Known::Nothing);
    }

    #[test]
    fn a_token_that_does_not_say_when_it_ends_is_not_trusted_longer() {
        let mut reviews = Reviews::default();
        let token = TokenHash::of("a");
        reviews.vouched(token, identity(), None, at(0));
        assert_eq!(reviews.get(&token, GOOD_FOR, at(299)), Known::Good(identity()));
        assert_eq!(reviews.get(&token, GOOD_FOR, at(300)), Known::Nothing);
    }

    #[test]
    fn bad_news_holds_for_seconds_and_takes_good_news_back() {
        let mut reviews = Reviews::default();
        let token = TokenHash::of("a");
        reviews.vouched(token, identity(), Some(at(3_000)), at(0));
        reviews.refused(token, "revoked".into(), at(10));
        assert_eq!(reviews.get(&token, GOOD_FOR, at(14)), Known::Bad("revoked".into()));
        assert_eq!(reviews.get(&token, GOOD_FOR, at(15)), Known::Nothing);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut reviews = Reviews::default();
        for number in 0..10 * BAD_MAX as u64 {
            let token = TokenHash::of(&number.to_string());
            reviews.refused(token, "bad".into(), Moment(number));
        }
        assert!(reviews.bad.len() <= BAD_MAX);
        for number in 0..2 * GOOD_MAX as u64 {
            let token = TokenHash::of(&number.to_string());
            reviews.vouched(token, identity(), Some(Moment::NEVER), Moment(number));
        }
        assert!(reviews.good.len() <= GOOD_MAX);
        let last = TokenHash::of(&(2 * GOOD_MAX as u64 - 1).to_string());
        let now = Moment(2 * GOOD_MAX as u64);
        assert_eq!(reviews.get(&last, GOOD_FOR, now), Known::Good(identity()));
    }
}
