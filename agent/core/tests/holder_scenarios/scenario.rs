//! One holder, and the commands that act on it.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leasehold_agent_core::{
    Config, Effect, Holder, Journal, JournalError, LeaseKinds, Memory, Record, Target,
};
use leasehold_scenario::{Language, Words};
use leasehold_types::message::{
    CoordinatorMessage, DrainOrder, Grant, PoolGrant, Refusal, RefusalReason, StreamGrant,
    StreamState, Terms, Welcome, WorkerFailure,
};
use leasehold_types::share::{
    Endpoint, NodeKey, Route, TableChange, TableGrant, TableVersion, WorkerAddress,
};
use leasehold_types::{
    CellId, ClusterName, Epoch, GrantNumber, Incarnation, LinkNumber, Moment, Nonce, SetName,
    Share, StreamKey, StreamName, TermId, WorkerKey, WorkerName,
};

use crate::shown;

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

const LEGEND: &str = "
open
    the link opens: `open`
closed
    the link breaks: `closed`
successor ADDRESS [earlier]
    a replica says that another one leads now than the one at the link's other end, or than the one
    of the link before: `successor 10.0.0.2:7400`
welcome EPOCH [term=N] [cell=N] [protocol=N] [ttl=TIME] [answers]
    the coordinator admits the agent: its epoch, term and cell, how long leases last (10s), and
    whether it answers the report of leaving: `welcome 5 term=2`
refuse leader|newer ADDRESS|INCARNATION
    the coordinator refuses the agent, and names the leader or a newer incarnation:
    `refuse leader 10.0.0.2:7400`
left
    the coordinator says that the worker has left: `left`
grant EPOCH NUMBER NONCE [snapshot] [fresh] [drain|undrain] [pool=TOKEN:SIZE] [newer=GENERATION] \
[ttl=TIME] [STREAM|TABLE…]
    the coordinator grants: NONCE is the newest beat that it has; `snapshot` lists all that the
    agent holds, before `fresh` nothing was outstanding, and `newer` gets slots first. A STREAM is
    +NAME:TOKEN, ^ for a pinned one, - to revoke it, ! to revoke it and stop renewing it. The name
    PIPELINE/NODE/INDEX is a share, with *LOAD and its routes behind the token: >NODE, or in
    protocol 1 >NODE:WORKER,~WORKER; ~ is a worker that drains. A TABLE is the table of a node,
    @PIPELINE/NODE#VERSION:WORKER,~WORKER; or a change of it,
    @PIPELINE/NODE#FROM..VERSION:WORKER,-WORKER, with - for a worker that no longer serves the node;
    or its end, @PIPELINE/NODE#ended: `grant 3 2 2 +first/in/0:3.2*10>out @first/out#1:w4`
start START
    the worker's process has started, with this id: `start s1`
begin JOB
    the worker asks to begin a job: `begin x`
end JOB
    a job has ended: `end x`
count RUNNING SIZE
    the worker reports how many jobs run, and the pool size that it uses: `count 1 2`
release STREAM TOKEN
    the worker releases a stream: `release a 1.2`
lease [jobs]
    shows the lease to the worker; with `jobs` it uses no streams, and sees none: `lease`
fail TEXT…
    the worker fails its check: `fail no answer`
recover
    the worker passes its check: `recover`
container-ended
    all processes of the worker's container have ended: `container-ended`
drain
    the agent is to drain: `drain`
full yes|no
    whether the disk of the journal is full: `full yes`
restart [kept|lost]
    the agent restarts, with its journal (kept) or without: `restart lost`
as [stays] [ends-worker] [hides-bindings] [address=ADDRESS]
    another agent begins without a journal: it stays after a drain, ends its worker at the drain's
    deadline, serves a worker that takes no shares, or one at an address: `as stays`
after TIME
    time passes, then the holder wakes up: `after 9s`
";

pub(crate) struct HolderScenario {
    holder: Holder<Kept>,
    journal: Kept,
    link: LinkNumber,
    /// Where that link was dialled, if a leader was named.
    dialled: Option<String>,
    incarnation: Incarnation,
    who: Options,
    now: Moment,
}

/// The options in which agents differ.
#[derive(Clone, Debug, Default)]
struct Options {
    stays_after_drain: bool,
    ends_worker: bool,
    hides_bindings: bool,
    address: Option<WorkerAddress>,
}

impl Language for HolderScenario {
    const FOLDER: &'static str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    const LEGEND: &'static str = LEGEND;

    fn new() -> Self {
        let (journal, now) = (Kept::default(), Moment(1_000_000_000_000));
        let incarnation = Incarnation(1);
        let who = Options::default();
        let config = config(incarnation, &who);
        let holder = Holder::new(config, Memory::default(), journal.clone(), now);
        let link = LinkNumber(0);
        let mut scenario = Self { holder, journal, link, dialled: None, incarnation, who, now };
        // The first dial.
        scenario.complete("", &mut String::new());
        scenario
    }

    fn command(&mut self, verb: &str, words: &mut Words, outcome: &mut String) {
        let now = self.now;
        let done = match verb {
            "begin" => self.holder.begin_job(words.parse("JOB"), now).map(drop),
            "end" => self.holder.end_job(&words.parse("JOB"), now),
            "count" => {
                let (running, size) = (words.parse("RUNNING"), words.parse("SIZE"));
                self.holder.report_count(running, size, now)
            }
            "start" => self.holder.start_worker(words.parse("START"), 0, now),
            "recover" => self.holder.recover(now).map_err(Into::into),
            "container-ended" => self.holder.container_ended(now).map_err(Into::into),
            "release" => {
                let (stream, token) = (stream(words.next("STREAM")), words.parse("TOKEN"));
                self.holder.release_stream(&stream, token, now)
            }
            _ => {
                self.act(verb, words, outcome);
                Ok(())
            }
        };
        if let Err(refused) = done {
            let _ = writeln!(outcome, "refused {refused:?}");
        }
    }

    fn complete(&mut self, _: &str, outcome: &mut String) {
        while let Some(effect) = self.holder.poll_effect() {
            if let Effect::Dial { link, target, .. } = &effect {
                self.link = *link;
                self.dialled = match target {
                    Target::Leader(leader) => Some(leader.clone()),
                    Target::Next => None,
                };
            }
            if let Some(line) = shown::effect(effect) {
                let _ = writeln!(outcome, "{line}");
            }
        }
    }
}

impl HolderScenario {
    /// Runs a command that cannot be refused.
    fn act(&mut self, verb: &str, words: &mut Words, outcome: &mut String) {
        let now = self.now;
        match verb {
            "open" => self.holder.handle_open(self.link, now),
            "closed" => self.holder.handle_closed(self.link, "cut", now),
            "successor" => {
                let leader = words.next("ADDRESS").to_owned();
                let number = self.link.0 - u64::from(words.flag("earlier"));
                let dialled = self.dialled.as_deref();
                self.holder.handle_successor(LinkNumber(number), leader, dialled, now);
            }
            "welcome" => self.take(welcome(words)),
            "refuse" => self.take(refusal(words)),
            "left" => {
                let (reason, message) = (RefusalReason::Left, String::new());
                self.take(CoordinatorMessage::Refusal(Refusal { reason, message }));
            }
            "grant" => self.take(grant(words)),
            "drain" => self.holder.drain(now),
            "fail" => {
                let failure = WorkerFailure::new(&words.rest("TEXT…").join(" ")).expect("a text");
                self.holder.fail(failure, now);
            }
            "full" => *self.journal.full.borrow_mut() = words.choice(["yes", "no"]) == Some("yes"),
            "as" => {
                self.who = Options {
                    stays_after_drain: words.flag("stays"),
                    ends_worker: words.flag("ends-worker"),
                    hides_bindings: words.flag("hides-bindings"),
                    address: words.parse_value("address"),
                };
                self.restart(true);
            }
            "restart" => self.restart(words.choice(["kept", "lost"]) == Some("lost")),
            "after" => {
                self.now = now + words.time("TIME");
                self.holder.handle_wake(self.now);
            }
            "lease" => {
                let kinds = if words.flag("jobs") { LeaseKinds::NONE } else { LeaseKinds::ALL };
                let lease = self.holder.lease_of(kinds, now);
                let _ = writeln!(outcome, "{}", shown::lease(lease, now));
            }
            _ => words.fail("the verb is not carried out"),
        }
    }

    fn take(&mut self, message: CoordinatorMessage) {
        self.holder.handle_message(self.link, message, self.now);
    }

    fn restart(&mut self, loses_journal: bool) {
        if loses_journal {
            self.journal = Kept::default();
        }
        self.incarnation = self.incarnation.next();
        let memory = self.journal.memory.borrow().clone();
        let config = config(self.incarnation, &self.who);
        self.holder = Holder::new(config, memory, self.journal.clone(), self.now);
    }
}

fn config(incarnation: Incarnation, who: &Options) -> Config {
    let worker = WorkerKey {
        cluster: ClusterName::new("c").expect("a cluster"),
        worker: WorkerName::new("w").expect("a worker"),
    };
    Config {
        incarnation,
        address: who.address.clone(),
        exposes_bindings: !who.hides_bindings,
        drain_deadline: Some(Duration::from_secs(60)),
        stays_after_drain: who.stays_after_drain,
        ends_worker: who.ends_worker,
        ..Config::example(worker)
    }
}

fn terms(words: &mut Words) -> Terms {
    Terms {
        ttl: words.duration("ttl").unwrap_or(Duration::from_secs(10)),
        beat: Duration::from_secs(2),
        reserve: Duration::from_millis(10_600),
        drain_deadline: Duration::from_secs(3600),
    }
}

fn welcome(words: &mut Words) -> CoordinatorMessage {
    CoordinatorMessage::Welcome(Welcome {
        epoch: Epoch(words.parse("EPOCH")),
        term: TermId(words.parse_value("term").unwrap_or(0)),
        cell: words.parse_value("cell").map(CellId),
        answers_goodbye: words.flag("answers"),
        protocol: words.parse_value("protocol").unwrap_or(1),
        terms: terms(words),
    })
}

fn refusal(words: &mut Words) -> CoordinatorMessage {
    let reason = match words.choice(["leader", "newer"]) {
        Some("leader") => RefusalReason::NotLeader(Some(words.next("ADDRESS").into())),
        _ => RefusalReason::NewerIncarnation(Incarnation(words.parse("INCARNATION"))),
    };
    CoordinatorMessage::Refusal(Refusal { reason, message: String::new() })
}

fn grant(words: &mut Words) -> CoordinatorMessage {
    let pool = words.value("pool").map(|pool| {
        let (token, size) = pool.split_once(':').expect("TOKEN:SIZE");
        let (token, size) = (token.parse().expect("a token"), size.parse().expect("a size"));
        PoolGrant { token, size, floor: 0 }
    });
    let drain = words.choice(["drain", "undrain"]).map(|order| match order {
        "drain" => DrainOrder::Drain,
        _ => DrainOrder::Undrain,
    });
    let mut grant = Grant {
        epoch: Epoch(words.parse("EPOCH")),
        number: GrantNumber(words.parse("NUMBER")),
        nonce: Nonce(words.parse("NONCE")),
        terms: terms(words),
        snapshot: words.flag("snapshot"),
        pool,
        drain,
        fresh: words.flag("fresh"),
        newer_generation: words.parse_value("newer"),
        streams: Vec::new(),
        tables: Vec::new(),
    };
    for word in words.rest("STREAM|TABLE…") {
        match word.strip_prefix('@') {
            Some(table) => grant.tables.push(table_grant(table)),
            None => grant.streams.push(stream_grant(word)),
        }
    }
    CoordinatorMessage::Grant(grant)
}

/// A word of a `grant` for the table of one node, without its `@`.
fn table_grant(word: &str) -> TableGrant {
    let (node, change) = word.split_once('#').expect("PIPELINE/NODE#CHANGE");
    let (pipeline, node) = node.split_once('/').expect("PIPELINE/NODE");
    let node = NodeKey {
        pipeline: pipeline.parse().expect("a pipeline"),
        node: node.parse().expect("a node"),
    };
    let version = |text: &str| TableVersion(text.parse().expect("a version"));
    let change = match change.split_once(':') {
        None => TableChange::Ended,
        Some((versions, workers)) => match versions.split_once("..") {
            None => {
                TableChange::Whole { version: version(versions), endpoints: endpoints(workers) }
            }
            Some((from, to)) => {
                let (removed, changed): (Vec<_>, Vec<_>) =
                    workers.split(',').partition(|word| word.starts_with('-'));
                let removed = removed.iter().map(|word| word[1..].parse().expect("a worker"));
                TableChange::Part {
                    from: version(from),
                    version: version(to),
                    changed: endpoints(&changed.join(",")).to_vec(),
                    removed: removed.collect(),
                }
            }
        },
    };
    TableGrant { node, change }
}

/// A word of a `grant` for one stream.
fn stream_grant(word: &str) -> StreamGrant {
    let state = match word.as_bytes()[0] {
        b'+' => StreamState::Held { pinned: false },
        b'^' => StreamState::Held { pinned: true },
        b'-' => StreamState::Revoked { deadline: Duration::from_secs(30), renewed: true },
        b'!' => StreamState::Revoked { deadline: Duration::ZERO, renewed: false },
        _ => panic!("{word:?} must begin with +, ^, - or !"),
    };
    let (name, token) = word[1..].split_once(':').expect("STREAM:TOKEN");
    let (token, share) = match token.split_once('*') {
        Some((token, text)) => (token, Some(share(text))),
        None => (token, None),
    };
    StreamGrant { stream: stream(name), token: token.parse().expect("a token"), state, share }
}

/// `LOAD[>NODE:WORKER,~WORKER]…`, or `>NODE` where the node's table has the workers.
fn share(text: &str) -> Arc<Share> {
    let mut parts = text.split('>');
    let load = parts.next().and_then(|load| load.parse().ok()).expect("a load");
    let route = |text: &str| {
        let (node, workers) = match text.split_once(':') {
            Some((node, workers)) => (node, Some(endpoints(workers))),
            None => (text, None),
        };
        Route { node: node.parse().expect("a node"), endpoints: workers }
    };
    let next = parts.map(route).collect();
    Arc::new(Share { load, next })
}

/// `WORKER,~WORKER…`; `~` marks a draining worker. Each serves one document per second.
fn endpoints(text: &str) -> Arc<[Endpoint]> {
    let endpoint = |text: &str| {
        let worker = WorkerName::new(text.trim_start_matches('~')).expect("a worker");
        let load = "1".parse().expect("a load");
        Endpoint { worker, address: None, load, draining: text.starts_with('~') }
    };
    text.split(',').filter(|name| !name.is_empty()).map(endpoint).collect()
}

fn stream(name: &str) -> StreamKey {
    let stream = StreamName::new(name).expect("a stream");
    let set = if name.contains('/') { "shares:" } else { "s" };
    StreamKey { set: SetName::new(set).expect("a set"), stream }
}
