//! How hard one seed's world is: sizes, times, and how often what goes wrong.

use std::time::Duration;

use fastrand::Rng;
use leasehold_types::TimeBounds;

use super::clock::{MS, Real};
use super::driver::TurnCosts;

/// Something that goes wrong, or merely happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A link breaks.
    BreakLink,
    /// All links break at once: every agent dials again.
    BreakAll,
    /// A direction between a pod and a replica is cut for a while.
    CutPod,
    /// All that a pod sends or all that it receives is cut for a while.
    CutPodWhole,
    /// A replica and the store lose each other for a while.
    CutStore,
    /// A replica and all pods lose each other for a while.
    CutReplica,
    /// An agent's process dies and comes back, its journal kept.
    CrashAgent,
    /// The same, its journal lost.
    LoseJournal,
    /// An agent's process dies right after one of its next writes.
    CrashAtWrite,
    /// A journal cannot be written for a while.
    FailJournal,
    /// A pod is asked to leave while its journal cannot be written.
    DrainUnwritten,
    /// An agent claims to remember an epoch that never was.
    ClaimEpoch,
    /// A worker's process dies and comes back.
    CrashWorker,
    /// A host boots, orderly or after a loss of power: agent and worker die and come back.
    Boot,
    /// A pod dies whole.
    KillPod,
    /// A pod is asked to leave.
    DrainPod,
    /// A worker is drained through the admin API.
    OrderDrain,
    /// A pod appears, leaves and comes back at once.
    ComeAndGo,
    /// A pod appears.
    NewPod,
    /// A pod appears under the name of one that lives, which its successor cannot reach.
    TwinPod,
    /// All pods get successors of the next generation.
    Rollout,
    /// An agent's process is stopped for a while.
    PauseAgent,
    /// A replica's process is stopped for a while.
    PauseReplica,
    /// A replica's process dies and comes back.
    CrashReplica,
    /// A replica takes leadership while the leader lives.
    TakeOver,
    /// A replica takes over while the leader is cut off from the store, and agents go to and fro
    /// between the two.
    Split,
    /// The desired state changes.
    Edit,
    /// A worker gives a stream back of its own will.
    LetGo,
    /// Somebody makes the entry of a worker unreadable.
    SpoilEntry,
}

/// One seed in so many has worker classes and pipelines.
const PIPELINES_EVERY: u64 = 3;
/// One seed in so many has a large fleet: up to 200 workers and 20,000 streams.
const LARGE_EVERY: u64 = 500;
/// In one seed in so many an agent is stopped once faults have ended.
const HINDERS_EVERY: u64 = 5;
/// In one seed in so many the drivers are busy, and stay so once faults have ended.
const BUSY_EVERY: u64 = 7;
/// In one seed in so many everything is checked after every step.
const CHECKS_ALL_EVERY: u64 = 40;

/// Of some seeds the cores do little in each turn, so that all that goes on in slices meets
/// everything else.
const SLICES: [u32; 4] = [4_096, 4, 32, 4_096];

/// All faults, in the order of a profile's weights.
const FAULTS: [(Fault, u32); 29] = [
    (Fault::BreakLink, 8),
    (Fault::BreakAll, 2),
    (Fault::CutPod, 5),
    (Fault::CutPodWhole, 4),
    (Fault::CutStore, 4),
    (Fault::CutReplica, 2),
    (Fault::CrashAgent, 5),
    (Fault::LoseJournal, 3),
    (Fault::CrashAtWrite, 5),
    (Fault::FailJournal, 2),
    (Fault::DrainUnwritten, 2),
    (Fault::ClaimEpoch, 1),
    (Fault::CrashWorker, 4),
    (Fault::Boot, 3),
    (Fault::KillPod, 3),
    (Fault::DrainPod, 4),
    (Fault::OrderDrain, 1),
    (Fault::ComeAndGo, 3),
    (Fault::NewPod, 6),
    (Fault::TwinPod, 1),
    (Fault::Rollout, 1),
    (Fault::PauseAgent, 4),
    (Fault::PauseReplica, 3),
    (Fault::CrashReplica, 2),
    (Fault::TakeOver, 6),
    (Fault::Split, 4),
    (Fault::Edit, 6),
    (Fault::LetGo, 3),
    (Fault::SpoilEntry, 3),
];

/// A fault that is favoured comes so many times as often.
const FAVOURED: u32 = 8;

/// What goes wrong in an order that chance hardly ever gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    /// The names of agents that have left are taken by others.
    TakenNames,
    /// The clocks of twins are behind, and those whose names they take were just started again.
    LateTwins,
    /// Many reports are on their way for longer than leases last.
    LateReports,
    /// A leader that is about to strike a worker loses its term and takes the next one meanwhile.
    RetakenTerms,
    /// Workers count for themselves, and their clusters' caps fall and rise around failovers.
    Squeezes,
    /// Workers give a job the id of one whose end they were refused.
    UnconfirmedEnds,
    /// Workers are declared gone while their first entry is written, and come back while it is
    /// struck.
    LateEntries,
}

/// What a world has more of than chance gives it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Favour {
    /// These come often, and always.
    pub faults: &'static [Fault],
    /// What goes wrong in this order.
    pub sequence: Option<Sequence>,
}

/// The most that manifests define.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
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
pub(super) struct Profile {
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
    /// How far clocks may be apart, as the cores are told.
    pub bounds: TimeBounds,
    /// The lease time that manifests begin with.
    pub ttl: Duration,
    /// How long leadership lasts without renewal.
    pub leadership: Duration,
    /// A standby takes over when it has seen no renewal for so long.
    pub takeover_after: Duration,
    /// The usual delay of a message.
    pub delay: Real,
    /// One message in so many is slow; 0 for none.
    pub slow_one_in: u32,
    /// The most that a slow one takes.
    pub slow_max: Real,
    /// One message in so many is dropped, doubled or overtaken within its link; 0 for none.
    pub unruly_one_in: u32,
    /// One hello in so many is followed by a broken link; 0 for none.
    pub fallback_one_in: u32,
    /// The mean time between faults.
    pub fault_every: Real,
    /// The most that the platform's words lag.
    pub platform_lag: Real,
    /// One revoke in so many is ignored by the worker; 0 for none.
    pub ignore_one_in: u32,
    /// One worker in so many cannot be stopped by its agent; 0 for none.
    pub unstoppable_one_in: u32,
    /// One link's writer in so many is slow; 0 for none.
    pub slow_writer_one_in: u32,
    /// How long the drivers' turns take.
    pub turns: TurnCosts,
    /// Reports that a leader lets wait at once.
    pub reports_max: usize,
    /// How long faults go on.
    pub safety: Real,
    /// What it has more of than chance gives it.
    pub favour: Favour,
    /// There are worker classes and pipelines.
    pub pipelines: bool,
    /// The drivers are busy, also once faults have ended.
    pub busy: bool,
    /// Once faults have ended, one agent is stopped and must delay nobody else.
    pub hinders: bool,
    /// Everything is checked after every step, not only what the step may have changed.
    pub checks_all: bool,
    /// The units of work that one turn of a coordinator's core takes.
    pub slice: u32,
    weights: Vec<(Fault, u32)>,
}

impl Profile {
    /// The profile of a seed, with more of some faults than other worlds have.
    pub(super) fn new(seed: u64, favour: Favour, rng: &mut Rng) -> Self {
        let pipelines = seed.is_multiple_of(PIPELINES_EVERY);
        // A class needs some workers for a pipeline to be laid over.
        let more = if pipelines { 3 } else { 0 };
        let ttl_ms = *pick(rng, &[1_000, 2_000, 4_000]);
        let ttl = Duration::from_millis(ttl_ms);
        let ttl_real = ttl_ms * MS;
        let leadership = ttl * rng.u32(1..=6);
        // Each seed leaves a third of the faults out, and makes some more frequent.
        let weights = FAULTS
            .iter()
            .filter_map(|(fault, weight)| match rng.u8(0..6) {
                _ if favour.faults.contains(fault) => Some((*fault, weight * FAVOURED)),
                0 | 1 => None,
                2 => Some((*fault, weight * 4)),
                _ => Some((*fault, *weight)),
            })
            .collect();
        let busy = seed % BUSY_EVERY == 3 && seed % HINDERS_EVERY != 2;
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
            unruly_one_in: *pick(rng, &[0, 0, 40, 10]),
            fallback_one_in: *pick(rng, &[0, 10, 3]),
            fault_every: ttl_real / *pick(rng, &[1, 2, 4]),
            platform_lag: ttl_real * *pick(rng, &[0, 1, 4]) / 2 + 10 * MS,
            ignore_one_in: *pick(rng, &[0, 6, 2]),
            unstoppable_one_in: *pick(rng, &[0, 0, 6, 2]),
            slow_writer_one_in: *pick(rng, &[0, 10]),
            turns,
            reports_max: *pick(rng, &[1, 2, 128]),
            safety: ttl_real * 16,
            favour,
            pipelines,
            busy,
            hinders: seed % HINDERS_EVERY == 2,
            checks_all: seed % CHECKS_ALL_EVERY == 1,
            slice: SLICES[(seed / PIPELINES_EVERY) as usize % SLICES.len()],
            weights,
        };
        match seed % LARGE_EVERY == LARGE_EVERY / 2 {
            true => usual.enlarged(rng),
            false => usual,
        }
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
        let turns = self.turns.clone().enlarged(self.ttl_real());
        // One at a time, a large fleet takes longer than a lease to report.
        let reports_max = self.reports_max.max(16);
        let steps_max = 10_000_000;
        Self { turns, pods, pods_max, pods_ever_max, sizes, steps_max, safety, reports_max, ..self }
    }

    /// The next fault.
    pub(super) fn draw(&self, rng: &mut Rng) -> Option<Fault> {
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
    pub(super) fn small_reports_max(&self) -> usize {
        match self.reports_max {
            1 => 1,
            more => more * 32,
        }
    }

    /// Whether this is what goes wrong there.
    pub(super) fn has(&self, sequence: Sequence) -> bool {
        self.favour.sequence == Some(sequence)
    }

    /// A lease's time as real time.
    pub(super) fn ttl_real(&self) -> Real {
        u64::try_from(self.ttl.as_nanos()).expect("a few seconds")
    }

    /// No more faults: what is left is ordinary delay.
    pub(super) fn calm(&mut self) {
        self.slow_one_in = 0;
        self.unruly_one_in = 0;
        self.fallback_one_in = 0;
        self.ignore_one_in = 0;
        self.slow_writer_one_in = 0;
        self.platform_lag = 10 * MS;
        self.turns.calm(self.busy);
    }
}

/// One of `from`.
pub(super) fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(0..from.len())]
}

/// Once in so many times; never for 0.
pub(super) fn one_in(rng: &mut Rng, many: u32) -> bool {
    many > 0 && rng.u32(0..many) == 0
}
