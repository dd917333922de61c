//! What all holders of a fleet saw: who owns each stream, and what went wrong. Each holder enters
//! what it did in the order in which it did it, before its next message leaves.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_demo::clock;
use leasehold_types::{Epoch, Moment};

/// Faults that are remembered in words.
const FAULTS_MAX: usize = 20;

/// What all holders saw together.
#[derive(Debug)]
pub struct FleetRecord {
    streams: Vec<Stream>,
    agents: Vec<AgentRecord>,
    owned: AtomicUsize,
    moved: AtomicUsize,
    expired: AtomicUsize,
    pools: AtomicUsize,
    epoch: AtomicU64,
    /// The first change of a stream's owner that is waited for, in nanoseconds of the clock of
    /// [`Moment`]; 0 until it comes.
    first_change_ns: AtomicU64,
    age_ns: AtomicU64,
    faults: Mutex<Vec<String>>,
}

/// One agent. It is live once it has the snapshot of a leader, which is the first grant.
#[derive(Debug, Default)]
struct AgentRecord {
    /// The epoch under which it is live; 0 where it is not.
    live: AtomicU64,
    /// The epoch under which it was last granted anything.
    granted: AtomicU64,
    /// The first grant of that epoch, in nanoseconds of the clock of [`Moment`].
    first_grant_ns: AtomicU64,
    renewals: AtomicU64,
    /// How many jobs the pool that it was last granted allows.
    pool_size: AtomicU32,
    /// When it was granted that pool, in nanoseconds of the clock of [`Moment`].
    pool_granted_ns: AtomicU64,
    /// When a stream was last granted to it or ended at it, in nanoseconds of the clock of
    /// [`Moment`].
    streams_changed_ns: AtomicU64,
}

/// Agents by number, from 1 on; 0 means no agent.
#[derive(Debug, Default)]
struct Stream {
    owner: AtomicU32,
    /// The owner, or the last one if it has none now.
    last: AtomicU32,
}

/// What was counted since the last look.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Streams that went from one worker to another.
    pub moved: usize,
    /// Leases that ended because no renewal came in time.
    pub expired: usize,
    /// Pools that were granted, the first ones and changed ones.
    pub pools: usize,
    /// The age of the oldest lease when its renewal came.
    pub age: Duration,
    /// What must never happen, in words.
    pub faults: Vec<String>,
}

impl FleetRecord {
    /// For this many agents and streams without owners.
    #[must_use]
    pub fn new(agents: usize, streams: usize) -> Self {
        Self {
            streams: std::iter::repeat_with(Stream::default).take(streams).collect(),
            agents: std::iter::repeat_with(AgentRecord::default).take(agents).collect(),
            owned: AtomicUsize::default(),
            moved: AtomicUsize::default(),
            expired: AtomicUsize::default(),
            pools: AtomicUsize::default(),
            epoch: AtomicU64::default(),
            first_change_ns: AtomicU64::default(),
            age_ns: AtomicU64::default(),
            faults: Mutex::default(),
        }
    }

    /// An agent owns a stream from now on.
    ///
    /// # Panics
    /// If no such stream was announced.
    pub fn granted(&self, stream: usize, agent: usize) {
        self.note_change(agent);
        let (record, me) = (&self.streams[stream], as_number(agent));
        match record.owner.swap(me, SeqCst) {
            0 => _ = self.owned.fetch_add(1, SeqCst),
            before if before == me => return,
            before => {
                self.fault(format!(
                    "stream {stream} has two owners: w-{} and w-{agent}",
                    before - 1
                ));
            }
        }
        let last = record.last.swap(me, SeqCst);
        if last != 0 && last != me {
            self.moved.fetch_add(1, SeqCst);
        }
    }

    /// An agent owns a stream no longer.
    pub fn ended(&self, stream: usize, agent: usize) {
        let owner = &self.streams[stream].owner;
        if owner.compare_exchange(as_number(agent), 0, SeqCst, SeqCst).is_ok() {
            self.note_change(agent);
            self.owned.fetch_sub(1, SeqCst);
        }
    }

    /// An agent is dead, and owns nothing. Returns how many streams it had.
    pub fn died(&self, agent: usize) -> usize {
        self.unlinked(agent);
        let before = self.owned();
        for stream in 0..self.streams.len() {
            self.ended(stream, agent);
        }
        before - self.owned()
    }

    /// A lease has ended without renewal.
    pub fn expired(&self) {
        self.expired.fetch_add(1, SeqCst);
    }

    /// An agent was granted a pool of this size.
    pub fn pool_granted(&self, agent: usize, size: u32) {
        let agent = &self.agents[agent];
        agent.pool_granted_ns.store(clock::now_ns(), SeqCst);
        agent.pool_size.store(size, SeqCst);
        self.pools.fetch_add(1, SeqCst);
    }

    /// When an agent was last granted a pool, where that has this size.
    #[must_use]
    pub fn pool_of_size(&self, agent: usize, size: u32) -> Option<Moment> {
        let agent = &self.agents[agent];
        let has_it = agent.pool_size.load(SeqCst) == size;
        has_it.then(|| Moment(agent.pool_granted_ns.load(SeqCst)))
    }

    /// From now on [`Self::first_change`] is the next change of any stream's owner.
    pub fn expect_change(&self) {
        self.first_change_ns.store(0, SeqCst);
    }

    /// When a stream was first granted or released since [`Self::expect_change`].
    #[must_use]
    pub fn first_change(&self) -> Option<Moment> {
        let at = self.first_change_ns.load(SeqCst);
        (at > 0).then_some(Moment(at))
    }

    /// When the streams of each agent last changed, where that was not before `begun`.
    pub fn changes_since(&self, begun: Moment) -> impl Iterator<Item = Moment> {
        let changed = self.agents.iter().map(|agent| Moment(agent.streams_changed_ns.load(SeqCst)));
        changed.filter(move |changed| *changed >= begun)
    }

    /// How many streams each agent owns.
    #[must_use]
    pub fn streams_per_agent(&self) -> Vec<usize> {
        let mut counts = vec![0; self.agents.len()];
        for stream in &self.streams {
            let owner = stream.owner.load(SeqCst);
            if let Some(agent) = owner.checked_sub(1) {
                counts[agent as usize] += 1;
            }
        }
        counts
    }

    /// A leader of this epoch has welcomed an agent.
    pub fn welcomed(&self, epoch: Epoch) {
        self.epoch.fetch_max(epoch.0, SeqCst);
    }

    /// An agent has all that it is to have under this epoch.
    pub fn live(&self, agent: usize, epoch: Epoch) {
        let agent = &self.agents[agent];
        if agent.granted.load(SeqCst) != epoch.0 {
            agent.first_grant_ns.store(clock::now_ns(), SeqCst);
            agent.granted.store(epoch.0, SeqCst);
        }
        agent.live.store(epoch.0, SeqCst);
    }

    /// An agent's link has ended.
    pub fn unlinked(&self, agent: usize) {
        self.agents[agent].live.store(0, SeqCst);
    }

    /// A renewal came when the agent's lease was that old.
    pub fn renewed(&self, agent: usize, age: Duration) {
        self.agents[agent].renewals.fetch_add(1, SeqCst);
        self.age_ns.fetch_max(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX), SeqCst);
    }

    /// What must never happen did.
    pub fn fault(&self, fault: String) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < FAULTS_MAX {
            faults.push(fault);
        }
    }

    /// How many renewals each agent has had.
    pub fn renewals(&self) -> impl Iterator<Item = u64> {
        self.agents.iter().map(|agent| agent.renewals.load(SeqCst))
    }

    /// When an agent had its first grant of this epoch, or of a later one.
    #[must_use]
    pub fn first_grant(&self, agent: usize, epoch: u64) -> Option<Moment> {
        let agent = &self.agents[agent];
        let is_granted = agent.granted.load(SeqCst) >= epoch;
        is_granted.then(|| Moment(agent.first_grant_ns.load(SeqCst)))
    }

    /// How many streams have an owner.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.owned.load(SeqCst)
    }

    /// How many agents are live under this epoch or a later one.
    #[must_use]
    pub fn live_since(&self, epoch: u64) -> usize {
        self.agents.iter().filter(|agent| agent.live.load(SeqCst) >= epoch.max(1)).count()
    }

    /// The highest epoch of any welcome.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// What was counted since the last call.
    pub fn take(&self) -> Counts {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        Counts {
            moved: self.moved.swap(0, SeqCst),
            expired: self.expired.swap(0, SeqCst),
            pools: self.pools.swap(0, SeqCst),
            age: Duration::from_nanos(self.age_ns.swap(0, SeqCst)),
            faults: std::mem::take(&mut *faults),
        }
    }

    fn note_change(&self, agent: usize) {
        let now = clock::now_ns();
        self.agents[agent].streams_changed_ns.store(now, SeqCst);
        if self.first_change_ns.load(SeqCst) == 0 {
            // Where another agent was faster, its change is the first one.
            let _ = self.first_change_ns.compare_exchange(0, now, SeqCst, SeqCst);
        }
    }
}

fn as_number(agent: usize) -> u32 {
    u32::try_from(agent + 1).expect("fleets are smaller")
}
