//! Scenario files: `testdata/*.txt` contains commands, and under `----` their outcomes.
//! [`Scenario::run`] parses the commands. To write the outcomes again:
//! `LEASEHOLD_REGENERATE=1 cargo test -p leasehold-agent-core --test holder_scenarios`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leasehold_agent_core::{
    Config, Effect, Holder, Journal, JournalError, Kinds, Memory, Notice, Record, Target,
};
use leasehold_types::message::{
    AgentMessage, Beat, CoordinatorMessage, DrainOrder, Grant, Jobs, PoolGrant, Refusal,
    RefusalReason, Report, StreamGrant, StreamState, Terms, Welcome, WorkerFailure,
};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::{Endpoint, Route};
use leasehold_types::{
    CellId, ClusterName, Epoch, GrantNumber, Incarnation, JobId, LinkNumber, Moment, Nonce,
    SetName, Share, StartId, StreamKey, StreamName, TermId, Token, WorkerName, duration,
};

#[test]
fn scenarios() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let entries = std::fs::read_dir(folder).expect("testdata");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no scenario");
    for file in files {
        check(&file);
    }
}

/// Faults, and the scenarios that detect them. The simulator detects them rarely.
const DETECTED_HERE: [(Mutation, &str); 7] = [
    (Mutation::AdmitWhileFailing, "failing"),
    (Mutation::FailureUntold, "failing"),
    (Mutation::FailureUnwritten, "failing"),
    (Mutation::RecoveredPool, "failing"),
    (Mutation::JobBeforeOwed, "job_ids"),
    (Mutation::LowerTermTold, "term_lower"),
    (Mutation::OtherCellObeyed, "cell"),
];

#[test]
fn faults_change_their_scenarios() {
    for (fault, name) in DETECTED_HERE.iter().filter(|_| mutation::BUILT_IN) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        let file = folder.join(name).with_extension("txt");
        let text = std::fs::read_to_string(file).expect("a scenario");
        mutation::set(Some(*fault));
        let fresh = outcome(&text);
        mutation::set(None);
        assert_ne!(fresh, text, "{name} does not detect {fault:?}");
    }
}

/// Runs one file, and compares the outcome of each block with the file.
fn check(file: &Path) {
    let text = std::fs::read_to_string(file).expect("a scenario");
    let fresh = outcome(&text);
    if std::env::var_os("LEASEHOLD_REGENERATE").is_some() {
        std::fs::write(file, &fresh).expect("write the scenario");
        return;
    }
    assert_eq!(fresh, text, "{}", file.display());
}

/// The text of a scenario with the outcome that its commands have now.
fn outcome(text: &str) -> String {
    let mut scenario = Scenario::new();
    let mut fresh = String::new();
    for block in text.trim_end().split("\n\n") {
        let commands = block.split("\n----").next().expect("a block");
        let mut outcome = String::new();
        for line in commands.lines().filter(|line| !line.starts_with('#')) {
            scenario.run(line, &mut outcome);
            scenario.show(&mut outcome);
        }
        let _ = write!(fresh, "{commands}\n----\n{outcome}\n");
    }
    fresh.trim_end().to_string() + "\n"
}

/// A journal that outlives the holder, and can be full.
#[derive(Clone, Debug, Default)]
struct Kept {
    memory: Rc<RefCell<Memory>>,
    full: Rc<RefCell<bool>>,
}

impl Journal for Kept {
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        if *self.full.borrow() {
            return Err(JournalError("no space left".into()));
        }
        self.memory.borrow_mut().apply(record);
        Ok(())
    }
}

struct Scenario {
    holder: Holder<Kept>,
    journal: Kept,
    link: LinkNumber,
    incarnation: Incarnation,
    who: Options,
    now: Moment,
}

/// The options in which agents differ.
#[derive(Clone, Debug, Default)]
struct Options {
    stays: bool,
    ends_worker: bool,
    hides_bindings: bool,
    address: Option<String>,
}

type Words<'a> = BTreeMap<&'a str, &'a str>;

impl Scenario {
    fn new() -> Self {
        let (journal, now) = (Kept::default(), Moment(1_000_000_000_000));
        let incarnation = Incarnation(1);
        let who = Options::default();
        let config = config(incarnation, &who);
        let holder = Holder::new(config, Memory::default(), journal.clone(), now);
        let link = LinkNumber(0);
        let mut scenario = Self { holder, journal, link, incarnation, who, now };
        // The first dial.
        scenario.show(&mut String::new());
        scenario
    }

    /// Runs one command: a verb, then words, some of them KEY=VALUE.
    fn run(&mut self, line: &str, out: &mut String) {
        let mut words = line.split_whitespace();
        let verb = words.next().expect("a verb");
        let (pairs, plain): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('='));
        let pairs: Words = pairs.iter().filter_map(|pair| pair.split_once('=')).collect();
        let now = self.now;
        let done = match verb {
            "begin" => self.holder.begin_job(job(plain[0]), now).map(drop),
            "end" => self.holder.end_job(&job(plain[0]), now),
            "count" => self.holder.report_count(number(plain[0]), number(plain[1]), now),
            "start" => {
                let start = StartId::new(plain[0]).expect("a start id");
                self.holder.start_worker(start, 0, now)
            }
            "recover" => self.holder.recover(now).map_err(Into::into),
            "container-ended" => self.holder.container_ended(now).map_err(Into::into),
            "release" => self.holder.release_stream(&stream(plain[0]), token(plain[1]), now),
            _ => {
                self.act(verb, &plain, &pairs, out);
                Ok(())
            }
        };
        if let Err(refused) = done {
            let _ = writeln!(out, "refused {refused:?}");
        }
    }

    /// Runs a command that cannot be refused.
    fn act(&mut self, verb: &str, plain: &[&str], pairs: &Words, out: &mut String) {
        let now = self.now;
        match verb {
            "open" => self.holder.handle_open(self.link, now),
            "closed" => self.holder.handle_closed(self.link, "cut", now),
            "welcome" => self.take(welcome(plain, pairs)),
            "refuse" => self.take(refusal(plain)),
            "grant" => self.take(grant(plain, pairs)),
            "drain" => self.holder.drain(now),
            "fail" => {
                let failure = WorkerFailure::new(&plain.join(" ")).expect("a text");
                self.holder.fail(failure, now);
            }
            "full" => *self.journal.full.borrow_mut() = plain[0] == "yes",
            "as" => {
                // Starts another agent.
                self.who = Options {
                    stays: plain.contains(&"stays"),
                    ends_worker: plain.contains(&"ends-worker"),
                    hides_bindings: plain.contains(&"hides-bindings"),
                    address: pairs.get("address").map(|it| (*it).to_owned()),
                };
                self.restart(&["lost"]);
            }
            "restart" => self.restart(plain),
            "after" => {
                self.now = self.now + duration::parse(plain[0]).expect("a duration");
                self.holder.handle_wake(self.now);
            }
            "lease" => self.show_lease(plain, out),
            _ => panic!("no command {verb:?}"),
        }
    }

    fn take(&mut self, message: CoordinatorMessage) {
        self.holder.handle_message(self.link, message, self.now);
    }

    fn restart(&mut self, plain: &[&str]) {
        if plain.contains(&"lost") {
            self.journal = Kept::default();
        }
        self.incarnation = self.incarnation.next();
        let memory = self.journal.memory.borrow().clone();
        let config = config(self.incarnation, &self.who);
        self.holder = Holder::new(config, memory, self.journal.clone(), self.now);
    }

    /// `lease [jobs]`: shows the lease to the worker; one that uses only jobs sees no streams.
    fn show_lease(&mut self, plain: &[&str], out: &mut String) {
        let kinds = if plain.contains(&"jobs") { Kinds::NONE } else { Kinds::ALL };
        let lease = self.holder.lease_of(kinds, self.now);
        let left = |until: Option<Moment>| match until {
            None => "for ever".into(),
            Some(until) => format!("{} ms", until.since(self.now).as_millis()),
        };
        let pool = lease.pool;
        let _ = write!(out, "lease {} of {} run, {}", pool.running, pool.size, left(pool.until));
        for held in lease.streams {
            let sign = if held.revoked.is_some() { '-' } else { '+' };
            let (name, ends) = (held.stream.stream, left(held.until));
            let _ = write!(out, "; {sign}{name}:{} {ends}", held.token);
        }
        for held in lease.bindings {
            let sign = if held.revoked.is_some() { '-' } else { '+' };
            let (ends, next) = (left(held.until), shown_routes(&held.next));
            let _ = write!(out, "; {sign}{}:{}*{}{next} {ends}", held.key, held.token, held.load);
        }
        let _ = writeln!(out, "{}", if lease.draining { "; draining" } else { "" });
    }

    fn show(&mut self, out: &mut String) {
        while let Some(effect) = self.holder.poll_effect() {
            let line = match effect {
                Effect::Dial { link, target, attempt } => {
                    self.link = link;
                    let target = match target {
                        Target::Next => "next".into(),
                        Target::Leader(leader) => leader,
                    };
                    format!("dial {link} {target} attempt={attempt}")
                }
                Effect::Hangup(link) => format!("hang up {link}"),
                Effect::Send(_, AgentMessage::Hello(hello)) => {
                    let seen = hello.epoch_seen.map_or(0, |epoch| epoch.0);
                    let term = match hello.term_seen {
                        TermId(0) => String::new(),
                        TermId(term) => format!(" term={term}"),
                    };
                    let at = hello.address.map(|at| format!(" at={at}")).unwrap_or_default();
                    let cell =
                        hello.cell.map_or_else(String::new, |cell| format!(" cell={}", cell.0));
                    let (incarnation, link) = (hello.incarnation, hello.link);
                    format!("hello inc={incarnation} link={link} seen={seen}{term}{cell}{at}")
                }
                Effect::Send(_, AgentMessage::Report(report)) => shown_report(&report),
                Effect::Send(_, AgentMessage::Beat(beat)) => shown_beat(&beat),
                Effect::DrainEnded { jobs_left, .. } => {
                    format!("drain ended, {jobs_left} jobs left")
                }
                Effect::DrainOverdue { jobs_left } => {
                    format!("drain overdue, {jobs_left} jobs left")
                }
                Effect::Resumed => "resumed".into(),
                Effect::Superseded => "superseded".into(),
                Effect::Notice(Notice::NewerGeneration { own, newer }) => {
                    format!("of generation {own}, after {newer}")
                }
                Effect::Notice(Notice::ProtocolViolation(what)) => format!("violation: {what}"),
                Effect::Notice(Notice::OtherCell { own, other }) => {
                    format!("of cell {}, the coordinator of {}", own.0, other.0)
                }
                Effect::LeaseChanged | Effect::LeaseRenewed | Effect::Notice(_) => continue,
            };
            let _ = writeln!(out, "{line}");
        }
    }
}

fn shown_report(report: &Report) -> String {
    let mut line = format!("report {} knows={}", report.nonce, report.memory.knows_from);
    line += if report.memory.aged { " aged" } else { "" };
    let _ = write!(line, " {}", shown_jobs(report.jobs));
    if let Some(pool) = report.pool {
        let _ = write!(line, " pool={}:{}", pool.token, pool.size);
    }
    for held in &report.streams {
        let _ = write!(line, " {}:{}", held.stream.stream, held.token);
        line += &held.load.map(|load| format!("*{load}")).unwrap_or_default();
    }
    line += &shown_failure(report.failure.as_ref());
    line
}

/// In the format that [`share`] parses.
fn shown_routes(next: &[Route]) -> String {
    let endpoint = |it: &Endpoint| format!("{}{}", if it.draining { "~" } else { "" }, it.worker);
    let route = |route: &Route| {
        let endpoints: Vec<_> = route.endpoints.iter().map(endpoint).collect();
        format!(">{}:{}", route.node, endpoints.join(","))
    };
    next.iter().map(route).collect()
}

fn shown_beat(beat: &Beat) -> String {
    let mut line = format!("beat {} applied={}", beat.nonce, beat.applied);
    let _ = write!(line, " {}", shown_jobs(beat.jobs));
    if let Some(pool) = beat.pool {
        let _ = write!(line, " pool={}:{}", pool.token, pool.size);
    }
    for release in &beat.released {
        let _ = write!(line, " -{}:{}", release.stream.stream, release.token);
    }
    let _ = write!(line, " {}", beat.drain);
    line += &shown_failure(beat.failure.as_ref());
    if beat.wants_snapshot {
        line += " gap";
    }
    line
}

fn shown_failure(failure: Option<&WorkerFailure>) -> String {
    failure.map(|failure| format!(" failing: {failure}")).unwrap_or_default()
}

fn shown_jobs(jobs: Jobs) -> String {
    match jobs {
        Jobs::Unknown => "run=?".into(),
        Jobs::Running(running) => format!("run={running}"),
    }
}

fn config(incarnation: Incarnation, who: &Options) -> Config {
    Config {
        cluster: ClusterName::new("c").expect("a cluster"),
        worker: WorkerName::new("w").expect("a worker"),
        incarnation,
        generation: 0,
        identity: None,
        take_over: false,
        stops_worker: true,
        address: who.address.as_deref().map(|it| it.parse().expect("an address")),
        shows_bindings: !who.hides_bindings,
        drain_deadline: Some(Duration::from_secs(60)),
        goodbye_max: Duration::from_secs(5),
        insists_on_report: false,
        stays: who.stays,
        ends_worker: who.ends_worker,
        raise: 1,
    }
}

/// With `ttl=TIME` another lease time than 10 s.
fn terms(pairs: &Words) -> Terms {
    let ttl = pairs.get("ttl").map(|ttl| duration::parse(ttl).expect("a duration"));
    Terms {
        ttl: ttl.unwrap_or(Duration::from_secs(10)),
        beat: Duration::from_secs(2),
        reserve: Duration::from_millis(10_600),
        drain_deadline: Duration::from_secs(3600),
    }
}

/// `welcome EPOCH [term=N] [cell=N] [ttl=TIME]`
fn welcome(plain: &[&str], pairs: &Words) -> CoordinatorMessage {
    let epoch = Epoch(plain[0].parse().expect("an epoch"));
    let term = TermId(pairs.get("term").map_or(0, |term| term.parse().expect("a term")));
    let cell = pairs.get("cell").map(|cell| CellId(cell.parse().expect("a cell")));
    CoordinatorMessage::Welcome(Welcome { epoch, term, cell, terms: terms(pairs) })
}

/// `refuse leader ADDRESS` or `refuse newer INCARNATION`
fn refusal(plain: &[&str]) -> CoordinatorMessage {
    let reason = match plain {
        ["leader", address] => RefusalReason::NotLeader(Some((*address).into())),
        ["newer", newer] => {
            RefusalReason::NewerIncarnation(Incarnation(newer.parse().expect("a number")))
        }
        _ => panic!("no refusal {plain:?}"),
    };
    CoordinatorMessage::Refusal(Refusal { reason, message: String::new() })
}

/// `grant EPOCH NUMBER NONCE [snapshot] [fresh] [drain|undrain] [+a:TOKEN] [^a:TOKEN] [-a:TOKEN]
/// [!a:TOKEN] [pool=TOKEN:SIZE] [newer=GENERATION] [ttl=TIME]`; `^` grants a pinned stream, and `!`
/// revokes a stream and stops renewing it. A stream
/// `PIPELINE/NODE/INDEX` is a share, see [`share`].
fn grant(plain: &[&str], pairs: &Words) -> CoordinatorMessage {
    let pool = pairs.get("pool").map(|pool| {
        let (at, size) = pool.split_once(':').expect("TOKEN:SIZE");
        PoolGrant { token: token(at), size: number(size), floor: 0 }
    });
    let streams = plain[3..].iter().filter_map(|word| {
        let state = match word.chars().next()? {
            '+' => StreamState::Held { pinned: false },
            '^' => StreamState::Held { pinned: true },
            '-' => StreamState::Revoked { deadline: Duration::from_secs(30), renewed: true },
            '!' => StreamState::Revoked { deadline: Duration::ZERO, renewed: false },
            _ => return None,
        };
        let (name, at) = word[1..].split_once(':').expect("STREAM:TOKEN");
        let (at, share) = match at.split_once('*') {
            Some((at, text)) => (at, Some(share(text))),
            None => (at, None),
        };
        Some(StreamGrant { stream: stream(name), token: token(at), state, share })
    });
    CoordinatorMessage::Grant(Grant {
        epoch: Epoch(plain[0].parse().expect("an epoch")),
        number: GrantNumber(plain[1].parse().expect("a number")),
        nonce: Nonce(plain[2].parse().expect("a nonce")),
        terms: terms(pairs),
        snapshot: plain.contains(&"snapshot"),
        pool,
        streams: streams.collect(),
        drain: plain.iter().find_map(|word| match *word {
            "drain" => Some(DrainOrder::Drain),
            "undrain" => Some(DrainOrder::Undrain),
            _ => None,
        }),
        fresh: plain.contains(&"fresh"),
        newer_generation: pairs.get("newer").map(|newer| u64::from(number(newer))),
    })
}

/// `LOAD[>NODE:WORKER,~WORKER]...`; `~` marks a draining worker.
fn share(text: &str) -> Arc<Share> {
    let mut parts = text.split('>');
    let load = parts.next().and_then(|load| load.parse().ok()).expect("a load");
    let endpoint = |text: &str| {
        let worker = WorkerName::new(text.trim_start_matches('~')).expect("a worker");
        Endpoint { worker, address: None, load, draining: text.starts_with('~') }
    };
    let route = |text: &str| {
        let (node, endpoints) = text.split_once(':').expect("NODE:WORKERS");
        let endpoints = endpoints.split(',').filter(|it| !it.is_empty()).map(endpoint).collect();
        Route { node: node.parse().expect("a node"), endpoints }
    };
    let next = parts.map(route).collect();
    Arc::new(Share { load, next })
}

fn job(text: &str) -> JobId {
    JobId::new(text).expect("a job id")
}

fn number(text: &str) -> u32 {
    text.parse().expect("a number")
}

fn token(text: &str) -> Token {
    text.parse().expect("a token")
}

fn stream(name: &str) -> StreamKey {
    let stream = StreamName::new(name).expect("a stream");
    let set = if name.contains('/') { "shares:" } else { "s" };
    StreamKey { set: SetName::new(set).expect("a set"), stream }
}
