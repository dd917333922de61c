//! What is done to the fleet, and when: a function of the seed alone. No two faults at the same
//! time concern the same thing, and each is over before the faults end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// Coordinators of the fleet.
pub const COORDINATORS: usize = 3;
/// Workers that take jobs and streams; the others take shares of pipelines.
pub const JOB_NODES: usize = 4;
/// All workers, each with its agent on a node of its own.
pub const NODES: usize = 8;
/// The host on which other agents claim the names of the nodes' workers.
pub const SPARE: usize = NODES;
/// All hosts with an agent and a worker.
pub const HOSTS: usize = NODES + 1;
/// Streams of each set beside those that edits add.
pub const STREAMS: usize = 10;
/// The budget at the beginning and at the end.
pub const BUDGET: u32 = 8;

/// Between the beginnings of two faults, at least and at most.
const GAP_MS: std::ops::Range<u64> = 200..1_400;
/// Tries to find a fault that none concerns that is under way.
const TRIES: usize = 20;

/// A process of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A coordinator.
    Coordinator(usize),
    /// The agent of a node.
    Agent(usize),
    /// The worker of a node.
    Worker(usize),
}

/// A host with a network of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A coordinator's.
    Coordinator(usize),
    /// An agent's with its worker.
    Node(usize),
}

/// How an agent on another machine claims a worker's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// With a state folder of its own.
    Folder,
    /// With a copy of the first agent's state folder.
    Copy,
    /// With `--take-over`.
    TakeOver,
}

/// What becomes of the first agent while another one claims its worker's name. Its worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstAgent {
    /// Nothing.
    Lives,
    /// SIGSTOP.
    Stopped,
    /// kill -9.
    Killed,
}

/// A file system of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disk {
    /// The state folder that all coordinators share.
    Coordinators,
    /// The journal of a node's agent.
    Node(usize),
}

/// An edit of the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edit {
    /// Another budget.
    Budget(u32),
    /// This many streams more in both sets.
    Streams(usize),
    /// Another set of streams.
    Set,
    /// Another pipeline.
    Pipeline,
    /// The first pipeline's nodes change their classes.
    Classes,
    /// The first pipeline's load is another.
    Load(u32),
}

/// Something that is done to the fleet, and undone at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9; started again at the end.
    Kill(Target),
    /// SIGSTOP; SIGCONT at the end.
    Stop(Target),
    /// SIGSTOP of an agent and its worker.
    StopNode(usize),
    /// kill -9 of an agent and its worker; at the end it is declared gone and another takes its
    /// place.
    Replace(usize),
    /// SIGTERM of an agent, which drains; at the end another worker takes its place.
    Drain(usize),
    /// An agent on another machine claims the name of a node's worker; in the end all agents and
    /// workers of the name are killed, it is declared gone, and another worker takes the place.
    Claim(usize, Claim, FirstAgent),
    /// What one host sends the other is dropped.
    Cut(Host, Host),
    /// Nothing reaches a host, nor leaves it.
    Isolate(Host),
    /// What a host sends and gets is delayed.
    Delay(Host),
    /// Bursts of what a host sends are dropped.
    Loss(Host),
    /// No byte more fits.
    FullDisk(Disk),
    /// Each write takes long.
    SlowDisk(Disk),
    /// The manifests say something else until the end.
    Edit(Edit),
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it begins, from the beginning of the faults on.
    pub from: Duration,
    /// When it ends.
    pub to: Duration,
    /// What it is.
    pub fault: Fault,
}

/// What a fault concerns, so that no other may meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FaultScope {
    Process(Target),
    Link(Host),
    Disk(Disk),
    Edit(u8),
}

/// All steps of a run, by their beginning. Every one ends within `lasting`.
#[must_use]
pub fn steps(seed: u64, lasting: Duration) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let lasting_ms = u64::try_from(lasting.as_millis()).unwrap_or(u64::MAX);
    let mut busy: BTreeMap<FaultScope, u64> = BTreeMap::new();
    let (mut steps, mut at_ms) = (Vec::new(), 0);
    loop {
        at_ms += rng.u64(GAP_MS);
        if at_ms >= lasting_ms {
            return steps;
        }
        for _ in 0..TRIES {
            let fault = draw(&mut rng);
            let to_ms = (at_ms + rng.u64(fault.lasts_ms())).min(lasting_ms);
            let concerns = fault.concerns();
            if concerns.iter().all(|scope| busy.get(scope).is_none_or(|until| *until < at_ms)) {
                busy.extend(concerns.into_iter().map(|scope| (scope, to_ms)));
                let (from, to) = (Duration::from_millis(at_ms), Duration::from_millis(to_ms));
                steps.push(Step { from, to, fault });
                break;
            }
        }
    }
}

fn draw(rng: &mut Rng) -> Fault {
    match rng.u8(0..22) {
        0..4 => Fault::Kill(target(rng)),
        4..8 => Fault::Stop(target(rng)),
        8 => Fault::StopNode(rng.usize(..NODES)),
        9 => Fault::Replace(rng.usize(..NODES)),
        10 => Fault::Drain(rng.usize(..NODES)),
        11 => Fault::Cut(Host::Coordinator(rng.usize(..COORDINATORS)), node(rng)),
        12 => Fault::Cut(node(rng), Host::Coordinator(rng.usize(..COORDINATORS))),
        13 => Fault::Isolate(host(rng)),
        14 => Fault::Delay(host(rng)),
        15 => Fault::Loss(host(rng)),
        16 => Fault::FullDisk(disk(rng)),
        17 => Fault::SlowDisk(disk(rng)),
        18..20 => Fault::Claim(rng.usize(..NODES), claim(rng), first(rng)),
        _ => Fault::Edit(edit(rng)),
    }
}

fn target(rng: &mut Rng) -> Target {
    match rng.u8(0..10) {
        0..4 => Target::Coordinator(rng.usize(..COORDINATORS)),
        4..7 => Target::Agent(rng.usize(..NODES)),
        _ => Target::Worker(rng.usize(..NODES)),
    }
}

fn claim(rng: &mut Rng) -> Claim {
    [Claim::Folder, Claim::Copy, Claim::TakeOver][rng.usize(..3)]
}

fn first(rng: &mut Rng) -> FirstAgent {
    [FirstAgent::Lives, FirstAgent::Stopped, FirstAgent::Killed][rng.usize(..3)]
}

fn node(rng: &mut Rng) -> Host {
    Host::Node(rng.usize(..HOSTS))
}

fn host(rng: &mut Rng) -> Host {
    match rng.u8(0..3) {
        0 => Host::Coordinator(rng.usize(..COORDINATORS)),
        _ => node(rng),
    }
}

fn disk(rng: &mut Rng) -> Disk {
    match rng.u8(0..3) {
        0 => Disk::Coordinators,
        _ => Disk::Node(rng.usize(..NODES)),
    }
}

fn edit(rng: &mut Rng) -> Edit {
    match rng.u8(0..6) {
        0 => Edit::Budget(rng.u32(2..=12)),
        1 => Edit::Streams(rng.usize(1..=6)),
        2 => Edit::Set,
        3 => Edit::Pipeline,
        4 => Edit::Classes,
        _ => Edit::Load(rng.u32(5..=25)),
    }
}

impl Fault {
    /// How long it may last.
    fn lasts_ms(&self) -> std::ops::Range<u64> {
        match self {
            // Longer than a lease at times.
            Self::Kill(_) | Self::Stop(_) | Self::StopNode(_) => 50..6_000,
            Self::Replace(_) => 500..4_000,
            Self::Drain(_) => 3_000..9_000,
            Self::Claim(..) => 2_000..12_000,
            Self::Cut(..) | Self::Isolate(_) => 200..6_000,
            Self::Delay(_) | Self::Loss(_) => 1_000..8_000,
            Self::FullDisk(_) | Self::SlowDisk(_) => 500..6_000,
            Self::Edit(_) => 500..10_000,
        }
    }

    fn concerns(&self) -> Vec<FaultScope> {
        let agent = |node| FaultScope::Process(Target::Agent(node));
        let worker = |node| FaultScope::Process(Target::Worker(node));
        match *self {
            Self::Kill(target) | Self::Stop(target) => vec![FaultScope::Process(target)],
            Self::StopNode(node) | Self::Replace(node) | Self::Drain(node) => {
                vec![agent(node), worker(node)]
            }
            Self::Claim(node, ..) => vec![agent(node), worker(node), agent(SPARE)],
            Self::Cut(from, to) => vec![FaultScope::Link(from), FaultScope::Link(to)],
            Self::Isolate(host) | Self::Delay(host) | Self::Loss(host) => {
                vec![FaultScope::Link(host)]
            }
            Self::FullDisk(disk) | Self::SlowDisk(disk) => vec![FaultScope::Disk(disk)],
            Self::Edit(edit) => vec![FaultScope::Edit(match edit {
                Edit::Budget(_) => 0,
                Edit::Streams(_) => 1,
                Edit::Set => 2,
                Edit::Pipeline => 3,
                Edit::Classes => 4,
                Edit::Load(_) => 5,
            })],
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator(index) => write!(f, "coordinator {index}"),
            Self::Agent(node) => write!(f, "the agent of node {node}"),
            Self::Worker(node) => write!(f, "the worker of node {node}"),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator(index) => write!(f, "coordinator {index}"),
            Self::Node(node) => write!(f, "node {node}"),
        }
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinators => f.write_str("the coordinators' disk"),
            Self::Node(node) => write!(f, "the disk of node {node}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(target) => write!(f, "kill -9 of {target}"),
            Self::Stop(target) => write!(f, "SIGSTOP of {target}"),
            Self::StopNode(node) => write!(f, "SIGSTOP of all of node {node}"),
            Self::Replace(node) => write!(f, "kill -9 of all of node {node}, which is replaced"),
            Self::Drain(node) => write!(f, "node {node} drains and is replaced"),
            Self::Claim(node, claim, first) => {
                let how = match claim {
                    Claim::Folder => "claims the name of",
                    Claim::Copy => "claims, with a copy of its state folder, the name of",
                    Claim::TakeOver => "takes over the name of",
                };
                let which = match first {
                    FirstAgent::Lives => "the worker",
                    FirstAgent::Stopped => "the worker (its agent stopped)",
                    FirstAgent::Killed => "the worker (its agent killed)",
                };
                write!(f, "another agent {how} {which} of node {node}")
            }
            Self::Cut(from, to) => write!(f, "nothing gets from {from} to {to}"),
            Self::Isolate(host) => write!(f, "{host} is cut off"),
            Self::Delay(host) => write!(f, "{host} is far away"),
            Self::Loss(host) => write!(f, "{host} loses packets"),
            Self::FullDisk(disk) => write!(f, "{disk} is full"),
            Self::SlowDisk(disk) => write!(f, "{disk} is slow"),
            Self::Edit(Edit::Budget(jobs)) => write!(f, "a budget of {jobs}"),
            Self::Edit(Edit::Streams(more)) => write!(f, "{more} streams more in each set"),
            Self::Edit(Edit::Set) => f.write_str("one set more"),
            Self::Edit(Edit::Pipeline) => f.write_str("one pipeline more"),
            Self::Edit(Edit::Classes) => f.write_str("a pipeline's nodes change their classes"),
            Self::Edit(Edit::Load(load)) => write!(f, "a pipeline's load is {load}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTING: Duration = Duration::from_secs(600);

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        assert_eq!(steps(7, LASTING), steps(7, LASTING));
        assert_ne!(steps(7, LASTING), steps(8, LASTING));
    }

    #[test]
    fn steps_on_one_target_do_not_overlap_and_all_end() {
        for seed in 0..50 {
            let mut until: BTreeMap<FaultScope, Duration> = BTreeMap::new();
            for step in steps(seed, LASTING) {
                assert!(step.from <= step.to && step.to <= LASTING, "{step:?}");
                for concern in step.fault.concerns() {
                    let before = until.insert(concern, step.to).unwrap_or_default();
                    assert!(before < step.from || before.is_zero(), "{step:?}");
                }
            }
        }
    }

    #[test]
    fn ten_minutes_contain_every_kind_of_fault() {
        let mut kinds: Vec<_> =
            steps(1, LASTING).iter().map(|step| std::mem::discriminant(&step.fault)).collect();
        kinds.dedup();
        for fault in [
            Fault::Kill(Target::Agent(0)),
            Fault::Stop(Target::Agent(0)),
            Fault::StopNode(0),
            Fault::Replace(0),
            Fault::Drain(0),
            Fault::Claim(0, Claim::Copy, FirstAgent::Lives),
            Fault::Cut(Host::Node(0), Host::Node(1)),
            Fault::Isolate(Host::Node(0)),
            Fault::Delay(Host::Node(0)),
            Fault::Loss(Host::Node(0)),
            Fault::FullDisk(Disk::Coordinators),
            Fault::SlowDisk(Disk::Coordinators),
            Fault::Edit(Edit::Set),
        ] {
            assert!(kinds.contains(&std::mem::discriminant(&fault)), "{fault}");
        }
    }
}
