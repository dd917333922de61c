//! A replica's driver: the events that wait for its core, and where its turn is.
//!
//! Invariant: as in the real driver, a turn takes events of the platform first, then of the
//! sessions, then orders of people, each in bounded number.

use std::collections::VecDeque;

use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::Event;
use leasehold_coordinator_core::turn::{
    PLATFORM_BATCH_MAX, ReadWatermark, Turn, WATERMARK_TICK, Watermark,
};
use leasehold_types::{Epoch, Moment};

use crate::system::clock::{Clock, Real};

/// The most orders of people in one turn.
const ORDER_BATCH_MAX: usize = 16;

/// This many turns of one length fit into a lease, or more: longer ones are remembered.
const TURNS_PER_TTL: Real = 16;

/// The driver between a replica's core and the world.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The term under which grants may be written, as far as the driver has taken it in.
    pub gate: Option<(Epoch, Moment)>,
    pub platform: VecDeque<Event>,
    pub sessions: VecDeque<(Moment, Event)>,
    pub orders: VecDeque<Event>,
    pub phase: Phase,
    pub taken: Watermark,
    pub watermark: ReadWatermark,
    pub last_beat: Real,
    /// When it last did something.
    pub moved_at: Real,
    /// The next turn after this time is long.
    pub long_at: Real,
    /// When the present turn began, and the begin and end of long ones within a lease.
    pub began: Real,
    pub long_turns: VecDeque<(Real, Real)>,
    /// The core's effects, until they are carried out.
    pub effects: Vec<Effect>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// It waits for something to do.
    Idle,
    /// Its turn is about to begin.
    Due,
    /// It takes the waiting events.
    Taking(Taking),
    /// It has settled, and is about to carry out the core's effects.
    Settled,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Taking {
    pub turn: Turn,
    /// Up to then everything had been read when the turn began.
    pub read: Moment,
    pub platform: usize,
    pub orders: usize,
}

impl Driver {
    /// The driver of a process that starts now.
    pub(crate) fn new(clock: Clock, t: Real) -> Self {
        Self {
            gate: None,
            platform: VecDeque::new(),
            sessions: VecDeque::new(),
            orders: VecDeque::new(),
            phase: Phase::Idle,
            taken: Watermark::default(),
            watermark: ReadWatermark::new(clock.local(t)),
            last_beat: t,
            moved_at: t,
            long_at: t,
            began: t,
            long_turns: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Up to when everything that had arrived was read. This also adds the missing beats of the
    /// watermark: it ticks whenever the process is not stopped.
    pub(crate) fn read_by(&mut self, clock: Clock, paused_until: Real, t: Real) -> Moment {
        let every = WATERMARK_TICK.as_nanos() as Real;
        let mut next = (self.last_beat + every).max(paused_until);
        while next <= t {
            self.watermark.tick(clock.local(next));
            self.last_beat = next;
            next += every;
        }
        self.watermark.read()
    }

    /// Events of sessions that the core has not taken yet, and when they were read.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &(Moment, Event)> {
        self.sessions.iter()
    }

    /// The time since then that long turns took, the present one included.
    pub(crate) fn time_in_turns(&self, since: Real, t: Real) -> Real {
        let goes_on = matches!(self.phase, Phase::Taking(_) | Phase::Settled);
        let turns = self.long_turns.iter().copied().chain(goes_on.then_some((self.began, t)));
        turns.map(|(began, ended)| ended.saturating_sub(began.max(since))).sum()
    }

    pub(crate) fn end_turn(&mut self, ttl: Real, t: Real) {
        self.phase = Phase::Idle;
        self.long_turns.retain(|(_, ended)| ended + ttl > t);
        if t - self.began > ttl / TURNS_PER_TTL {
            self.long_turns.push_back((self.began, t));
        }
    }

    pub(crate) fn waits(&self) -> bool {
        !(self.platform.is_empty() && self.sessions.is_empty() && self.orders.is_empty())
    }

    /// The next event of this turn, and from when it counts.
    pub(crate) fn next(&mut self, taking: &mut Taking, now: Moment) -> Option<(Moment, Event)> {
        if taking.platform < PLATFORM_BATCH_MAX
            && let Some(event) = self.platform.pop_front()
        {
            taking.platform += 1;
            return Some((taking.turn.stamp(now), event));
        }
        if taking.turn.takes(now) {
            if let Some((arrived, event)) = self.sessions.pop_front() {
                self.taken.took(arrived);
                return Some((taking.turn.stamp(arrived), event));
            }
            self.taken.emptied(now);
        }
        if taking.orders < ORDER_BATCH_MAX
            && let Some(event) = self.orders.pop_front()
        {
            taking.orders += 1;
            return Some((taking.turn.stamp(now), event));
        }
        None
    }
}
