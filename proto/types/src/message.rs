//! The messages of the lease protocol between an agent and the coordinator, in domain types.
//!
//! The handshake is [`Hello`] → [`Welcome`] or [`Refusal`] → [`Report`]; after it the agent sends
//! [`Beat`]s and the coordinator [`Grant`]s.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ProtocolRange;
use crate::share::{TableGrant, WorkerAddress};
use crate::{
    AgentId, CellId, ClusterName, Epoch, GrantNumber, Incarnation, LinkNumber, Load, Nonce, Share,
    StreamKey, TermId, Token, Version, WorkerKey, WorkerName,
};

/// What an agent sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessage {
    /// First on a link.
    Hello(Hello),
    /// Once, after the welcome.
    Report(Report),
    /// From then on.
    Beat(Beat),
}

impl AgentMessage {
    /// Number of running jobs that it tells, if it tells one.
    #[must_use]
    pub fn running(&self) -> Option<u32> {
        match self {
            Self::Report(Report { jobs: Jobs::Running(running), .. })
            | Self::Beat(Beat { jobs: Jobs::Running(running), .. }) => Some(*running),
            Self::Report(_) | Self::Beat(_) | Self::Hello(_) => None,
        }
    }
}

/// What a coordinator sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorMessage {
    /// The hello was good.
    Welcome(Welcome),
    /// The link ends here, and why.
    Refusal(Refusal),
    /// A change of what the agent holds, or a plain renewal.
    Grant(Grant),
}

/// Who an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions of the protocol that the agent speaks.
    pub protocol: ProtocolRange,
    /// The cluster that its worker belongs to.
    pub cluster: ClusterName,
    /// The worker that it serves.
    pub worker: WorkerName,
    /// Which agent of that worker it is; a restarted one's is higher.
    pub incarnation: Incarnation,
    /// Which connection of this incarnation this is.
    pub link: LinkNumber,
    /// The highest epoch that it remembers; none for a new pod or a lost journal.
    pub epoch_seen: Option<Epoch>,
    /// The identity of the term of that epoch.
    pub term_seen: TermId,
    /// Whether it can stop its worker when a lease ends. The leases of one that cannot are never
    /// freed by time.
    pub stops_worker: bool,
    /// The rollout generation of its worker: in a rollout the highest is served first.
    pub generation: u64,
    /// The address of its worker for the workers before it in a pipeline, if it is configured.
    pub address: Option<WorkerAddress>,
    /// Which installation of an agent this is; `None` if the agent does not send it.
    pub identity: Option<AgentId>,
    /// A person has said that this agent takes the name from another one, alive or not.
    pub take_over: bool,
    /// As in [`ReportedMemory`]; for coordinators of earlier releases, which ask for it.
    pub knows_from: Incarnation,
    /// The version of the agent's build; `None` if it does not send one. Nothing but explanations
    /// depends on it.
    pub version: Option<Version>,
    /// The cell that it belongs to; `None` for an agent that no coordinator has welcomed yet, and
    /// in earlier releases.
    pub cell: Option<CellId>,
}

impl Hello {
    /// The first hello of a worker's first agent, for tests and examples: it stops its worker, and
    /// sends nothing that is optional.
    #[must_use]
    pub fn example(worker: WorkerKey) -> Self {
        let WorkerKey { cluster, worker } = worker;
        Self {
            protocol: ProtocolRange::OWN,
            cluster,
            worker,
            incarnation: Incarnation(1),
            link: LinkNumber(1),
            epoch_seen: None,
            term_seen: TermId(0),
            stops_worker: true,
            generation: 0,
            address: None,
            identity: None,
            take_over: false,
            knows_from: Incarnation(0),
            version: None,
            cell: None,
        }
    }
}

/// The process that an agent is, as a person finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentProcess {
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub id: u32,
    /// Its state folder, if it has one.
    pub state_dir: Option<String>,
}

impl fmt::Display for AgentProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, id, state_dir } = self;
        write!(f, "host {host}, process {id}")?;
        state_dir.iter().try_for_each(|folder| write!(f, ", state folder {folder}"))
    }
}

/// The times that hold on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease lasts, from when the agent sent the beat that the grant echoes.
    pub ttl: Duration,
    /// How often the agent beats when nothing changes.
    pub beat: Duration,
    /// `ttl * (1 + drift) + margin`: a younger journal counts as none.
    pub reserve: Duration,
    /// How long a drain may take before it ends with jobs left.
    pub drain_deadline: Duration,
}

/// The answer to a good hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The coordinator's leadership term.
    pub epoch: Epoch,
    /// That term's identity.
    pub term: TermId,
    /// The coordinator's cell; `None` in earlier releases.
    pub cell: Option<CellId>,
    /// Whether the coordinator answers the report of leaving with [`RefusalReason::Left`]; false in
    /// earlier releases, which only end the link.
    pub answers_goodbye: bool,
    /// The version of the protocol that both sides speak from now on.
    pub protocol: u32,
    /// The times that hold.
    pub terms: Terms,
}

/// The answer to a hello that was not good, or the end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong, for the agent to act on.
    pub reason: RefusalReason,
    /// What is wrong, for people.
    pub message: String,
}

/// Why a coordinator ends a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// This replica does not lead; the leader's address, if it is known.
    NotLeader(Option<String>),
    /// No manifest defines the agent's cluster.
    UnknownCluster,
    /// A newer agent serves this worker; its incarnation.
    NewerIncarnation(Incarnation),
    /// A newer connection of this agent exists.
    NewerLink,
    /// The agent speaks a version of the protocol that this build does not.
    Protocol,
    /// A named limit is reached.
    Limit,
    /// The agent broke the protocol's rules.
    Invalid,
    /// The agent is not who it says it is.
    Unauthorized,
    /// The worker was declared gone, or the coordinator shuts down; dial again.
    GoAway,
    /// The agent remembers a later term than the leader's; dial again.
    EpochAhead,
    /// An agent of another identity has the worker's name, and is alive; dial again later.
    NameTaken,
    /// The agent belongs to another cell.
    OtherCell,
    /// The worker has left, as its agent reported: no leader counts anything for it any longer.
    Left,
}

/// Everything that an agent holds: the basis of a new leader's knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The epoch that the agent has raised itself to.
    pub epoch: Epoch,
    /// This report's number among the agent's reports and beats.
    pub nonce: Nonce,
    /// How far back the agent's journal reaches.
    pub memory: ReportedMemory,
    /// The pool lease that is held.
    pub pool: Option<HeldPool>,
    /// The stream leases that are held.
    pub streams: Vec<HeldStream>,
    /// The jobs that run.
    pub jobs: Jobs,
    /// How far a drain has come.
    pub drain: DrainPhase,
    /// Why the worker takes nothing, if it does not drain but fails its check. `drain` is then
    /// [`DrainPhase::Draining`]: a worker that fails is served like one that drains.
    pub failure: Option<WorkerFailure>,
}

impl Report {
    /// The first report of a worker's first agent, for tests and examples: it holds nothing.
    #[must_use]
    pub fn example() -> Self {
        Self {
            epoch: Epoch(1),
            nonce: Nonce(1),
            memory: ReportedMemory { knows_from: Incarnation(0), aged: true, left: None },
            pool: None,
            streams: Vec::new(),
            jobs: Jobs::Running(0),
            drain: DrainPhase::Working,
            failure: None,
        }
    }
}

/// How far back an agent's journal reaches: what it does not list was given back, as far as the
/// journal can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedMemory {
    /// The journal is complete for this incarnation and all later ones. [`Incarnation`] 0: for
    /// all incarnations of the worker.
    pub knows_from: Incarnation,
    /// It is older than any lease of an earlier incarnation that ends by time.
    pub aged: bool,
    /// The incarnation under which this agent has reported before that it leaves, if it has no
    /// answer: nothing of that one is left.
    pub left: Option<Incarnation>,
}

/// A pool lease as its holder has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPool {
    /// The lease's token.
    pub token: Token,
    /// The size in effect: the most jobs that may start under it. 0 while draining.
    pub size: u32,
    /// The size that was granted; 0 where the agent does not say it.
    pub granted: u32,
    /// The size after it has expired.
    pub floor: u32,
}

/// A stream lease as its holder has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldStream {
    /// The stream.
    pub stream: StreamKey,
    /// The lease's token.
    pub token: Token,
    /// Whether the lease lasts without renewals until it is given back.
    pub pinned: bool,
    /// Whether it was revoked. A snapshot that lists it as held ends that.
    pub revoked: bool,
    /// The load that came with it, where it is a share of a pipeline.
    pub load: Option<Load>,
}

/// The jobs of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jobs {
    /// Not known yet: the agent lost its journal while the worker was running.
    Unknown,
    /// This many jobs run.
    Running(u32),
}

/// How far a worker's drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainPhase {
    /// No drain: the worker takes jobs and streams.
    Working,
    /// No new job starts; jobs end and streams are given back.
    Draining,
    /// The drain has ended and the agent leaves, for good.
    Leaving,
}

/// Why a worker counts as failing: what its check found, for people. One line of at most
/// [`WorkerFailure::BYTES_MAX`] bytes, which is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerFailure(Arc<str>);

impl WorkerFailure {
    /// The most bytes of one.
    pub const BYTES_MAX: usize = 200;

    /// The failure that this text describes: control characters become spaces, and a longer text
    /// is cut. `None` if nothing is left.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let shown = |c: char| if c.is_control() { ' ' } else { c };
        let mut line = String::new();
        for c in text.trim().chars().map(shown) {
            if line.len() + c.len_utf8() > Self::BYTES_MAX {
                break;
            }
            line.push(c);
        }
        let line = line.trim();
        (!line.is_empty()).then(|| Self(line.into()))
    }
}

impl fmt::Display for WorkerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a person or the operator orders about a worker's drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOrder {
    /// It is to drain.
    Drain,
    /// The order to drain is taken back. A drain that was asked for at the worker itself goes on.
    Undrain,
}

/// An agent's state, sent at intervals, and at once when something changes that others wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The epoch that the agent obeys.
    pub epoch: Epoch,
    /// This beat's number; a gap ends the link.
    pub nonce: Nonce,
    /// The newest grant that the agent has applied: the beat says nothing of later ones.
    pub applied: GrantNumber,
    /// How long before this beat the newest grant that named leases was applied: at most some 71
    /// minutes, to the microsecond.
    pub changed_ago: Duration,
    /// The pool lease that is held.
    pub pool: Option<HeldPool>,
    /// The jobs that run.
    pub jobs: Jobs,
    /// How far a drain has come.
    pub drain: DrainPhase,
    /// As in [`Report`].
    pub failure: Option<WorkerFailure>,
    /// The stream leases given back since the last beat, by token.
    pub released: Vec<Release>,
    /// A gap in the grants was seen: send everything again.
    pub wants_snapshot: bool,
}

impl Beat {
    /// The beat after [`Report::example`], for tests and examples: nothing was granted.
    #[must_use]
    pub fn example() -> Self {
        Self {
            epoch: Epoch(1),
            nonce: Nonce(2),
            applied: GrantNumber(0),
            changed_ago: Duration::ZERO,
            pool: None,
            jobs: Jobs::Running(0),
            drain: DrainPhase::Working,
            failure: None,
            released: Vec::new(),
            wants_snapshot: false,
        }
    }
}

/// A stream lease that was given back; it frees this token and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The stream.
    pub stream: StreamKey,
    /// The token that ends.
    pub token: Token,
}

/// A change of what an agent holds; with no change in it, a plain renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The leader's term.
    pub epoch: Epoch,
    /// This grant's number; the agent applies them without a gap.
    pub number: GrantNumber,
    /// The newest beat or report that the coordinator has: what is renewed lasts from when that
    /// was sent.
    pub nonce: Nonce,
    /// The times that hold from now on.
    pub terms: Terms,
    /// Everything that the agent has is listed here; what is not listed it must give back.
    pub snapshot: bool,
    /// A new pool lease.
    pub pool: Option<PoolGrant>,
    /// Stream leases that change.
    pub streams: Vec<StreamGrant>,
    /// Tables of the nodes that shares of the worker lead to, and their changes.
    pub tables: Vec<TableGrant>,
    /// What was ordered about a drain of the worker.
    pub drain: Option<DrainOrder>,
    /// With a snapshot: nothing was outstanding for the worker before this agent.
    pub fresh: bool,
    /// The newest generation whose workers get slots before this one, where it might have more.
    /// It informs people: nothing is decided by it.
    pub newer_generation: Option<u64>,
}

impl Grant {
    /// A plain renewal, for tests and examples.
    #[must_use]
    pub fn renewal(epoch: Epoch, number: GrantNumber, nonce: Nonce, terms: Terms) -> Self {
        Self {
            epoch,
            number,
            nonce,
            terms,
            snapshot: false,
            pool: None,
            streams: Vec::new(),
            tables: Vec::new(),
            drain: None,
            fresh: false,
            newer_generation: None,
        }
    }
}

/// A pool lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolGrant {
    /// Its token.
    pub token: Token,
    /// How many jobs may run at once.
    pub size: u32,
    /// How many may still run at once when the lease has ended without renewal; at most `size`.
    pub floor: u32,
}

/// A stream lease, or the end of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamGrant {
    /// The stream.
    pub stream: StreamKey,
    /// The lease's token.
    pub token: Token,
    /// The new state of the lease.
    pub state: StreamState,
    /// What goes with it, where it is held and a share of a pipeline. A grant of a token that is
    /// held already, with another share, changes only where documents go next.
    pub share: Option<Arc<Share>>,
}

/// What a coordinator wants of a stream lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// The agent owns the stream.
    Held {
        /// It lasts without renewals until it is given back.
        pinned: bool,
    },
    /// The agent is to give the stream back.
    Revoked {
        /// How long the worker may take.
        deadline: Duration,
        /// Whether renewals still cover it; once they do not, it ends with its time.
        renewed: bool,
    },
}

impl fmt::Display for DrainPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Working => "working",
            Self::Draining => "draining",
            Self::Leaving => "leaving",
        })
    }
}

/// A coordinator of another cell that an agent may dial. It informs people: nothing is decided by
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherCell {
    /// Its cell.
    pub cell: CellId,
    /// Its address, as the agent is configured: HOST:PORT.
    pub coordinator: String,
}

/// Run times of a worker's jobs, in seconds. They inform people: nothing is decided by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobTimes {
    /// Number of jobs that have ended since their agent started, of those that it saw begin.
    pub ended: u64,
    /// Run times of the last jobs that ended, the newest last.
    pub ended_seconds: Vec<u32>,
    /// Ages of the running jobs, the youngest first. Older ones may be missing.
    pub running_seconds: Vec<u32>,
}
