//! Peers that send garbage, too much, or nothing: they do not affect other agents.

use std::net::SocketAddr;

use leasehold_coordinator::run::Options;
use leasehold_proto::coordinator::v1::open_session_request::Message;
use leasehold_proto::coordinator::v1::open_session_response::Message as Answer;
use leasehold_proto::coordinator::v1::{
    Beat, HeldStream, Hello, OpenSessionRequest, RefusalReason, Report, StreamRef, Token,
};
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use crate::agent::{Agent, connect_without_window, hello};
use crate::http::{count, reaches};
use crate::replica::{PATIENCE, Replica, options, soon};

/// A correct agent whose session must work while others misbehave.
struct HonestAgent(Agent);

impl HonestAgent {
    async fn join(address: SocketAddr) -> Self {
        let mut agent = Agent::join(address, "honest").await;
        agent.grant().await;
        Self(agent)
    }

    /// A beat is answered by a renewal.
    async fn is_served(&mut self) {
        let grant =
            leasehold_proto::coordinator::v1::Grant { epoch: 1, number: 1, ..Default::default() };
        self.0.beat(&grant).await;
        let nonce = self.0.sent();
        while self.0.grant().await.nonce < nonce {}
    }
}

#[tokio::test]
async fn the_first_message_must_be_a_hello() {
    let replica = Replica::leading().await;
    for (message, named) in [
        (Some(Message::Report(Report { epoch: 1, drain: 1, ..Report::default() })), "report"),
        (Some(Message::Beat(Beat { epoch: 1, drain: 1, ..Beat::default() })), "beat"),
        (None, "message"),
    ] {
        let mut agent = Agent::dial(replica.grpc).await;
        agent.say_raw(OpenSessionRequest { message }).await;
        let (reason, refusal) = agent.refusal().await;
        assert_eq!(reason, RefusalReason::Invalid);
        assert!(refusal.message.contains(named), "{named}: {}", refusal.message);
    }
}

#[tokio::test]
async fn an_invalid_field_is_named() {
    let replica = Replica::leading().await;
    for (bad, named) in [
        (Hello { worker: "w\n0".into(), ..hello("crawl", "w") }, "hello.worker"),
        (Hello { cluster: "Crawl".into(), ..hello("crawl", "w") }, "hello.cluster"),
        (Hello { cluster: String::new(), ..hello("crawl", "w") }, "hello.cluster"),
    ] {
        let mut agent = Agent::dial(replica.grpc).await;
        agent.say(Message::Hello(bad)).await;
        let (reason, refusal) = agent.refusal().await;
        assert_eq!(reason, RefusalReason::Invalid);
        assert!(refusal.message.contains(named), "{named}: {}", refusal.message);
    }
    let mut agent = Agent::join(replica.grpc, "w-0").await;
    agent.say(Message::Beat(Beat { epoch: 0, drain: 1, ..Beat::default() })).await;
    let (reason, refusal) = agent.refusal().await;
    assert_eq!(reason, RefusalReason::Invalid);
    assert!(refusal.message.contains("beat.epoch"), "{}", refusal.message);
}

#[tokio::test]
async fn a_second_hello_is_refused() {
    let replica = Replica::leading().await;
    let mut agent = Agent::join(replica.grpc, "w-0").await;
    agent.say_hello("crawl", "w-0").await;
    assert_eq!(agent.refusal().await.0, RefusalReason::Invalid);
}

#[tokio::test]
async fn a_message_above_the_limit_is_refused_and_affects_no_other_agent() {
    let replica = Replica::leading().await;
    let mut honest = HonestAgent::join(replica.grpc).await;
    let held = HeldStream {
        stream: Some(StreamRef { set: "feeds".into(), stream: "s".repeat(250) }),
        token: Some(Token { epoch: 1, seq: 1 }),
        pinned: false,
        revoked: false,
        load_milli: None,
    };
    let count = MESSAGE_BYTES_MAX / held.encoded_len() + 1;
    let mut agent = Agent::dial(replica.grpc).await;
    agent.say_hello("crawl", "w-0").await;
    agent.welcome().await;
    let report = Report { epoch: 1, drain: 1, streams: vec![held; count], ..Report::default() };
    agent.say(Message::Report(report)).await;
    let (reason, refusal) = agent.refusal().await;
    assert_eq!(reason, RefusalReason::Limit);
    assert!(refusal.message.contains("too large"), "{}", refusal.message);
    honest.is_served().await;
}

/// Their reports are longer together than what is read at a time. A text is long and costs little
/// to read.
#[tokio::test]
async fn the_long_reports_of_several_agents_are_all_taken() {
    let replica = Replica::leading().await;
    let failure = "x".repeat(MESSAGE_BYTES_MAX - 1_000);
    let report = Report { epoch: 1, nonce: 1, running: Some(0), drain: 1, ..Report::default() };
    let report = Report { failure, ..report };
    let mut agents = JoinSet::new();
    for number in 0..6 {
        let (address, report) = (replica.grpc, report.clone());
        agents.spawn(async move {
            let mut agent = Agent::dial(address).await;
            agent.say_hello("crawl", &format!("w-{number}")).await;
            agent.welcome().await;
            agent.say(Message::Report(report)).await;
            agent.grant().await;
        });
    }
    assert_eq!(soon(agents.join_all()).await.len(), 6);
    reaches(replica.http, "leasehold_session_stalls_total", 1.0).await;
}

#[tokio::test]
async fn a_message_with_too_many_entries_is_refused_before_it_is_decoded() {
    let replica = Replica::leading().await;
    let mut agent = Agent::dial(replica.grpc).await;
    agent.say_hello("crawl", "w-0").await;
    agent.welcome().await;
    let streams = vec![HeldStream::default(); 1_000_000];
    agent.say(Message::Report(Report { epoch: 1, drain: 1, streams, ..Report::default() })).await;
    let (reason, refusal) = agent.refusal().await;
    assert_eq!(reason, RefusalReason::Invalid);
    assert!(refusal.message.contains("more than 20100 fields"), "{}", refusal.message);
}

/// Writes bytes and waits for the connection's end.
async fn throw(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    // The coordinator may close the connection during the write.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end");
}

#[tokio::test]
async fn garbage_on_the_port_is_dropped_and_affects_no_other_agent() {
    let replica = Replica::leading().await;
    let mut honest = HonestAgent::join(replica.grpc).await;
    let zeros = vec![0; 100_000];
    let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice();
    let handshake = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01].as_slice();
    for garbage in [request, b"PRI * HTTP/1.0\r\n", handshake, b"\n", &zeros] {
        for _ in 0..20 {
            throw(replica.grpc, garbage).await;
        }
        honest.is_served().await;
    }
    // A valid preface, then invalid frames.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0xff; 1_000]);
    throw(replica.grpc, &bytes).await;
    honest.is_served().await;
}

#[tokio::test]
async fn an_agent_that_reads_nothing_stalls_only_its_own_session() {
    let replica = Replica::leading().await;
    let mut honest = HonestAgent::join(replica.grpc).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", replica.grpc)).expect("an address");
    // Room for the welcome and the first grant, and no more.
    let channel = endpoint.initial_stream_window_size(256).connect().await.expect("a connection");
    let mut stalled = Agent::over(channel).await.expect("a session");
    stalled.say_hello("crawl", "stalled").await;
    let welcome = stalled.welcome().await;
    stalled.report(welcome.epoch).await;
    let grant = stalled.grant().await;
    let before = grants(replica.http).await;
    for _ in 0..200 {
        stalled.beat(&grant).await;
    }
    reaches(replica.http, "leasehold_messages_received_total{kind=\"beat\"}", 200.0).await;
    let waiting = grants(replica.http).await - before;
    assert!(waiting < 20.0, "{waiting} grants are queued for an agent that reads none");
    for _ in 0..20 {
        honest.is_served().await;
    }
}

#[tokio::test]
async fn a_peer_that_reads_nothing_and_dials_again_holds_only_its_newest_session() {
    let replica = Replica::leading_with(Options { sessions_max: 4, ..options() }).await;
    let channel = connect_without_window(replica.grpc).await;
    let mut sessions = Vec::new();
    for link in 1..=4 {
        let session = Agent::over(channel.clone()).await.expect("a session");
        session.say(Message::Hello(Hello { link, ..hello("crawl", "stalled") })).await;
        reaches(replica.http, "leasehold_messages_received_total{kind=\"hello\"}", link as f64)
            .await;
        sessions.push(session);
    }
    soon(Agent::welcomed(replica.grpc, "good")).await;
    assert!(replica.stop().await, "leadership was not released");
}

/// An agent that dials too often waits before its hello is taken, and so do its sessions.
#[tokio::test]
async fn sessions_of_one_worker_never_take_all_places() {
    let replica = Replica::leading_with(Options { sessions_max: 16, ..options() }).await;
    let mut first_messages = JoinSet::new();
    let refusal = soon(async {
        for link in 1.. {
            let mut agent = Agent::dial(replica.grpc).await;
            agent.say(Message::Hello(Hello { link, ..hello("crawl", "busy") })).await;
            first_messages.spawn(async move { (agent.next().await, agent) });
            while let Some(first) = first_messages.try_join_next() {
                if let Ok((Ok(Some(Answer::Refusal(refusal))), _)) = first
                    && refusal.reason() == RefusalReason::Limit
                {
                    return refusal;
                }
            }
        }
        unreachable!("no session was refused");
    })
    .await;
    assert!(refusal.message.contains("worker crawl/busy has"), "{}", refusal.message);
    let mut good = Agent::dial(replica.grpc).await;
    good.say_hello("crawl", "good").await;
    good.welcome().await;
}

#[tokio::test]
async fn the_connection_of_an_agent_that_does_not_take_its_welcome_ends() {
    let replica = Replica::leading().await;
    let channel = connect_without_window(replica.grpc).await;
    let mut stalled = Agent::over(channel).await.expect("a session");
    stalled.say_hello("crawl", "stalled").await;
    let end = stalled.next().await;
    assert!(end.is_err(), "the session went on, or ended with a message: {end:?}");
}

async fn grants(http: SocketAddr) -> f64 {
    count(http, "leasehold_messages_sent_total{kind=\"grant\"}").await
}

#[tokio::test]
async fn an_agent_that_floods_slows_only_its_own_session() {
    let replica = Replica::leading().await;
    let mut honest = HonestAgent::join(replica.grpc).await;
    let mut flooding = Agent::join(replica.grpc, "flooding").await;
    let grant = flooding.grant().await;
    let flood = tokio::spawn(async move {
        loop {
            flooding.beat(&grant).await;
        }
    });
    reaches(replica.http, "leasehold_session_stalls_total", 1.0).await;
    for _ in 0..20 {
        honest.is_served().await;
    }
    flood.abort();
}

#[tokio::test]
async fn ended_sessions_release_their_permits() {
    let replica = Replica::leading().await;
    let mut honest = HonestAgent::join(replica.grpc).await;
    // More than the limit of sessions: each one must release its permit.
    for _ in 0..30 {
        let crowd: Vec<_> = (0..20).map(|_| Agent::dial(replica.grpc)).collect();
        drop(futures_util::future::join_all(crowd).await);
    }
    soon(Agent::welcomed(replica.grpc, "late")).await;
    honest.is_served().await;
}
