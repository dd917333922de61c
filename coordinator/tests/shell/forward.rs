//! Calls to a standby: it forwards them to the leader, but for the question about itself.

use std::net::SocketAddr;
use std::sync::Arc;

use leasehold_coordinator::run::Options;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::access::{Access, Caller, Denied, Permission, Subject};
use leasehold_driver::trust::Trust;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::*;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::agent::{Agent, connect};
use crate::replica::{LONG, Replica, desired, options, soon, until};
use crate::tls::Pki;

type Admin = AdminServiceClient<Channel>;

/// A standby that believes that the replica at `leader` leads.
async fn standby(options: Options, leader: &str) -> Replica {
    let replica = Replica::start(options).await;
    replica.send(Event::Desired(Arc::new(desired()))).await;
    replica.depose(leader).await;
    replica
}

/// Waits until a replica knows that this is the leader's address.
async fn knows(admin: &mut Admin, leader: &str) {
    until(async || {
        let status = admin.get_status(GetStatusRequest {}).await.expect("a status");
        assert!(!status.get_ref().leads);
        (status.get_ref().leader_address == leader).then_some(())
    })
    .await;
}

/// A loopback address without a listener.
async fn nowhere() -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    socket.local_addr().expect("an address")
}

#[tokio::test]
async fn a_standby_forwards_reads_to_the_leader() {
    let leader = Replica::leading().await;
    let _agent = Agent::join(leader.grpc, "w-0").await;
    let address = leader.grpc.to_string();
    let standby = standby(options(), &address).await;
    let mut there = Admin::new(connect(leader.grpc).await);
    let mut here = Admin::new(connect(standby.grpc).await);
    knows(&mut here, &address).await;

    let asked = here.list_clusters(ListClustersRequest {}).await.expect("a list").into_inner();
    let told = there.list_clusters(ListClustersRequest {}).await.expect("a list").into_inner();
    assert_eq!(asked.clusters.len(), 1);
    assert_eq!(asked.clusters[0].name, told.clusters[0].name);
    let request = GetWorkerRequest { cluster: "crawl".into(), worker: "w-0".into() };
    let worker = here.get_worker(request).await.expect("a worker").into_inner().worker;
    assert_eq!(worker.expect("a worker").presence(), Presence::Connected);
    // An error of the leader is returned unchanged.
    let request = GetWorkerRequest { cluster: "crawl".into(), worker: "w-9".into() };
    let refused = here.get_worker(request).await.expect_err("no such worker");
    assert_eq!((refused.code(), refused.message().contains("w-9")), (Code::NotFound, true));

    let changes = here.watch_changes(WatchChangesRequest::default()).await;
    let mut changes = changes.expect("changes").into_inner();
    let _second = Agent::join(leader.grpc, "w-1").await;
    soon(async {
        loop {
            let change = changes.message().await.expect("a change").expect("no end");
            if change.kind() == ChangeKind::Joined && change.worker == "w-1" {
                break;
            }
        }
    })
    .await;
}

/// Who drains a worker in an emergency need not find the leader first.
#[tokio::test]
async fn a_standby_forwards_orders_and_the_leader_carries_them_out() {
    let leader = Replica::leading().await;
    let _agent = Agent::join(leader.grpc, "w-0").await;
    let address = leader.grpc.to_string();
    let standby = standby(options(), &address).await;
    let mut here = Admin::new(connect(standby.grpc).await);
    knows(&mut here, &address).await;
    let (cluster, worker) = ("crawl".to_owned(), "w-0".to_owned());
    let request = DrainWorkerRequest { cluster: cluster.clone(), worker: worker.clone() };
    here.drain_worker(request).await.expect("the leader takes the order");
    let request = GetWorkerRequest { cluster: cluster.clone(), worker: worker.clone() };
    let found = Admin::new(connect(leader.grpc).await).get_worker(request).await;
    assert!(found.expect("a worker").into_inner().worker.expect("a worker").drain_ordered);
    // A refusal of the leader is returned unchanged.
    let request = DeclareWorkerGoneRequest { cluster, worker, incarnation: Some(0) };
    let refused = here.declare_worker_gone(request).await.expect_err("it is connected");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("w-0"), "{}", refused.message());
}

#[tokio::test]
async fn the_leader_authorizes_forwarded_reads_by_the_callers_token() {
    let (questions, mut asked) = mpsc::channel(4);
    let leader = Replica::start_with(options(), Access::Asked(questions)).await;
    leader.send(Event::Desired(Arc::new(desired()))).await;
    leader.elect(1, LONG).await;
    let address = leader.grpc.to_string();
    let standby = standby(options(), &address).await;
    let mut here = Admin::new(connect(standby.grpc).await);
    knows(&mut here, &address).await;
    for is_allowed in [true, false] {
        let mut request = Request::new(ListClustersRequest {});
        let token = "Bearer secret".parse().expect("a value");
        request.metadata_mut().insert("authorization", token);
        let judges = async {
            let question = asked.recv().await.expect("a question");
            assert_eq!(question.shown.token.as_deref(), Some("secret"));
            assert_eq!(question.permission, Permission::Read(Subject::All));
            let forbidden = Denied::Forbidden("may not read".into());
            let ada = Caller::User("ada".into());
            let answer = if is_allowed { Ok(ada) } else { Err(forbidden) };
            question.answer.send(answer).expect("someone who asks");
        };
        let (answer, ()) = soon(async { tokio::join!(here.list_clusters(request), judges) }).await;
        match answer {
            Ok(answer) => assert!(is_allowed && answer.get_ref().clusters.len() == 1),
            Err(refused) => {
                assert!(!is_allowed, "{refused:?}");
                assert_eq!(refused.code(), Code::PermissionDenied);
                assert!(refused.message().contains("may not read"));
            }
        }
    }
}

#[tokio::test]
async fn a_forwarded_call_is_not_forwarded_again() {
    let first = Replica::start(options()).await;
    let address = first.grpc.to_string();
    let second = standby(options(), &address).await;
    first.depose(&second.grpc.to_string()).await;
    let mut admin = Admin::new(connect(first.grpc).await);
    knows(&mut admin, &second.grpc.to_string()).await;
    knows(&mut Admin::new(connect(second.grpc).await), &address).await;
    let refused = soon(admin.list_clusters(ListClustersRequest {})).await.expect_err("nobody");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    // The answer of the second replica.
    assert!(refused.message().contains(&address), "{}", refused.message());
}

#[tokio::test]
async fn an_unreachable_leader_is_named_and_its_successor_is_used() {
    let nowhere = nowhere().await.to_string();
    let standby = standby(options(), &nowhere).await;
    let mut here = Admin::new(connect(standby.grpc).await);
    knows(&mut here, &nowhere).await;
    let refused = here.list_clusters(ListClustersRequest {}).await.expect_err("nobody");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&nowhere), "{}", refused.message());

    let first = Replica::leading().await;
    let address = first.grpc.to_string();
    standby.depose(&address).await;
    knows(&mut here, &address).await;
    here.list_clusters(ListClustersRequest {}).await.expect("an answer");
    assert!(first.stop().await);
    let refused = soon(here.list_clusters(ListClustersRequest {})).await.expect_err("it is gone");
    assert!(refused.message().contains(&address), "{}", refused.message());

    let second = Replica::leading().await;
    let address = second.grpc.to_string();
    standby.depose(&address).await;
    knows(&mut here, &address).await;
    here.list_clusters(ListClustersRequest {}).await.expect("an answer");
}

#[tokio::test]
async fn over_tls_a_standby_forwards_only_with_a_configured_authority() {
    let pki = Pki::new();
    let leader = pki.replica(None).await;
    leader.send(Event::Desired(Arc::new(desired()))).await;
    leader.elect(1, LONG).await;
    let address = leader.grpc.to_string();
    let trusts = |ca: &str| {
        // The last value stays when its sender has gone.
        let (_, bundle) = watch::channel(Some(Arc::from(ca)));
        Some(Trust::in_bundle(bundle, "localhost".into()))
    };
    let stranger = Pki::new();
    for (trust, is_answered) in
        [(trusts(&pki.ca), true), (trusts(&stranger.ca), false), (None, false)]
    {
        let tls = pki.files("cert.pem", "key.pem", None).follow().expect("good files");
        let standby = standby(Options { tls: Some(tls), trust, ..options() }, &address).await;
        let mut here = Admin::new(pki.connect(&standby, None).await.expect("a connection"));
        knows(&mut here, &address).await;
        match here.list_clusters(ListClustersRequest {}).await {
            Ok(answer) => assert!(is_answered && answer.get_ref().clusters.len() == 1),
            Err(refused) => {
                assert!(!is_answered, "{refused:?}");
                assert_eq!(refused.code(), Code::FailedPrecondition);
                assert!(refused.message().contains(&address), "{}", refused.message());
            }
        }
    }
}
