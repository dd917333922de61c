//! When reports and beats were sent, on any link.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_types::{Moment, Nonce};

/// The most send times that are remembered per lease time.
const SENT_PER_TTL: u32 = 128;
/// The most send times that are remembered: those of two lease times.
const SENT_MAX: usize = 2 * SENT_PER_TTL as usize;

/// When reports and beats were sent, on any link.
///
/// An agent that releases many streams sends many beats before one is answered. So only some times
/// are kept: a beat that closely follows another counts from when that one was sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    /// Ordered by nonce and time.
    times: VecDeque<(Nonce, Moment)>,
    pub(super) last: Option<Moment>,
}

impl Sent {
    /// Notes that a report or beat with this nonce is sent, while leases last for `ttl`.
    pub(super) fn note(&mut self, nonce: Nonce, ttl: Duration, now: Moment) {
        self.last = Some(now);
        if self.times.back().is_some_and(|(_, at)| now < *at + ttl / SENT_PER_TTL) {
            return;
        }
        self.times.push_back((nonce, now));
        if self.times.len() > SENT_MAX {
            self.times.pop_front();
        }
    }

    /// The newest remembered time of this nonce or an earlier one.
    pub(super) fn at(&self, nonce: Nonce) -> Option<Moment> {
        let before = self.times.partition_point(|(sent, _)| *sent <= nonce);
        self.times.get(before.checked_sub(1)?).map(|(_, at)| *at)
    }
}
