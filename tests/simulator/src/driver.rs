//! A replica's driver: what waits for its core, and turns that take time.
//!
//! Invariant: as in the real driver, a turn takes the platform's words first, then the sessions',
//! then people's, each only so many; a message is stamped when it arrives, and what the core wants
//! is carried out at the turn's end.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::turn::{
    PLATFORM_BATCH_MAX, PULSE, Pulse, Turn, Watchdog, Watermark,
};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Epoch, Moment};

use super::clock::{Clock, MS, Real};
use super::faults::pick;
use super::names;
use super::queue::Happening;
use super::replica::WAKE_GAP_MIN;
use super::world::World;

/// People's orders that are taken in one turn.
const ORDER_BATCH_MAX: usize = 16;

/// The most that an event or a unit of work takes once faults have ended.
const CALM_COST_MAX: Real = MS / 10;

/// The longest turn of a driver that is busy and makes progress.
const BUSY_TURN_MAX: Real = 600 * MS;

/// So many turns of one length fit into a lease, or more: longer ones are remembered.
const TURNS_PER_TTL: Real = 16;

/// How long a replica's turns take.
#[derive(Clone, Debug)]
pub(super) struct TurnCosts {
    /// Each event.
    event: Real,
    /// Each unit of work that the core did.
    work: Real,
    /// Now and then, after about so long, a turn takes a long time before it takes what waits, as
    /// a question of somebody may; 0 for never.
    long_every: Real,
    /// The most that it takes.
    long_max: Real,
    /// The most that a unit of work takes once faults have ended.
    work_calm_max: Real,
}

/// So many units of work fit into a lease, once faults have ended, where the fleet is large: a
/// leader that is slower than that can renew no leases beside its plans, whatever it does.
const UNITS_PER_TTL: Real = 50_000;

impl TurnCosts {
    /// The costs of a seed: most often next to nothing.
    pub(super) fn new(rng: &mut Rng, ttl: Real) -> Self {
        let nothing =
            Self { event: 0, work: 0, long_every: 0, long_max: 0, work_calm_max: CALM_COST_MAX };
        match rng.u8(0..9) {
            0..=2 => nothing,
            3 => Self { event: MS / 100, work: MS / 20, ..nothing },
            4 => Self { event: MS / 2, work: MS, ..nothing },
            5 => Self { event: MS / 100, work: *pick(rng, &[5, 20]) * MS, ..nothing },
            _ => {
                let long_max = ttl * *pick(rng, &[3, 4, 4, 12]) / 8;
                let long_every = long_max * *pick(rng, &[1, 2, 4]);
                Self { event: MS / 100, work: MS / 20, long_every, long_max, ..nothing }
            }
        }
    }

    /// The costs of a driver that is busy all the time: its turns delay nothing for as long as a
    /// lease lasts.
    pub(super) fn busy(ttl: Real) -> Self {
        let long_max = BUSY_TURN_MAX.min(ttl / 4);
        let (long_every, work_calm_max) = (long_max * 2, CALM_COST_MAX);
        Self { event: MS / 100, work: MS / 20, long_every, long_max, work_calm_max }
    }

    /// The same beside a large fleet.
    pub(super) fn enlarged(self, ttl: Real) -> Self {
        Self { work_calm_max: self.work_calm_max.min(ttl / UNITS_PER_TTL), ..self }
    }

    /// No more faults: turns are short, unless the driver is busy all the time.
    pub(super) fn calm(&mut self, busy: bool) {
        self.event = self.event.min(CALM_COST_MAX);
        self.work = self.work.min(self.work_calm_max);
        if !busy {
            self.long_every = 0;
        }
    }

    /// The longest turn.
    pub(super) fn longest(&self) -> Real {
        if self.long_every == 0 { 0 } else { self.long_max }
    }
}

/// What stands between a replica's core and the world.
#[derive(Debug)]
pub(super) struct Driver {
    /// The term under which grants may be written, as far as the driver has taken it in.
    pub gate: Option<(Epoch, Moment)>,
    platform: VecDeque<Event>,
    sessions: VecDeque<(Moment, Event)>,
    orders: VecDeque<Event>,
    phase: Phase,
    taken: Watermark,
    pulse: Pulse,
    last_beat: Real,
    /// When it last did something.
    moved_at: Real,
    /// A turn takes long when this is reached.
    long_at: Real,
    /// When the present turn began, and the begin and end of long ones within a lease.
    began: Real,
    long_turns: VecDeque<(Real, Real)>,
    /// What the core wants, until it is carried out.
    pub effects: Vec<Effect>,
}

#[derive(Debug)]
enum Phase {
    /// It waits for something to do.
    Idle,
    /// Its turn is about to begin.
    Due,
    /// It takes what waits.
    Taking(Taking),
    /// It has settled, and is about to carry out what the core wants.
    Settled,
}

#[derive(Clone, Copy, Debug)]
struct Taking {
    turn: Turn,
    /// Up to then everything had been read when the turn began.
    read: Moment,
    platform: usize,
    orders: usize,
}

impl Driver {
    /// The driver of a process that starts now.
    pub(super) fn new(clock: Clock, t: Real) -> Self {
        Self {
            gate: None,
            platform: VecDeque::new(),
            sessions: VecDeque::new(),
            orders: VecDeque::new(),
            phase: Phase::Idle,
            taken: Watermark::default(),
            pulse: Pulse::new(clock.local(t)),
            last_beat: t,
            moved_at: t,
            long_at: t,
            began: t,
            long_turns: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Up to when everything that had arrived was read. The pulse is caught up with: it beat all
    /// the time that the process was not stopped.
    pub(super) fn read_by(&mut self, clock: Clock, paused_until: Real, t: Real) -> Moment {
        let every = PULSE.as_nanos() as Real;
        let mut next = (self.last_beat + every).max(paused_until);
        while next <= t {
            self.pulse.beat(clock.local(next));
            self.last_beat = next;
            next += every;
        }
        self.pulse.read()
    }

    /// What sessions said that is not taken yet, and when it was read.
    pub(super) fn unheard(&self) -> impl Iterator<Item = &(Moment, Event)> {
        self.sessions.iter()
    }

    /// The time since then that long turns took, the present one included.
    pub(super) fn time_in_turns(&self, since: Real, t: Real) -> Real {
        let goes_on = matches!(self.phase, Phase::Taking(_) | Phase::Settled);
        let turns = self.long_turns.iter().copied().chain(goes_on.then_some((self.began, t)));
        turns.map(|(began, ended)| ended.saturating_sub(began.max(since))).sum()
    }

    fn end_turn(&mut self, ttl: Real, t: Real) {
        self.phase = Phase::Idle;
        self.long_turns.retain(|(_, ended)| ended + ttl > t);
        if t - self.began > ttl / TURNS_PER_TTL {
            self.long_turns.push_back((self.began, t));
        }
    }

    fn waits(&self) -> bool {
        !(self.platform.is_empty() && self.sessions.is_empty() && self.orders.is_empty())
    }

    /// The next event of this turn, and from when it counts.
    fn next(&mut self, taking: &mut Taking, now: Moment) -> Option<(Moment, Event)> {
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

impl World {
    /// An event reaches a replica's driver.
    pub(super) fn core_event(&mut self, replica: usize, event: Event) {
        if !self.replicas[replica].is_up() {
            return;
        }
        let now = self.local_of_replica(replica);
        let driver = &mut self.replicas[replica].driver;
        match event {
            Event::Hello(..)
            | Event::Report(..)
            | Event::Beat(..)
            | Event::Closed(_)
            | Event::Sent(_) => driver.sessions.push_back((now, event)),
            Event::Drain(_) => driver.orders.push_back(event),
            Event::Wake => {}
            Event::Desired(_)
            | Event::Elected(_)
            | Event::Renewed(_)
            | Event::Deposed { .. }
            | Event::TermStands { .. }
            | Event::Registered(_)
            | Event::Gone(_) => driver.platform.push_back(event),
        }
        self.wake_driver(replica);
    }

    /// Whether a replica's driver makes progress. The links of one that does
    /// not are ended by its watchdog.
    pub(super) fn progresses(&mut self, replica: usize) -> bool {
        let node = &self.replicas[replica];
        let idle = matches!(node.driver.phase, Phase::Idle);
        if idle || self.t < node.driver.moved_at + Watchdog::patience().as_nanos() as Real {
            return true;
        }
        self.cover.hit("fault: driver hangs");
        let run = node.run;
        for link in 0..self.network.links.len() {
            let line = &self.network.links[link];
            if line.replica == replica && line.replica_run == run && line.replica_open {
                self.close_conn(link);
                self.core_event(replica, Event::Closed(ConnId(link as u64)));
            }
        }
        false
    }

    /// A driver that waits begins a turn, at once or a little later.
    fn wake_driver(&mut self, replica: usize) {
        let node = &mut self.replicas[replica];
        if !matches!(node.driver.phase, Phase::Idle) {
            return;
        }
        node.driver.phase = Phase::Due;
        let run = node.run;
        match self.rng.u8(0..8) {
            0 => {
                let pause = self.rng.u64(0..5 * MS);
                self.after(pause, Happening::Turn { replica, run });
            }
            _ => self.turn(replica),
        }
    }

    /// A driver goes on, until it waits or something takes time.
    pub(super) fn turn(&mut self, replica: usize) {
        loop {
            let now = self.local_of_replica(replica);
            let (t, run) = (self.t, self.replicas[replica].run);
            let node = &mut self.replicas[replica];
            if node.core.is_none() {
                return;
            }
            let read = node.driver.read_by(node.clock, node.paused_until, t);
            node.driver.moved_at = t;
            let cost = match &mut node.driver.phase {
                Phase::Idle => return,
                Phase::Due => {
                    node.driver.began = t;
                    let turn = Turn::begin(now);
                    let taking = Taking { turn, read, platform: 0, orders: 0 };
                    node.driver.phase = Phase::Taking(taking);
                    self.pause_of_turn(replica)
                }
                Phase::Taking(taking) => {
                    let mut taking = *taking;
                    let next = node.driver.next(&mut taking, now);
                    node.driver.phase = Phase::Taking(taking);
                    match next {
                        Some((at, event)) => self.take_event(replica, event, at),
                        None => {
                            node.driver.phase = Phase::Settled;
                            let heard = node.driver.taken.heard(taking.read);
                            self.settle(replica, now, heard) + self.retake(replica)
                        }
                    }
                }
                Phase::Settled => {
                    node.driver.end_turn(self.profile.ttl_real(), t);
                    self.carry_out(replica);
                    self.after_settle(replica);
                    let node = &mut self.replicas[replica];
                    let more = node.core.as_ref().is_some_and(|core| core.has_more());
                    if !node.driver.waits() && !more {
                        return;
                    }
                    node.driver.phase = Phase::Due;
                    if more {
                        self.cover.hit("work went on in the next turn");
                        WAKE_GAP_MIN
                    } else {
                        0
                    }
                }
            };
            if cost > 0 {
                self.after(cost, Happening::Turn { replica, run });
                return;
            }
        }
    }

    /// How long this turn takes before it takes what waits.
    fn pause_of_turn(&mut self, replica: usize) -> Real {
        let TurnCosts { long_every, long_max, .. } = self.profile.turns;
        let driver = &mut self.replicas[replica].driver;
        if long_every == 0 || self.t < driver.long_at {
            return 0;
        }
        self.cover.hit("fault: long turn");
        let pause = self.rng.u64(long_max / 4..=long_max);
        driver.long_at = self.t + pause + self.rng.u64(long_every / 2..=long_every * 3 / 2);
        pause
    }

    /// The core takes an event; how long that takes.
    fn take_event(&mut self, replica: usize, event: Event, at: Moment) -> Real {
        // What a link said before it was closed is said to nobody; a goodbye still counts.
        if let Event::Hello(conn, ..) | Event::Report(conn, _) = &event
            && self.network.links.get(conn.0 as usize).is_some_and(|link| !link.replica_open)
        {
            self.cover.hit("report of a closed link left out");
            return 0;
        }
        self.trace.say(self.t, || format!("        c{replica} <- {event:?}"));
        self.note_heard(replica, &event);
        let node = &mut self.replicas[replica];
        let Some(core) = node.core.as_mut() else { return 0 };
        let gate = &mut node.driver.gate;
        match &event {
            Event::Elected(elected) => *gate = Some((elected.epoch, elected.until)),
            Event::Renewed(renewed) => {
                if let Some((_, until)) = gate.as_mut().filter(|(of, _)| *of == renewed.epoch) {
                    *until = renewed.until;
                }
            }
            Event::Deposed { .. } => *gate = None,
            _ => {}
        }
        let hello = match &event {
            Event::Hello(_, hello, _) => Some(hello.clone()),
            _ => None,
        };
        core.handle(event, at);
        let work = core.take_cost();
        self.note_effects(replica);
        if let Some(hello) = hello {
            self.check_wait(replica, &hello);
        }
        self.profile.turns.event + self.profile.turns.work * Real::from(work)
    }

    /// The core decides; how long that takes.
    fn settle(&mut self, replica: usize, now: Moment, heard: Moment) -> Real {
        let Some(core) = self.replicas[replica].core.as_mut() else { return 0 };
        core.settle(now, heard);
        let work = core.take_cost();
        self.note_effects(replica);
        let took = self.profile.turns.work * Real::from(work);
        if took > self.profile.ttl_real() / 4 {
            self.cover.hit("fault: long settle");
        }
        took
    }

    /// What the core says is known at once; what it wants is carried out at the turn's end.
    fn note_effects(&mut self, replica: usize) {
        self.note_desired(replica);
        while let Some(effect) = self.replicas[replica]
            .core
            .as_mut()
            .and_then(leasehold_coordinator_core::Core::poll_effect)
        {
            self.trace.say(self.t, || format!("        c{replica} -> {effect:?}"));
            match effect {
                Effect::Notice(notice) => {
                    self.cover.hit(names::of_notice(&notice));
                    self.observe_notice(replica, &notice);
                }
                effect => {
                    self.check_credits(replica, &effect);
                    self.replicas[replica].driver.effects.push(effect);
                }
            }
        }
    }

    /// What is in force since the core has read its manifest to the end.
    fn note_desired(&mut self, replica: usize) {
        let node = &mut self.replicas[replica];
        let Some(core) = node.core.as_ref() else { return };
        if !Arc::ptr_eq(&node.in_force, core.desired()) {
            node.in_force = Arc::clone(core.desired());
            node.desired_taken += 1;
            let caps = node.in_force.clusters.iter();
            node.jobs_max = caps.map(|(name, c)| (name.clone(), c.jobs_max)).collect();
        }
    }

    fn carry_out(&mut self, replica: usize) {
        for effect in std::mem::take(&mut self.replicas[replica].driver.effects) {
            self.core_effect(replica, effect);
        }
    }

    /// Whether a grant of this epoch may be written now.
    pub(super) fn gate_is_open(&self, replica: usize, epoch: Epoch) -> bool {
        let now = self.local_of_replica(replica);
        let over = |until| now >= until && !mutation::on(Mutation::GrantAfterTerm);
        let gate = self.replicas[replica].driver.gate;
        gate.is_some_and(|(of, until)| of == epoch && !over(until))
    }
}
