//! What a standby makes of what it sees and hears: whether anybody leads. It decides nothing for
//! good: whoever finds the place vacant still has to take it from the Lease as it is then. A wrong
//! guess costs a change of leader, and nothing else.

use std::time::Duration;

use leasehold_types::{Epoch, Moment, TimeBounds};

use super::election::{Look, Sight};

/// The longest time between two judgements.
const JUDGE_MAX: Duration = Duration::from_millis(250);
/// The longest time between two renewals of a leader.
const RENEW_MAX: Duration = Duration::from_secs(2);
/// A leader renews at least so often in the time that its leadership lasts.
const RENEWALS_PER_LEADERSHIP: u32 = 10;

/// How long a leader of this leadership lets pass between two renewals.
pub(crate) fn renewal_interval(leadership: Duration) -> Duration {
    (leadership / RENEWALS_PER_LEADERSHIP).min(RENEW_MAX)
}

/// One standby's view of the leader.
#[derive(Debug)]
pub(crate) struct Vigil {
    /// How this process is named in a Lease that it holds.
    holder: String,
    takeover_after: Duration,
    bounds: TimeBounds,
    /// The Lease as last seen; none before it was looked for.
    lease: Option<Option<Seen>>,
    /// The longest that a leader leads, of all that were seen.
    longest: Duration,
    /// The highest epoch that was seen.
    highest: Epoch,
    /// The API server did not answer when it was last asked.
    blind: bool,
    /// Since when this process has looked and listened without a break.
    attentive_since: Moment,
    judged_at: Option<Moment>,
}

#[derive(Debug)]
struct Seen {
    sight: Sight,
    /// When it was last seen to be renewed.
    moved_at: Moment,
    /// When its leader was first seen.
    since: Moment,
    /// When its leader was last heard.
    heard_at: Option<Moment>,
    /// The connection on which it was heard has broken, and nothing was heard since.
    broken: bool,
    /// After that, nobody took a new one.
    refused: bool,
}

/// What a standby heard of the leader that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It leads this term.
    Sign(Epoch),
    /// The connection has broken.
    Broken,
    /// Nobody listens where it was.
    Refused,
}

/// Whether somebody leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing has been seen yet.
    Unknown,
    /// Somebody does; to be judged again when this time has passed.
    Led(Duration),
    /// Nobody does.
    Vacant(Vacancy),
}

/// Why nobody leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacancy {
    /// There is no Lease.
    Absent,
    /// The Lease was released.
    Released,
    /// This very process holds the Lease, and does not lead: the answer to its taking was lost, or
    /// it could not release.
    Own,
    /// The Lease's time is over.
    Expired,
    /// The leader's process has ended.
    Gone,
    /// There is no sign of the leader's life, neither from it nor on the Lease.
    Silent,
}

impl Vigil {
    pub(crate) fn new(
        holder: String,
        takeover_after: Duration,
        bounds: TimeBounds,
        now: Moment,
    ) -> Self {
        Self {
            holder,
            takeover_after,
            bounds,
            lease: None,
            longest: Duration::ZERO,
            highest: Epoch::default(),
            blind: false,
            attentive_since: now,
            judged_at: None,
        }
    }

    /// The Lease as the API server said it is now.
    pub(crate) fn read(&mut self, look: &Look, now: Moment) {
        self.see(look.sight.clone(), now);
    }

    /// The Lease as the watch tells it, which may be late.
    pub(crate) fn watched(&mut self, sight: Option<Sight>, now: Moment) {
        let last = self.lease.as_ref().and_then(Option::as_ref);
        let stale = last.zip(sight.as_ref()).is_some_and(|(last, sight)| {
            // After a failure anything may have happened, to the store's versions, too.
            !self.blind && sight.version <= last.sight.version
        });
        if !stale {
            self.see(sight, now);
        }
    }

    /// The API server does not answer. While it does not, no renewal can be seen.
    pub(crate) fn blinded(&mut self) {
        self.blind = true;
    }

    /// The leader that is followed was heard, or cannot be.
    pub(crate) fn hear(&mut self, news: News, now: Moment) {
        let Some(seen) = self.lease.as_mut().and_then(Option::as_mut) else { return };
        match news {
            News::Sign(epoch) if seen.sight.epoch == Some(epoch) => {
                seen.heard_at = Some(now);
                seen.broken = false;
                seen.refused = false;
            }
            // It leads no more, or not yet: no sign of a leader's life.
            News::Sign(_) => {}
            News::Broken => seen.broken = seen.heard_at.is_some(),
            News::Refused => seen.refused = seen.broken,
        }
    }

    /// Who holds the Lease, this process apart.
    pub(crate) fn leader(&self) -> Option<&Sight> {
        let seen = self.lease.as_ref()?.as_ref()?;
        let holder = seen.sight.holder.as_ref()?;
        (*holder != self.holder).then_some(&seen.sight)
    }

    /// The highest epoch that was seen.
    pub(crate) fn highest(&self) -> Epoch {
        self.highest
    }

    /// The longest time for which a leader that was seen may lead unseen.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// Whether anybody leads.
    pub(crate) fn judge(&mut self, now: Moment) -> Verdict {
        let last = self.judged_at.replace(now);
        if last.is_some_and(|last| now.since(last) > self.takeover_after.max(JUDGE_MAX * 2)) {
            // This process was stopped or starved: the silence may be its own.
            self.attentive_since = now;
        }
        let Some(lease) = &self.lease else { return Verdict::Unknown };
        let Some(seen) = lease else { return Verdict::Vacant(Vacancy::Absent) };
        let Some(holder) = &seen.sight.holder else { return Verdict::Vacant(Vacancy::Released) };
        if *holder == self.holder {
            return Verdict::Vacant(Vacancy::Own);
        }
        let end = seen.moved_at + self.bounds.outlast(seen.sight.duration);
        if now >= end {
            return Verdict::Vacant(Vacancy::Expired);
        }
        if seen.refused {
            return Verdict::Vacant(Vacancy::Gone);
        }
        let heard_at = seen.heard_at.unwrap_or(seen.since).max(self.attentive_since);
        let silent_at = heard_at + self.takeover_after;
        let interval = renewal_interval(seen.sight.duration);
        let still = self.takeover_after.max(interval + interval / 2);
        let still_at = seen.moved_at.max(self.attentive_since) + still;
        let due = silent_at.max(still_at);
        match now >= due && !self.blind {
            true => Verdict::Vacant(Vacancy::Silent),
            false => Verdict::Led(due.min(end).since(now).clamp(LOOK_AGAIN_MIN, JUDGE_MAX)),
        }
    }

    fn see(&mut self, sight: Option<Sight>, now: Moment) {
        if std::mem::take(&mut self.blind) {
            self.attentive_since = now;
        }
        let last = self.lease.take().flatten();
        let Some(sight) = sight else {
            self.lease = Some(None);
            return;
        };
        self.longest = self.longest.max(sight.duration).max(sight.earlier);
        self.highest = self.highest.max(sight.epoch.unwrap_or_default());
        let seen = match last {
            Some(last) if last.sight.holder == sight.holder && last.sight.epoch == sight.epoch => {
                let moved = last.sight.renewed != sight.renewed;
                let moved_at = if moved { now } else { last.moved_at };
                Seen { sight, moved_at, ..last }
            }
            _ => Seen {
                sight,
                moved_at: now,
                since: now,
                heard_at: None,
                broken: false,
                refused: false,
            },
        };
        self.lease = Some(Some(seen));
    }
}

/// The shortest time between two judgements: none may spin.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(5);
