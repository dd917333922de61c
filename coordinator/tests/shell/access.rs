//! Access as a platform decides it: an agent is authenticated at its hello, and nothing is
//! disclosed or changed before.

use std::net::SocketAddr;
use std::sync::Arc;

use leasehold_coordinator::run::Options;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::access::{Access, AccessRequest, Caller, Denied, Permission, Subject};
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::*;
use leasehold_proto::coordinator::v1::RefusalReason;
use leasehold_types::{ClusterName, SetName, WorkerKey, WorkerName};
use tokio::sync::mpsc;
use tonic::{Code, Request};

use crate::agent::{Agent, connect, connect_without_window};
use crate::http::reaches;
use crate::replica::{LONG, Replica, desired, options, soon, until};

/// A replica whose access requests the test answers.
async fn replica() -> (Replica, mpsc::Receiver<AccessRequest>) {
    replica_with(options()).await
}

/// The same with other options.
async fn replica_with(options: Options) -> (Replica, mpsc::Receiver<AccessRequest>) {
    let (questions, asked) = mpsc::channel(64);
    let replica = Replica::start_with(options, Access::Asked(questions)).await;
    replica.send(Event::Desired(Arc::new(desired()))).await;
    (replica, asked)
}

async fn leading() -> (Replica, mpsc::Receiver<AccessRequest>) {
    let (replica, asked) = replica().await;
    replica.elect(1, LONG).await;
    let mut status = AdminServiceClient::new(connect(replica.grpc).await);
    let mut asked = asked;
    // Once the driver knows that it leads, hellos are authenticated.
    until(async || {
        let call = status.get_status(GetStatusRequest {});
        let (answer, ()) = tokio::join!(call, grant_one(&mut asked));
        answer.expect("a status").into_inner().leads.then_some(())
    })
    .await;
    (replica, asked)
}

async fn grant_one(asked: &mut mpsc::Receiver<AccessRequest>) {
    let question = asked.recv().await.expect("a question");
    question.answer.send(Ok(Caller::User("ada".into()))).expect("someone who asks");
}

async fn say_hello(address: SocketAddr, token: &str) -> Agent {
    let agent = Agent::dial_with(address, Some(token)).await;
    agent.say_hello("crawl", "w-0").await;
    agent
}

fn worker() -> WorkerKey {
    let cluster = ClusterName::new("crawl").expect("a name");
    WorkerKey { cluster, worker: WorkerName::new("w-0").expect("a name") }
}

#[tokio::test]
async fn a_hello_is_welcome_once_the_platform_allows_it() {
    let (replica, mut asked) = leading().await;
    let mut agent = say_hello(replica.grpc, "secret").await;
    let question = asked.recv().await.expect("a question");
    assert_eq!(question.shown.token.as_deref(), Some("secret"));
    assert_eq!(question.permission, Permission::ActAsAgent(worker()));
    assert!(question.shown.peer.is_some());
    question.answer.send(Ok(Caller::User("ada".into()))).expect("someone who asks");
    agent.welcome().await;
}

#[tokio::test]
async fn a_denied_hello_is_refused_with_the_reason_and_changes_nothing() {
    let (replica, mut asked) = leading().await;
    for (denied, reason) in [
        (Denied::Unauthenticated("no token".into()), RefusalReason::Unauthorized),
        (Denied::Forbidden("another's token".into()), RefusalReason::Unauthorized),
        (Denied::Unavailable("ask later".into()), RefusalReason::GoAway),
    ] {
        let mut agent = Agent::dial(replica.grpc).await;
        agent.say_hello("crawl", "w-0").await;
        let question = asked.recv().await.expect("a question");
        assert_eq!(question.shown.token, None);
        let text = denied.to_string();
        question.answer.send(Err(denied)).expect("someone who asks");
        let (given, refusal) = agent.refusal().await;
        assert_eq!((given, refusal.message), (reason, text));
        assert!(agent.next().await.expect("a clean end").is_none());
    }
    // A request without an answer is refused.
    let mut agent = say_hello(replica.grpc, "secret").await;
    drop(asked.recv().await.expect("a question"));
    assert_eq!(agent.refusal().await.0, RefusalReason::GoAway);

    let mut admin = AdminServiceClient::new(connect(replica.grpc).await);
    let list = ListWorkersRequest { cluster: "crawl".into(), ..Default::default() };
    let (list, ()) = tokio::join!(admin.list_workers(list), grant_one(&mut asked));
    assert_eq!(list.expect("a list").into_inner().workers, []);
}

#[tokio::test]
async fn an_unauthenticated_session_does_not_count_as_a_session() {
    let (replica, mut asked) = replica_with(Options { sessions_max: 1, ..options() }).await;
    replica.elect(1, LONG).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(Agent::dial(replica.grpc).await);
    }
    // If the replica does not lead yet, it redirects the agent without authenticating it.
    let mut agent = loop {
        let mut agent = say_hello(replica.grpc, "secret").await;
        tokio::select! {
            question = asked.recv() => {
                let answer = question.expect("a question").answer;
                answer.send(Ok(Caller::User("ada".into()))).expect("someone who asks");
                break agent;
            }
            (reason, _) = agent.refusal() => assert_eq!(reason, RefusalReason::NotLeader),
        }
    };
    agent.welcome().await;
    let mut second = say_hello(replica.grpc, "secret").await;
    grant_one(&mut asked).await;
    assert_eq!(second.refusal().await.0, RefusalReason::Limit);
}

#[tokio::test]
async fn a_standby_redirects_agents_without_authenticating_them() {
    let (replica, mut asked) = replica().await;
    replica.depose("leader.example:7400").await;
    let mut agent = until(async || {
        let mut agent = say_hello(replica.grpc, "nonsense").await;
        let (reason, refusal) = agent.refusal().await;
        assert_eq!(reason, RefusalReason::NotLeader);
        // The driver may not know the leader yet.
        (refusal.leader_address == "leader.example:7400").then_some(agent)
    })
    .await;
    assert!(agent.next().await.expect("a clean end").is_none());
    assert!(asked.try_recv().is_err(), "the platform was asked");
}

#[tokio::test]
async fn a_peer_that_does_not_read_a_redirect_takes_no_place_of_a_session() {
    let (replica, mut asked) = replica_with(Options { sessions_max: 1, ..options() }).await;
    let stalled = Agent::over(connect_without_window(replica.grpc).await).await.expect("a session");
    stalled.say_hello("crawl", "stalled").await;
    reaches(replica.http, "leasehold_refusals_total{reason=\"not_leader\"}", 1.0).await;
    replica.elect(1, LONG).await;
    tokio::spawn(async move {
        loop {
            grant_one(&mut asked).await;
        }
    });
    soon(Agent::welcomed(replica.grpc, "w-0")).await;
}

#[tokio::test]
async fn each_admin_call_requests_access_to_its_own_subject() {
    let (replica, mut asked) = leading().await;
    let channel = connect(replica.grpc).await;
    let mut admin = AdminServiceClient::new(channel);
    let crawl = || Subject::Cluster(ClusterName::new("crawl").expect("a name"));
    let feeds = || Subject::Set(SetName::new("feeds").expect("a name"));
    let no = || Denied::Forbidden("ada may not get it".into());

    macro_rules! refused {
        ($call:ident, $request:expr, $wants:expr) => {
            let mut request = Request::new($request);
            let token = "Bearer secret".parse().expect("a value");
            request.metadata_mut().insert("authorization", token);
            let answers = async {
                let question = asked.recv().await.expect("a question");
                assert_eq!(question.shown.token.as_deref(), Some("secret"));
                assert_eq!(question.permission, $wants, stringify!($call));
                question.answer.send(Err(no())).expect("someone who asks");
            };
            let (answer, ()) = tokio::join!(admin.$call(request), answers);
            let status = answer.map(|_| ()).expect_err(stringify!($call));
            assert_eq!(status.code(), Code::PermissionDenied, stringify!($call));
            assert_eq!(status.message(), "ada may not get it");
        };
    }
    let (cluster, worker) = (|| "crawl".to_owned(), || "w-0".to_owned());
    let (set, stream) = (|| "feeds".to_owned(), || "a".to_owned());
    refused!(get_status, GetStatusRequest {}, Permission::Read(Subject::All));
    refused!(list_clusters, ListClustersRequest {}, Permission::Read(Subject::All));
    refused!(get_cluster, GetClusterRequest { name: cluster() }, Permission::Read(crawl()));
    refused!(list_stream_sets, ListStreamSetsRequest {}, Permission::Read(Subject::All));
    let explain = ExplainClusterRequest { cluster: cluster() };
    refused!(explain_cluster, explain, Permission::Read(crawl()));
    let list = ListWorkersRequest { cluster: cluster(), ..Default::default() };
    refused!(list_workers, list, Permission::Read(crawl()));
    let get = GetWorkerRequest { cluster: cluster(), worker: worker() };
    refused!(get_worker, get, Permission::Read(crawl()));
    let explain = ExplainWorkerRequest { cluster: cluster(), worker: worker() };
    refused!(explain_worker, explain, Permission::Read(crawl()));
    let list = ListStreamsRequest { set: set(), ..Default::default() };
    refused!(list_streams, list, Permission::Read(feeds()));
    let get = GetStreamRequest { set: set(), stream: stream() };
    refused!(get_stream, get, Permission::Read(feeds()));
    let explain = ExplainStreamRequest { set: set(), stream: stream() };
    refused!(explain_stream, explain, Permission::Read(feeds()));
    refused!(
        watch_changes,
        WatchChangesRequest { cluster: cluster(), ..Default::default() },
        Permission::Read(crawl())
    );
    let everything = WatchChangesRequest::default();
    refused!(watch_changes, everything, Permission::Read(Subject::All));
    let plan = PlanRequest { cluster: cluster(), ..Default::default() };
    refused!(plan, plan, Permission::Read(crawl()));
    let drain = DrainWorkerRequest { cluster: cluster(), worker: worker() };
    refused!(drain_worker, drain, Permission::Change(crawl()));
    let gone =
        DeclareWorkerGoneRequest { cluster: cluster(), worker: worker(), incarnation: Some(0) };
    refused!(declare_worker_gone, gone, Permission::Change(crawl()));
}

#[tokio::test]
async fn each_reason_of_denied_access_has_its_own_status_code() {
    let (replica, mut asked) = leading().await;
    let mut admin = AdminServiceClient::new(connect(replica.grpc).await);
    for (denied, code) in [
        (Denied::Unauthenticated("no token".into()), Code::Unauthenticated),
        (Denied::Unavailable("ask later".into()), Code::Unavailable),
    ] {
        let answers = async {
            let question = asked.recv().await.expect("a question");
            question.answer.send(Err(denied)).expect("someone who asks");
        };
        let (answer, ()) = tokio::join!(admin.get_status(GetStatusRequest {}), answers);
        assert_eq!(answer.expect_err("no status").code(), code);
    }
}
