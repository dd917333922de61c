//! An agent that carries out every grant at once, unless it is slow or silent.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_types::message::{
    Beat, DrainOrder, DrainPhase, Grant, HeldStream, Hello, Release, Report, ReportedMemory,
    StreamState,
};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::share::{
    Endpoint, NodeKey, Route, TableChange, TableGrant, TableVersion, WorkerAddress,
};
use leasehold_types::{
    Epoch, GrantNumber, Incarnation, LinkNumber, Load, Moment, NodeName, Nonce, ShareKey,
    StreamKey, Token, Version, WorkerKey, WorkerName,
};

/// How long a lease lasts.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// One worker's agent.
pub(crate) struct Agent {
    pub(crate) key: WorkerKey,
    pub(crate) conn: ConnId,
    /// It answers nothing for now; messages to it wait.
    pub(crate) slow: bool,
    /// Its worker does not release streams that are revoked.
    pub(crate) keeps_shares: bool,
    /// The shares that it was known to have.
    pub(crate) load_before: Load,
    /// It has been cut off since then.
    pub(crate) silent: Option<Moment>,
    /// It cannot stop its worker.
    pub(crate) file: bool,
    pub(crate) held: BTreeMap<StreamKey, (Token, Option<Load>)>,
    /// The versions of the protocol that it speaks.
    pub(crate) protocol: ProtocolRange,
    /// The routes of each share, from its last grant.
    routes: BTreeMap<StreamKey, Vec<Route>>,
    /// The tables of nodes.
    tables: BTreeMap<NodeKey, (TableVersion, BTreeMap<WorkerName, Endpoint>)>,
    pub(crate) address: Option<WorkerAddress>,
    pub(crate) drain: DrainPhase,
    inbox: Vec<Grant>,
    revoked: Vec<Release>,
    incarnation: u64,
    knows_from: u64,
    nonce: u64,
    applied: GrantNumber,
    epoch: Epoch,
    released: Vec<Release>,
}

impl Agent {
    pub(crate) fn new(key: WorkerKey) -> Self {
        let address = WorkerAddress::new(&format!("{}:80", key.worker)).expect("an address");
        Self {
            key,
            conn: ConnId(0),
            slow: false,
            keeps_shares: false,
            load_before: Load::ZERO,
            revoked: Vec::new(),
            silent: None,
            file: false,
            held: BTreeMap::new(),
            protocol: ProtocolRange::OWN,
            routes: BTreeMap::new(),
            tables: BTreeMap::new(),
            address: Some(address),
            drain: DrainPhase::Working,
            inbox: Vec::new(),
            incarnation: 1,
            knows_from: 0,
            nonce: 0,
            applied: GrantNumber(0),
            epoch: Epoch(0),
            released: Vec::new(),
        }
    }

    /// Whether it carries out every grant at once.
    pub(crate) fn answers(&self) -> bool {
        !self.slow && !self.keeps_shares && self.silent.is_none() && self.revoked.is_empty()
    }

    /// It restarts, with its journal or without.
    pub(crate) fn restart(&mut self, memory: bool) {
        self.incarnation += 1;
        self.inbox.clear();
        if !memory {
            self.knows_from = self.incarnation;
            self.held.clear();
        }
    }

    /// Dials: the hello and the report.
    pub(crate) fn dial(&mut self, conn: ConnId, epoch: Epoch, now: Moment) -> [Event; 2] {
        let cut_off = self.silent.take().map_or(Duration::ZERO, |since| now.since(since));
        if cut_off >= TTL && !self.file {
            self.held.clear();
        }
        // A number counts within its epoch.
        let seen = (self.epoch > Epoch(0)).then_some(self.epoch);
        (self.conn, self.epoch, self.nonce) = (conn, epoch, 1);
        self.applied = GrantNumber(0);
        self.inbox.clear();
        let hello = Hello {
            protocol: self.protocol,
            incarnation: Incarnation(self.incarnation),
            link: LinkNumber(conn.0),
            epoch_seen: seen,
            stops_worker: !self.file,
            address: self.address.clone(),
            version: Some(Version::own()),
            ..Hello::example(self.key.clone())
        };
        let held = self.held.iter().map(|(stream, (token, load))| HeldStream {
            stream: stream.clone(),
            token: *token,
            pinned: false,
            revoked: false,
            load: *load,
        });
        let report = Report {
            epoch,
            memory: ReportedMemory {
                knows_from: Incarnation(self.knows_from),
                aged: self.knows_from == 0,
                left: None,
            },
            streams: held.collect(),
            drain: self.drain,
            ..Report::example()
        };
        [Event::Hello(conn, hello, None), Event::Report(conn, report)]
    }

    /// Takes a grant; returns the answer, if there is one.
    pub(crate) fn take(&mut self, grant: Grant) -> Option<Event> {
        if self.silent.is_some() {
            return None;
        }
        if self.slow {
            self.inbox.push(grant);
            return None;
        }
        let news = grant.snapshot || !(grant.streams.is_empty() && grant.tables.is_empty());
        self.apply(grant);
        news.then(|| self.beat())
    }

    /// Takes the messages that have waited.
    pub(crate) fn wake(&mut self) -> Event {
        for grant in std::mem::take(&mut self.inbox) {
            self.apply(grant);
        }
        self.beat()
    }

    fn apply(&mut self, grant: Grant) {
        self.applied = grant.number;
        if grant.drain == Some(DrainOrder::Drain) {
            self.drain = DrainPhase::Draining;
        }
        if grant.snapshot {
            let listed =
                |stream: &StreamKey| grant.streams.iter().any(|granted| granted.stream == *stream);
            self.held.retain(|stream, _| listed(stream));
            self.tables.values_mut().for_each(|(version, _)| *version = TableVersion::default());
        }
        grant.tables.into_iter().for_each(|table| self.apply_table(table));
        for granted in grant.streams {
            match granted.state {
                StreamState::Held { .. } => {
                    if let Some(share) = &granted.share {
                        self.routes.insert(granted.stream.clone(), share.next.clone());
                    }
                    let load = self.held.get(&granted.stream).and_then(|(_, load)| *load);
                    let load = load.or(granted.share.map(|share| share.load));
                    self.held.insert(granted.stream, (granted.token, load));
                }
                // It ends with its time, if not before.
                StreamState::Revoked { renewed: false, .. } => {
                    self.held.remove(&granted.stream);
                    self.revoked.retain(|asked| asked.stream != granted.stream);
                }
                StreamState::Revoked { .. } => {
                    self.revoked.push(Release { stream: granted.stream, token: granted.token });
                }
            }
        }
        if !self.keeps_shares {
            self.stop_use();
        }
    }

    fn apply_table(&mut self, TableGrant { node, change }: TableGrant) {
        let by_name = |endpoint: Endpoint| (endpoint.worker.clone(), endpoint);
        match change {
            TableChange::Whole { version, endpoints } => {
                let endpoints = endpoints.iter().cloned().map(by_name).collect();
                self.tables.insert(node, (version, endpoints));
            }
            TableChange::Part { from, version, changed, removed } => {
                let (told, endpoints) = self.tables.get_mut(&node).expect("a table that was told");
                assert_eq!(*told, from, "{node}: the change is of another version");
                *told = version;
                endpoints.retain(|worker, _| !removed.contains(worker));
                endpoints.extend(changed.into_iter().map(by_name));
            }
            TableChange::Ended => _ = self.tables.remove(&node),
        }
    }

    /// Where a share's documents go, as the agent knows.
    pub(crate) fn next(&self, stream: &StreamKey) -> Vec<(NodeName, Vec<Endpoint>)> {
        let pipeline = ShareKey::of(stream).expect("a share").pipeline;
        let routes = self.routes.get(stream).into_iter().flatten();
        let next = routes.map(|Route { node, endpoints }| {
            let key = NodeKey { pipeline: pipeline.clone(), node: node.clone() };
            let told = || {
                let table = self.tables.get(&key).into_iter();
                table.flat_map(|(_, endpoints)| endpoints.values().cloned()).collect()
            };
            (node.clone(), endpoints.as_ref().map_or_else(told, |endpoints| endpoints.to_vec()))
        });
        next.collect()
    }

    /// How many endpoints it knows for its shares.
    pub(crate) fn endpoints(&self) -> usize {
        let next = self.held.keys().flat_map(|stream| self.next(stream));
        next.map(|(_, endpoints)| endpoints.len()).sum()
    }

    /// How many tables of nodes it has.
    pub(crate) fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Releases the streams that are revoked.
    pub(crate) fn stop_use(&mut self) {
        self.keeps_shares = false;
        for release in std::mem::take(&mut self.revoked) {
            self.held.remove(&release.stream);
            self.released.push(release);
        }
    }

    /// Gives everything back.
    pub(crate) fn release_all(&mut self) {
        let held = std::mem::take(&mut self.held).into_iter();
        let released = held.map(|(stream, (token, _))| Release { stream, token });
        self.released.extend(released);
    }

    pub(crate) fn beat(&mut self) -> Event {
        self.nonce += 1;
        let beat = Beat {
            epoch: self.epoch,
            nonce: Nonce(self.nonce),
            applied: self.applied,
            drain: self.drain,
            released: std::mem::take(&mut self.released),
            ..Beat::example()
        };
        Event::Beat(self.conn, beat)
    }

    /// The sum of the loads that it holds.
    pub(crate) fn load(&self) -> Load {
        self.held.values().filter_map(|(_, load)| *load).sum()
    }
}
