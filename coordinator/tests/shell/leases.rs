//! Sessions and how they end: redirects, limits, the end of leadership, shutdown.

use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::event::{Event, Renewed};
use leasehold_driver::clock;
use leasehold_proto::coordinator::v1::{RefusalReason, open_session_response};
use leasehold_types::Epoch;
use tonic::Code;

use crate::agent::{Agent, connect, hello};
use crate::replica::{LONG, Replica, Store, desired, options, soon, until};

#[tokio::test]
async fn an_agent_that_joins_is_granted_slots_and_streams() {
    let replica = Replica::leading().await;
    let mut agent = Agent::join(replica.grpc, "w-0").await;
    let first = agent.grant().await;
    assert!(first.snapshot);
    assert_eq!(first.epoch, 1);
    let (mut size, mut streams) = (0, 0);
    let mut grant = first;
    loop {
        size = grant.pool.map_or(size, |pool| pool.size);
        streams += grant.streams.len();
        if size == 3 && streams == 4 {
            break;
        }
        agent.beat(&grant).await;
        grant = agent.grant().await;
    }
}

#[tokio::test]
async fn an_agent_that_is_not_served_yet_is_sent_that_it_must_wait() {
    let replica = Replica::leading_on(Store::Hangs).await;
    // The leader grants nothing to a new agent before its leadership is confirmed.
    let mut agent = Agent::dial_to_wait(replica.grpc).await;
    agent.say_hello("crawl", "w-0").await;
    let welcome = agent.welcome().await;
    agent.report(welcome.epoch).await;
    for _ in 0..2 {
        match agent.next().await {
            Ok(Some(open_session_response::Message::Waiting(waiting))) => {
                assert_eq!(waiting.ahead, 0, "no other agent is there");
            }
            other => panic!("expected that it must wait: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_standby_names_the_leader() {
    let replica = Replica::start(options()).await;
    replica.send(Event::Desired(Arc::new(desired()))).await;
    replica.depose("leader.example:7400").await;
    let leader = until(async || {
        let mut agent = Agent::dial(replica.grpc).await;
        agent.say_hello("crawl", "w-0").await;
        let (reason, refusal) = agent.refusal().await;
        assert_eq!(reason, RefusalReason::NotLeader);
        // The replica may not know the leader yet at the first hello.
        Some(refusal.leader_address).filter(|address| !address.is_empty())
    });
    assert_eq!(leader.await, "leader.example:7400");
}

#[tokio::test]
async fn a_deposed_leader_redirects_its_agents_to_the_new_one() {
    let replica = Replica::leading().await;
    let mut agent = Agent::join(replica.grpc, "w-0").await;
    agent.grant().await;
    replica.depose("leader.example:7400").await;
    let (reason, refusal) = agent.refusal().await;
    assert_eq!(reason, RefusalReason::NotLeader);
    assert_eq!(refusal.leader_address, "leader.example:7400");
}

#[tokio::test]
async fn an_expired_leadership_ends_the_sessions_without_another_grant() {
    let replica = Replica::start(options()).await;
    replica.send(Event::Desired(Arc::new(desired()))).await;
    replica.elect(1, LONG).await;
    let mut agent = Agent::join(replica.grpc, "w-0").await;
    agent.grant().await;
    replica.elect(2, Duration::ZERO).await;
    agent.end_of_term(&[RefusalReason::NotLeader]).await;
    // A late renewal of an ended term changes nothing.
    let now = clock::now();
    let late = Renewed { epoch: Epoch(1), sent_at: now, until: now + LONG };
    replica.send(Event::Renewed(late)).await;
    let mut agent = Agent::dial(replica.grpc).await;
    agent.say_hello("crawl", "w-0").await;
    assert_eq!(agent.refusal().await.0, RefusalReason::NotLeader);
}

#[tokio::test]
async fn a_cluster_that_no_manifest_defines_is_refused_by_name() {
    let replica = Replica::leading().await;
    let mut agent = Agent::dial(replica.grpc).await;
    agent.say_hello("nowhere", "w-0").await;
    let (reason, refusal) = agent.refusal().await;
    assert_eq!(reason, RefusalReason::UnknownCluster);
    assert!(refusal.message.contains("nowhere"), "{}", refusal.message);
    let mut agent = Agent::dial(replica.grpc).await;
    agent.say_hello("crwal", "w-0").await;
    let (_, refusal) = agent.refusal().await;
    assert!(refusal.message.ends_with("; did you mean crawl?"), "{}", refusal.message);
}

#[tokio::test]
async fn an_agent_of_another_protocol_is_refused() {
    use leasehold_proto::coordinator::v1::open_session_request::Message;
    let replica = Replica::leading().await;
    // An agent of an earlier release names one version, and no newest one.
    for (protocol, protocol_max) in [(0, 0), (1_000, 0), (1_000, 2_000)] {
        let mut agent = Agent::dial(replica.grpc).await;
        agent
            .say(Message::Hello(leasehold_proto::coordinator::v1::Hello {
                protocol,
                protocol_max,
                ..hello("crawl", "w-0")
            }))
            .await;
        assert_eq!(agent.refusal().await.0, RefusalReason::Protocol);
    }
}

#[tokio::test]
async fn sessions_beyond_the_limit_are_refused_until_one_ends() {
    let replica =
        Replica::start(leasehold_coordinator::run::Options { sessions_max: 2, ..options() }).await;
    replica.send(Event::Desired(Arc::new(desired()))).await;
    replica.elect(1, LONG).await;
    let mut one = Agent::join(replica.grpc, "w-0").await;
    let two = Agent::join(replica.grpc, "w-1").await;
    let mut three = Agent::dial(replica.grpc).await;
    three.say_hello("crawl", "w-2").await;
    let (reason, refusal) = three.refusal().await;
    assert_eq!(reason, RefusalReason::Limit);
    assert!(refusal.message.contains("--sessions-max"), "{}", refusal.message);
    let grant = one.grant().await;
    one.beat(&grant).await;
    one.grant().await;
    drop(two);
    soon(Agent::welcomed(replica.grpc, "w-2")).await;
}

#[tokio::test]
async fn a_stopping_replica_refuses_its_agents_and_releases_leadership() {
    let replica = Replica::leading().await;
    let mut agent = Agent::join(replica.grpc, "w-0").await;
    agent.grant().await;
    // This agent has not said hello.
    let mut silent = Agent::dial(replica.grpc).await;
    let address = replica.grpc;
    let stopped = tokio::spawn(replica.stop());
    agent.end_of_term(&[RefusalReason::NotLeader, RefusalReason::GoAway]).await;
    assert_eq!(silent.refusal().await.0, RefusalReason::GoAway);
    assert!(stopped.await.expect("an end"), "leadership was not given up");
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the port is still open");
}

#[tokio::test]
async fn a_method_that_the_service_does_not_have_is_unimplemented() {
    let replica = Replica::leading().await;
    let channel = connect(replica.grpc).await;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("a connection");
    let path = "/leasehold.coordinator.v1.SessionService/Nothing".parse().expect("a path");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let answer = grpc.unary(tonic::Request::new(()), path, codec).await;
    assert_eq!(answer.map(|_| ()).expect_err("a refusal").code(), Code::Unimplemented);
}
