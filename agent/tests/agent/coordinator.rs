//! A fake coordinator: it welcomes each agent, renews at each beat, and grants what the test sets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_proto::coordinator::v1 as wire;
use leasehold_proto::coordinator::v1::session_service_server::{
    SessionService, SessionServiceServer,
};
use leasehold_proto::map;
use leasehold_types::limits::WAITING_INTERVAL;
use leasehold_types::message::{
    AgentMessage, Beat, CoordinatorMessage, DrainOrder, Grant, Jobs, PoolGrant, Refusal,
    StreamGrant, StreamState, Terms, Welcome,
};
use leasehold_types::share::{Endpoint, Route};
use leasehold_types::{Epoch, GrantNumber, Nonce, Share, StreamKey, TermId, Token};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// How long a test waits for a condition before it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const TERMS: Terms = Terms {
    ttl: Duration::from_secs(5),
    beat: Duration::from_millis(100),
    reserve: Duration::from_secs(6),
    drain_deadline: Duration::from_secs(60),
};

/// What the agent must hold.
#[derive(Clone, Debug, Default)]
struct DesiredState {
    pool: Option<PoolGrant>,
    streams: BTreeMap<StreamKey, (Token, StreamState)>,
    /// The loads and routes of streams that are shares of pipelines.
    shares: BTreeMap<StreamKey, Arc<Share>>,
    drain: Option<DrainOrder>,
    refusal: Option<Refusal>,
    silence: Option<Silence>,
    seq: u64,
}

/// When a coordinator is silent although its connections live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It does not answer hellos.
    AfterHello,
    /// It does not answer reports.
    AfterReport,
    /// It answers a hello that the agent must wait, as many times, and then welcomes it.
    Waiting(u32),
}

#[derive(Clone, Debug)]
pub struct Coordinator {
    pub address: SocketAddr,
    epoch: Epoch,
    wanted: watch::Sender<DesiredState>,
    heard: watch::Sender<Vec<AgentMessage>>,
    /// Grants so far, over all sessions.
    granted: Arc<AtomicU64>,
    tasks: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
}

impl Coordinator {
    /// Stops it and all its sessions.
    pub fn stop(&self) {
        self.tasks.lock().unwrap().iter().for_each(tokio::task::AbortHandle::abort);
    }

    pub async fn start() -> Self {
        Self::start_in(Epoch(1)).await
    }

    /// A coordinator that leads in this epoch.
    pub async fn start_in(epoch: Epoch) -> Self {
        Self::serve(epoch, Server::builder()).await
    }

    /// A coordinator behind TLS.
    pub async fn start_tls(tls: ServerTlsConfig) -> Self {
        Self::serve(Epoch(1), Server::builder().tls_config(tls).unwrap()).await
    }

    async fn serve(epoch: Epoch, mut server: Server) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (wanted, _) = watch::channel(DesiredState::default());
        let (heard, _) = watch::channel(Vec::new());
        let (granted, tasks) = Default::default();
        let this = Self { address, epoch, wanted, heard, granted, tasks };
        let server = server
            .add_service(SessionServiceServer::new(this.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(server);
        this.tasks.lock().unwrap().push(task.abort_handle());
        this
    }

    /// Grants a pool of this size.
    pub fn pool(&self, size: u32) {
        self.wanted.send_modify(|wanted| {
            wanted.seq += 1;
            let token = Token { epoch: self.epoch, seq: wanted.seq };
            wanted.pool = Some(PoolGrant { token, size, floor: 0 });
        });
    }

    /// Grants a stream under a new token, and returns the token.
    pub fn grant(&self, set: &str, stream: &str, pinned: bool) -> Token {
        self.wanted.send_modify(|wanted| {
            wanted.seq += 1;
            let token = Token { epoch: self.epoch, seq: wanted.seq };
            wanted.streams.insert(key(set, stream), (token, StreamState::Held { pinned }));
        });
        Token { epoch: self.epoch, seq: self.wanted.borrow().seq }
    }

    /// Grants a share `PIPELINE/NODE/INDEX` of this load under a new token, or sets the routes of a
    /// held one. Returns its token.
    pub fn share(&self, share: &str, load: &str, next: &[Route]) -> Token {
        let stream = key("shares:", share);
        let told = Arc::new(Share { load: load.parse().unwrap(), next: next.to_vec() });
        self.wanted.send_modify(|wanted| {
            let old = wanted.shares.insert(stream.clone(), told.clone());
            if old.is_none_or(|old| old.load != told.load || !wanted.streams.contains_key(&stream))
            {
                wanted.seq += 1;
                let token = Token { epoch: self.epoch, seq: wanted.seq };
                let state = StreamState::Held { pinned: false };
                wanted.streams.insert(stream.clone(), (token, state));
            }
        });
        self.wanted.borrow().streams[&stream].0
    }

    /// Revokes a stream.
    pub fn revoke(&self, set: &str, stream: &str) {
        let state = StreamState::Revoked { deadline: Duration::from_secs(30), renewed: true };
        self.wanted.send_modify(|wanted| {
            wanted.streams.get_mut(&key(set, stream)).unwrap().1 = state;
        });
    }

    /// Orders a drain.
    pub fn drain(&self) {
        self.wanted.send_modify(|wanted| wanted.drain = Some(DrainOrder::Drain));
    }

    /// Has forgotten that it ordered a drain.
    pub fn forget_drain(&self) {
        self.wanted.send_modify(|wanted| wanted.drain = None);
    }

    /// Makes it silent.
    pub fn silence(&self, silence: Silence) {
        self.wanted.send_modify(|wanted| wanted.silence = Some(silence));
    }

    pub fn refuse(&self, refusal: Refusal) {
        self.wanted.send_modify(|wanted| wanted.refusal = Some(refusal));
    }

    /// Waits for a message for which `pick` returns a value, among all that any agent has sent.
    pub async fn hear<T>(&self, what: &str, pick: impl Fn(&AgentMessage) -> Option<T>) -> T {
        let mut heard = self.heard.subscribe();
        let found = heard.wait_for(|heard| heard.iter().any(|message| pick(message).is_some()));
        let found = tokio::time::timeout(PATIENCE, found).await;
        let Ok(Ok(found)) = found else { panic!("never received: {what}") };
        found.iter().find_map(&pick).unwrap()
    }

    /// Forgets the received messages.
    pub fn forget(&self) {
        self.heard.send_modify(Vec::clear);
    }

    /// The number of received messages that match.
    pub fn count(&self, pick: impl Fn(&AgentMessage) -> bool) -> usize {
        self.heard.borrow().iter().filter(|message| pick(message)).count()
    }

    /// Waits until a beat reports this pool size in effect and these jobs.
    pub async fn hear_count(&self, size: u32, jobs: u32) {
        let what = format!("a beat with pool {size} and {jobs} jobs");
        self.hear(&what, |message| told(message, size, jobs).then_some(())).await;
    }

    /// Waits until a token was released.
    pub async fn hear_release(&self, token: Token) {
        let what = format!("the release of {token}");
        self.hear(&what, |message| match message {
            AgentMessage::Beat(beat) => {
                beat.released.iter().any(|release| release.token == token).then_some(())
            }
            _ => None,
        })
        .await;
    }
}

/// The pool size in effect and the jobs that run, as a beat reports them.
pub fn counts(message: &AgentMessage) -> Option<(u32, u32)> {
    match message {
        AgentMessage::Beat(Beat { pool: Some(pool), jobs: Jobs::Running(jobs), .. }) => {
            Some((pool.size, *jobs))
        }
        _ => None,
    }
}

/// Whether a beat reports this pool size in effect and these jobs.
pub fn told(message: &AgentMessage, size: u32, jobs: u32) -> bool {
    counts(message) == Some((size, jobs))
}

fn key(set: &str, stream: &str) -> StreamKey {
    StreamKey { set: set.parse().unwrap(), stream: stream.parse().unwrap() }
}

/// A route to a node: workers, their addresses and loads.
pub fn route(node: &str, endpoints: &[(&str, &str, &str)]) -> Route {
    let endpoint = |(worker, address, load): &(&str, &str, &str)| Endpoint {
        worker: worker.parse().unwrap(),
        address: Some(address.parse().unwrap()),
        load: load.parse().unwrap(),
        draining: false,
    };
    let endpoints = endpoints.iter().map(endpoint).collect();
    Route { node: node.parse().unwrap(), endpoints: Some(endpoints) }
}

/// The session of one agent.
struct Session {
    coordinator: Coordinator,
    out: mpsc::Sender<Result<wire::OpenSessionResponse, Status>>,
    nonce: Nonce,
    /// The agent has no memory, and no agent was before it.
    new: bool,
}

impl Session {
    async fn send(&self, message: CoordinatorMessage) {
        let _ = self.out.send(Ok(message.into())).await;
    }

    fn next_number(&self) -> GrantNumber {
        GrantNumber(self.coordinator.granted.fetch_add(1, Ordering::Relaxed) + 1)
    }

    async fn grant(&mut self, snapshot: bool) {
        let wanted = self.coordinator.wanted.borrow().clone();
        let number = self.next_number();
        let streams = wanted.streams.into_iter();
        let streams = streams.map(|(stream, (token, state))| StreamGrant {
            share: wanted.shares.get(&stream).cloned(),
            stream,
            token,
            state,
        });
        let grant = Grant {
            snapshot,
            pool: wanted.pool,
            streams: streams.collect(),
            drain: wanted.drain,
            fresh: snapshot && self.new,
            ..Grant::renewal(self.coordinator.epoch, number, self.nonce, TERMS)
        };
        self.send(CoordinatorMessage::Grant(grant)).await;
    }

    async fn renew(&mut self) {
        let number = self.next_number();
        let grant = Grant::renewal(self.coordinator.epoch, number, self.nonce, TERMS);
        self.send(CoordinatorMessage::Grant(grant)).await;
    }

    async fn run(mut self, mut messages: Streaming<wire::OpenSessionRequest>) {
        let mut wanted = self.coordinator.wanted.subscribe();
        let mut live = false;
        loop {
            tokio::select! {
                message = messages.next() => {
                    let Some(Ok(message)) = message else { return };
                    let message = AgentMessage::try_from(message).unwrap();
                    self.handle(&message, &mut live).await;
                    if let AgentMessage::Beat(beat) = &message {
                        self.forget_released(beat);
                    }
                    self.coordinator.heard.send_modify(|heard| heard.push(message));
                }
                Ok(()) = wanted.changed(), if live => {
                    let refusal = wanted.borrow_and_update().refusal.clone();
                    match refusal {
                        Some(refusal) => self.send(CoordinatorMessage::Refusal(refusal)).await,
                        None => self.grant(false).await,
                    }
                }
            }
        }
    }

    fn forget_released(&self, beat: &Beat) {
        for release in &beat.released {
            self.coordinator.wanted.send_if_modified(|wanted| {
                let held = wanted.streams.get(&release.stream);
                if held.is_some_and(|held| held.0 == release.token) {
                    wanted.streams.remove(&release.stream);
                }
                false
            });
        }
    }

    async fn handle(&mut self, message: &AgentMessage, live: &mut bool) {
        match message {
            AgentMessage::Hello(hello) => {
                self.new = hello.epoch_seen.is_none();
                let (refusal, silence) = {
                    let wanted = self.coordinator.wanted.borrow();
                    (wanted.refusal.clone(), wanted.silence)
                };
                if let Some(Silence::Waiting(times)) = silence {
                    for ahead in (0..times).rev() {
                        let _ = self.out.send(Ok(map::waiting(ahead.into()))).await;
                        tokio::time::sleep(WAITING_INTERVAL).await;
                    }
                }
                match refusal {
                    _ if silence == Some(Silence::AfterHello) => {}
                    Some(refusal) => self.send(CoordinatorMessage::Refusal(refusal)).await,
                    None => {
                        let welcome = Welcome {
                            epoch: self.coordinator.epoch,
                            term: TermId(0),
                            cell: None,
                            answers_goodbye: false,
                            protocol: 1,
                            terms: TERMS,
                        };
                        self.send(CoordinatorMessage::Welcome(welcome)).await;
                    }
                }
            }
            AgentMessage::Report(report) => {
                self.nonce = report.nonce;
                if self.coordinator.wanted.borrow().silence != Some(Silence::AfterReport) {
                    *live = true;
                    self.grant(true).await;
                }
            }
            AgentMessage::Beat(beat) => {
                self.nonce = beat.nonce;
                self.renew().await;
            }
        }
    }
}

#[tonic::async_trait]
impl SessionService for Coordinator {
    type OpenSessionStream =
        Pin<Box<dyn Stream<Item = Result<wire::OpenSessionResponse, Status>> + Send>>;

    async fn open_session(
        &self,
        request: Request<Streaming<wire::OpenSessionRequest>>,
    ) -> Result<Response<Self::OpenSessionStream>, Status> {
        let (out, answers) = mpsc::channel(64);
        let session = Session { coordinator: self.clone(), out, nonce: Nonce(0), new: false };
        let task = tokio::spawn(session.run(request.into_inner()));
        self.tasks.lock().unwrap().push(task.abort_handle());
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}
