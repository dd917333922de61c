//! A cache of token reviews. An accepted token is cached for minutes, and until it expires while
//! the API server is unreachable. A rejected one is cached for seconds, so that a peer that
//! reconnects in a loop causes few reviews. Only hashes of tokens are kept.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_types::Moment;
use ring::digest::{SHA256, digest};

use super::identity::Identity;

/// How long an accepted token needs no new review.
const ACCEPTED_FOR: Duration = Duration::from_secs(300);
/// How long a rejected token needs no new review.
const REJECTED_FOR: Duration = Duration::from_secs(5);
/// The most accepted tokens: twice the most workers of a coordinator.
const ACCEPTED_MAX: usize = 40_000;
/// The most rejected tokens.
const REJECTED_MAX: usize = 4_096;

/// A token's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenHash([u8; 32]);

/// The cached reviews.
#[derive(Debug, Default)]
pub(super) struct TokenCache {
    accepted: HashMap<TokenHash, Accepted>,
    rejected: HashMap<TokenHash, Rejected>,
}

#[derive(Debug)]
struct Accepted {
    identity: Identity,
    reviewed_at: Moment,
    /// The token's own expiry time, if it has one.
    expires_at: Option<Moment>,
}

#[derive(Debug)]
struct Rejected {
    why: String,
    reviewed_at: Moment,
}

/// What the cache knows of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CachedReview {
    /// It was accepted, and the review is still fresh.
    Accepted(Identity),
    /// It was rejected seconds ago, for this reason.
    Rejected(String),
    /// It was accepted earlier and has not expired.
    Stale(Identity),
    /// The cache has no valid review.
    Unknown,
}

impl TokenHash {
    pub(super) fn of(token: &str) -> Self {
        let hash = digest(&SHA256, token.as_bytes());
        Self(hash.as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }
}

impl TokenCache {
    /// What the cache knows of a token; after `fresh_for` an accepted token is stale.
    pub(super) fn get(&self, token: &TokenHash, fresh_for: Duration, now: Moment) -> CachedReview {
        if let Some(rejected) = self.rejected.get(token)
            && now.since(rejected.reviewed_at) < REJECTED_FOR
        {
            return CachedReview::Rejected(rejected.why.clone());
        }
        let Some(accepted) = self.accepted.get(token) else { return CachedReview::Unknown };
        match accepted.expires_at {
            Some(end) if now >= end => CachedReview::Unknown,
            _ if now.since(accepted.reviewed_at) < fresh_for.min(ACCEPTED_FOR) => {
                CachedReview::Accepted(accepted.identity.clone())
            }
            Some(_) => CachedReview::Stale(accepted.identity.clone()),
            None => CachedReview::Unknown,
        }
    }

    /// Stores that the API server accepts a token that expires at `expires_at`.
    pub(super) fn accept(
        &mut self,
        token: TokenHash,
        identity: Identity,
        expires_at: Option<Moment>,
        now: Moment,
    ) {
        self.rejected.remove(&token);
        if self.accepted.len() >= ACCEPTED_MAX {
            self.accepted.retain(|_, accepted| accepted.expires_at.is_some_and(|end| now < end));
            evict(&mut self.accepted, ACCEPTED_MAX, |accepted| accepted.reviewed_at);
        }
        self.accepted.insert(token, Accepted { identity, reviewed_at: now, expires_at });
    }

    /// Stores that the API server rejects a token.
    pub(super) fn reject(&mut self, token: TokenHash, why: String, now: Moment) {
        self.accepted.remove(&token);
        if self.rejected.len() >= REJECTED_MAX {
            self.rejected.retain(|_, rejected| now.since(rejected.reviewed_at) < REJECTED_FOR);
            evict(&mut self.rejected, REJECTED_MAX, |rejected| rejected.reviewed_at);
        }
        self.rejected.insert(token, Rejected { why, reviewed_at: now });
    }
}

/// Drops the older half of a full map.
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
    fn an_accepted_token_is_fresh_for_minutes_and_valid_until_it_expires() {
        let mut token_cache = TokenCache::default();
        let token = TokenHash::of("a");
        token_cache.accept(token, identity(), Some(at(3_000)), at(0));
        let get = |secs| token_cache.get(&token, ACCEPTED_FOR, at(secs));
        assert_eq!(get(299), CachedReview::Accepted(identity()));
        assert_eq!(get(300), CachedReview::Stale(identity()));
        assert_eq!(get(2_999), CachedReview::Stale(identity()));
        assert_eq!(get(3_000), CachedReview::Unknown);
        assert_eq!(
            token_cache.get(&token, Duration::from_secs(10), at(10)),
            CachedReview::Stale(identity())
        );
        assert_eq!(
            token_cache.get(&TokenHash::of("b"), ACCEPTED_FOR, at(0)),
            CachedReview::Unknown
        );
    }

    #[test]
    fn a_token_without_expiry_is_not_used_beyond_its_review() {
        let mut token_cache = TokenCache::default();
        let token = TokenHash::of("a");
        token_cache.accept(token, identity(), None, at(0));
        assert_eq!(
            token_cache.get(&token, ACCEPTED_FOR, at(299)),
            CachedReview::Accepted(identity())
        );
        assert_eq!(token_cache.get(&token, ACCEPTED_FOR, at(300)), CachedReview::Unknown);
    }

    #[test]
    fn a_rejected_token_is_cached_for_seconds_and_replaces_an_accepted_one() {
        let mut token_cache = TokenCache::default();
        let token = TokenHash::of("a");
        token_cache.accept(token, identity(), Some(at(3_000)), at(0));
        token_cache.reject(token, "revoked".into(), at(10));
        assert_eq!(
            token_cache.get(&token, ACCEPTED_FOR, at(14)),
            CachedReview::Rejected("revoked".into())
        );
        assert_eq!(token_cache.get(&token, ACCEPTED_FOR, at(15)), CachedReview::Unknown);
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut token_cache = TokenCache::default();
        for number in 0..10 * REJECTED_MAX as u64 {
            let token = TokenHash::of(&number.to_string());
            token_cache.reject(token, "bad".into(), Moment(number));
        }
        assert!(token_cache.rejected.len() <= REJECTED_MAX);
        for number in 0..2 * ACCEPTED_MAX as u64 {
            let token = TokenHash::of(&number.to_string());
            token_cache.accept(token, identity(), Some(Moment::NEVER), Moment(number));
        }
        assert!(token_cache.accepted.len() <= ACCEPTED_MAX);
        let last = TokenHash::of(&(2 * ACCEPTED_MAX as u64 - 1).to_string());
        let now = Moment(2 * ACCEPTED_MAX as u64);
        assert_eq!(token_cache.get(&last, ACCEPTED_FOR, now), CachedReview::Accepted(identity()));
    }
}
