//! The profile of one seed: sizes, times, how often each fault comes, and how long work takes.

use std::ops::RangeInclusive;
use std::time::Duration;

use fastrand::Rng;
use leasehold_types::TimeBounds;

use crate::system::clock::{MS, Real};
use crate::system::faults::{BIAS_FACTOR, FAULTS, Fault, FaultBias, Sequence};

/// The most that an event or a unit of work takes once faults have ended.
const CALM_COST_MAX: Real = MS / 10;

/// The longest turn of a driver that is busy and makes progress.
const BUSY_TURN_MAX: Real = 600 * MS;

/// How long a replica's turns take.
#[derive(Clone, Debug)]
pub(crate) struct TurnCosts {
    /// Each event.
    pub event: Real,
    /// Each unit of work that the core did.
    pub work: Real,
    /// About this often, a turn pauses before it takes the waiting events, as
    /// an admin query may; 0 for never.
    pub long_every: Real,
    /// The most that it takes.
    pub long_max: Real,
    /// The most that a unit of work takes once faults have ended.
    work_calm_max: Real,
}

/// What an edit may make of the usual length of leases, in quarters of it.
pub(crate) const TTL_QUARTERS: RangeInclusive<u32> = 3..=6;
/// This many units of work fit into the shortest lease that an edit may set, once faults have
/// ended, where the fleet is large: a leader that is slower than that cannot plan and renew leases
/// at the same time.
const UNITS_PER_TTL: Real = 50_000;
/// The most leases that a turn's slice of work takes in a large fleet.
const SLICE_LEASES_MAX: Real = 4;

impl TurnCosts {
    /// The costs of a seed, in most cases very low.
    pub(crate) fn new(rng: &mut Rng, ttl: Real) -> Self {
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
    fn busy(ttl: Real) -> Self {
        let long_max = BUSY_TURN_MAX.min(ttl / 4);
        let (long_every, work_calm_max) = (long_max * 2, CALM_COST_MAX);
        Self { event: MS / 100, work: MS / 20, long_every, long_max, work_calm_max }
    }

    /// The same for a large fleet, which has work for whole slices of this many units: one takes no
    /// longer than [`SLICE_LEASES_MAX`], or the faults would be over before the first turn is.
    fn enlarged(self, ttl: Real, slice: u32) -> Self {
        let shortest = ttl * Real::from(*TTL_QUARTERS.start()) / 4;
        Self {
            work: self.work.min(ttl * SLICE_LEASES_MAX / Real::from(slice)),
            work_calm_max: self.work_calm_max.min(shortest / UNITS_PER_TTL),
            ..self
        }
    }

    /// No more faults: turns are short, unless the driver is busy all the time.
    pub(crate) fn end_faults(&mut self, busy: bool) {
        self.event = self.event.min(CALM_COST_MAX);
        self.work = self.work.min(self.work_calm_max);
        if !busy {
            self.long_every = 0;
        }
    }

    /// The longest turn.
    pub(crate) fn longest(&self) -> Real {
        if self.long_every == 0 { 0 } else { self.long_max }
    }
}

/// One seed in this many has worker classes and pipelines.
const PIPELINES_EVERY: u64 = 3;

/// One seed in this many has a large fleet: up to 200 workers and 20,000 streams.
const LARGE_EVERY: u64 = 500;

/// In one seed in this many an agent is stopped once faults have ended.
const STOPS_AGENT_EVERY: u64 = 5;

/// In one seed in this many the drivers are busy, and stay so once faults have ended.
const BUSY_EVERY: u64 = 7;

/// In one seed in this many the stores are put back from a copy.
const RESTORES_EVERY: u64 = 8;

/// In one seed in this many sets move between clusters, and are removed and come back.
const MOVES_SETS_EVERY: u64 = 4;

/// In one seed in this many the platform removes pods that run on.
const REMOVES_EVERY: u64 = 4;

/// In one seed in this many a worker dies with the leader once faults have ended.
const DIES_WITH_LEADER_EVERY: u64 = 4;

/// In one seed in this many silent workers are given up, after this many lengths of a lease.
const GIVES_UP_EVERY: u64 = 8;
const LOST_AFTER_TTLS: u32 = 3;

/// In one seed in this many everything is checked after every step.
const CHECKS_ALL_EVERY: u64 = 40;

/// Of some seeds the cores do little in each turn, so that work in slices meets every
/// other event.
const SLICES: [u32; 4] = [4_096, 4, 32, 4_096];

/// The most that manifests define.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Clusters.
    pub clusters_max: usize,
    /// Stream sets.
    pub sets_max: usize,
    /// Streams of a set.
    pub streams_max: usize,
    /// Jobs of a cluster.
    pub jobs_max: u32,
}

/// One seed's world.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    /// Replicas of the coordinator.
    pub replicas: usize,
    /// Pods at the start.
    pub pods: usize,
    /// The most pods alive at a time.
    pub pods_max: usize,
    /// The most pods that ever live.
    pub pods_ever_max: usize,
    /// How large the manifests are.
    pub sizes: Sizes,
    /// Steps after which the run counts as stuck.
    pub steps_max: u64,
    /// How far clocks may be apart, as the cores are configured.
    pub bounds: TimeBounds,
    /// The lease time that manifests begin with.
    pub ttl: Duration,
    /// How long leadership lasts without renewal.
    pub leadership: Duration,
    /// A standby takes over when it has seen no renewal for this long.
    pub takeover_after: Duration,
    /// The usual delay of a message.
    pub delay: Real,
    /// One message in this many is slow; 0 for none.
    pub slow_one_in: u32,
    /// The most that a slow one takes.
    pub slow_max: Real,
    /// One message in this many is dropped, doubled or overtaken within its link; 0 for none.
    pub unreliable_one_in: u32,
    /// One hello in this many is followed by a broken link; 0 for none.
    pub fallback_one_in: u32,
    /// The mean time between faults.
    pub fault_every: Real,
    /// The longest delay of what the platform reports.
    pub platform_lag: Real,
    /// One revoke in this many is ignored by the worker; 0 for none.
    pub ignore_one_in: u32,
    /// One worker in this many cannot be stopped by its agent; 0 for none.
    pub unstoppable_one_in: u32,
    /// One link's writer in this many is slow; 0 for none.
    pub slow_writer_one_in: u32,
    /// How long the drivers' turns take.
    pub turns: TurnCosts,
    /// Reports that a leader lets wait at once.
    pub reports_max: usize,
    /// How long faults go on.
    pub safety: Real,
    /// What it has more of than chance gives it.
    pub bias: FaultBias,
    /// There are worker classes and pipelines.
    pub pipelines: bool,
    /// The drivers are busy, also once faults have ended.
    pub busy: bool,
    /// Once faults have ended, one agent is stopped and must not delay the others.
    pub stops_agent: bool,
    /// The stores of the election are put back from a copy.
    pub restores_stores: bool,
    /// Sets move between clusters, and are removed and come back.
    pub moves_sets: bool,
    /// The platform removes pods that run on.
    pub removes_pods: bool,
    /// A worker dies with the leader, if one dies once faults have ended.
    pub dies_with_leader: bool,
    /// Silent workers are given up after this.
    pub lost_after: Option<Duration>,
    /// Everything is checked after every step, not only what the step may have changed.
    pub checks_all: bool,
    /// The units of work that one turn of a coordinator's core takes.
    pub slice: u32,
    weights: Vec<(Fault, u32)>,
}

impl Profile {
    /// The profile of a seed, with more of some faults than other worlds have.
    pub(crate) fn new(seed: u64, bias: FaultBias, rng: &mut Rng) -> Self {
        let pipelines = seed.is_multiple_of(PIPELINES_EVERY);
        // A pipeline needs several workers of a class.
        let more = if pipelines { 3 } else { 0 };
        let ttl_ms = *pick(rng, &[1_000, 2_000, 4_000]);
        let ttl = Duration::from_millis(ttl_ms);
        let ttl_real = ttl_ms * MS;
        let leadership = ttl * rng.u32(1..=6);
        // Each seed leaves a third of the faults out, and makes some more frequent.
        let weights = FAULTS
            .iter()
            .filter_map(|(fault, weight)| match rng.u8(0..6) {
                _ if bias.faults.contains(fault) => Some((*fault, weight * BIAS_FACTOR)),
                0 | 1 => None,
                2 => Some((*fault, weight * 4)),
                _ => Some((*fault, *weight)),
            })
            .collect();
        let busy = seed % BUSY_EVERY == 3 && seed % STOPS_AGENT_EVERY != 2;
        let turns = TurnCosts::new(rng, ttl_real);
        let turns = if busy { TurnCosts::busy(ttl_real) } else { turns };
        let usual = Self {
            replicas: rng.usize(2..=3),
            pods: rng.usize(2..=5) + more,
            pods_max: rng.usize(5..=8) + more,
            pods_ever_max: 24,
            sizes: Sizes { clusters_max: 2, sets_max: 3, streams_max: 6, jobs_max: 12 },
            steps_max: 400_000,
            bounds: TimeBounds {
                drift_ppm: *pick(rng, &[0, 10_000, 50_000, 100_000]),
                margin: Duration::from_millis(*pick(rng, &[2, 50, 500])),
            },
            ttl,
            leadership,
            takeover_after: leadership / 2,
            delay: rng.u64(1..=20) * MS,
            slow_one_in: *pick(rng, &[0, 50, 10, 4]),
            slow_max: ttl_real * *pick(rng, &[1, 1, 2, 4]) / 2,
            unreliable_one_in: *pick(rng, &[0, 0, 40, 10]),
            fallback_one_in: *pick(rng, &[0, 10, 3]),
            fault_every: ttl_real / *pick(rng, &[1, 2, 4]),
            platform_lag: ttl_real * *pick(rng, &[0, 1, 4]) / 2 + 10 * MS,
            ignore_one_in: *pick(rng, &[0, 6, 2]),
            unstoppable_one_in: *pick(rng, &[0, 0, 6, 2]),
            slow_writer_one_in: *pick(rng, &[0, 10]),
            turns,
            reports_max: *pick(rng, &[1, 2, 128]),
            safety: ttl_real * 16,
            bias,
            pipelines,
            busy,
            stops_agent: seed % STOPS_AGENT_EVERY == 2,
            restores_stores: seed % RESTORES_EVERY == 5,
            moves_sets: seed % MOVES_SETS_EVERY == 2,
            removes_pods: seed % REMOVES_EVERY == 3,
            dies_with_leader: seed % DIES_WITH_LEADER_EVERY == 1,
            lost_after: (seed % GIVES_UP_EVERY == 4).then_some(ttl * LOST_AFTER_TTLS),
            checks_all: seed % CHECKS_ALL_EVERY == 1,
            slice: SLICES[(seed / PIPELINES_EVERY) as usize % SLICES.len()],
            weights,
        };
        if seed % LARGE_EVERY == LARGE_EVERY / 2 { usual.enlarged(rng) } else { usual }
    }

    /// The same with a large fleet, for a shorter time. Sizes are spread over all magnitudes.
    fn enlarged(self, rng: &mut Rng) -> Self {
        let pods = rng.usize(12..=25) << rng.u32(0..=3);
        let streams = rng.usize(10..=39) << rng.u32(0..=9);
        let sets_max = rng.usize(1..=12);
        let sizes = Sizes {
            clusters_max: rng.usize(1..=6),
            sets_max,
            streams_max: streams / sets_max + 1,
            jobs_max: u32::try_from(pods * 4).expect("a few hundred"),
        };
        let (pods_max, pods_ever_max) = (pods + pods / 4, pods * 2);
        let safety = self.ttl_real() * 6;
        let turns = self.turns.clone().enlarged(self.ttl_real(), self.slice);
        // One at a time, a large fleet takes longer than a lease to report.
        let reports_max = self.reports_max.max(16);
        let steps_max = 10_000_000;
        Self { turns, pods, pods_max, pods_ever_max, sizes, steps_max, safety, reports_max, ..self }
    }

    /// The next fault.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Option<Fault> {
        let sum: u32 = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut at = rng.u32(0..sum.max(1));
        for (fault, weight) in &self.weights {
            if at < *weight {
                return Some(*fault);
            }
            at -= weight;
        }
        None
    }

    /// Reports that may wait at once at a leader to which small ones came.
    pub(crate) fn small_reports_max(&self) -> usize {
        match self.reports_max {
            1 => 1,
            more => more * 32,
        }
    }

    /// Whether this sequence of faults happens.
    pub(crate) fn has(&self, sequence: Sequence) -> bool {
        self.bias.sequence == Some(sequence)
    }

    /// A lease's time as real time.
    pub(crate) fn ttl_real(&self) -> Real {
        u64::try_from(self.ttl.as_nanos()).expect("a few seconds")
    }

    /// No more faults: what is left is ordinary delay.
    pub(crate) fn end_faults(&mut self) {
        self.slow_one_in = 0;
        self.unreliable_one_in = 0;
        self.fallback_one_in = 0;
        self.ignore_one_in = 0;
        self.slow_writer_one_in = 0;
        self.platform_lag = 10 * MS;
        self.turns.end_faults(self.busy);
    }
}

/// One of `from`.
pub(crate) fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(0..from.len())]
}

/// True once in `many` times; never for 0.
pub(crate) fn one_in(rng: &mut Rng, many: u32) -> bool {
    many > 0 && rng.u32(0..many) == 0
}
