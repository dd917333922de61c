//! The admin service as a client sees it: its answers and its errors.

use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::Stream;
use leasehold_coordinator_core::event::Event;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::*;
use leasehold_types::StreamName;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::agent::{Agent, connect};
use crate::replica::{PATIENCE, Replica, desired, until};

/// How many times a worker is drained and declared gone, one after the other.
const ORDERS: usize = 200;

async fn admin(replica: &Replica) -> AdminServiceClient<Channel> {
    AdminServiceClient::new(connect(replica.grpc).await)
}

/// A worker that holds its whole share.
async fn join_and_settle(replica: &Replica, worker: &str, slots: u32, streams: usize) -> Agent {
    let mut agent = Agent::join(replica.grpc, worker).await;
    let (mut has_slots, mut has_streams) = (0, 0);
    while has_slots < slots || has_streams < streams {
        let grant = agent.grant().await;
        has_slots = grant.pool.map_or(has_slots, |pool| pool.size);
        has_streams += grant.streams.len();
        agent.beat(&grant).await;
    }
    agent
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, named: &str) {
    let status = answer.expect_err(named);
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(named), "{named}: {}", status.message());
}

#[tokio::test]
async fn lists_and_explains_what_workers_hold() {
    let replica = Replica::leading().await;
    let _agent = join_and_settle(&replica, "w-0", 3, 4).await;
    let mut admin = admin(&replica).await;

    let status = admin.get_status(GetStatusRequest {}).await.expect("a status").into_inner();
    assert!(status.leads);
    assert_eq!((status.epoch, status.sessions), (1, 1));
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));

    let clusters = admin.list_clusters(ListClustersRequest {}).await.expect("a list");
    let clusters = clusters.into_inner().clusters;
    assert_eq!(clusters.len(), 1);
    assert_eq!((clusters[0].max_jobs, clusters[0].granted), (8, 3));
    assert_eq!((clusters[0].streams, clusters[0].streams_owned), (4, 4));

    let name = || "crawl".to_owned();
    let request = GetClusterRequest { name: name() };
    let cluster = admin.get_cluster(request).await.expect("a cluster").into_inner().cluster;
    assert_eq!(cluster.expect("a cluster"), clusters[0]);

    let request = ListWorkersRequest { cluster: name(), ..Default::default() };
    let workers = admin.list_workers(request).await.expect("a list").into_inner();
    assert_eq!(workers.workers.len(), 1);
    assert_eq!(workers.next_page_token, "");
    assert_eq!(workers.workers[0].presence(), Presence::Connected);
    assert_eq!((workers.workers[0].granted, workers.workers[0].streams), (3, 4));

    let request = GetStreamRequest { set: "feeds".into(), stream: "a".into() };
    let stream = admin.get_stream(request).await.expect("a stream").into_inner().stream;
    let stream = stream.expect("a stream");
    assert_eq!(stream.planned, "w-0");
    assert_eq!(stream.claims.len(), 1);
    assert!(stream.claims[0].token.starts_with("1."), "{stream:?}");

    let request = ExplainWorkerRequest { cluster: name(), worker: "w-0".into() };
    let why = admin.explain_worker(request).await.expect("an answer").into_inner().explanation;
    assert!(!why.expect("an explanation").summary.is_empty());
    let request = ExplainStreamRequest { set: "feeds".into(), stream: "a".into() };
    let why = admin.explain_stream(request).await.expect("an answer").into_inner().explanation;
    assert!(why.expect("an explanation").summary.contains("w-0"));
}

#[tokio::test]
async fn long_lists_come_in_pages() {
    let replica = Replica::leading().await;
    let mut admin = admin(&replica).await;
    let mut request =
        ListStreamsRequest { set: "feeds".into(), page_size: 3, ..Default::default() };
    let first = admin.list_streams(request.clone()).await.expect("a page").into_inner();
    let names = |page: &ListStreamsResponse| -> Vec<String> {
        page.streams.iter().map(|stream| stream.name.clone()).collect()
    };
    assert_eq!(names(&first), ["a", "b", "c"]);
    request.page_token.clone_from(&first.next_page_token);
    let second = admin.list_streams(request.clone()).await.expect("a page").into_inner();
    assert_eq!(names(&second), ["d"]);
    assert_eq!(second.next_page_token, "");

    request.worker = "w-0".into();
    refused(admin.list_streams(request.clone()).await, Code::InvalidArgument, "page_token");
    request.page_token.clear();
    let none = admin.list_streams(request.clone()).await.expect("a page").into_inner();
    assert!(none.streams.is_empty());
    request.page_size = 10_001;
    refused(admin.list_streams(request).await, Code::InvalidArgument, "page_size");
}

#[tokio::test]
async fn errors_name_the_wrong_field() {
    let replica = Replica::leading().await;
    let mut admin = admin(&replica).await;
    let (crawl, nowhere) = (|| "crawl".to_owned(), || "nowhere".to_owned());
    let (missing, bad) = (Code::NotFound, Code::InvalidArgument);

    let answer = admin.get_cluster(GetClusterRequest { name: nowhere() }).await;
    refused(answer, missing, "nowhere");
    let answer = admin.get_cluster(GetClusterRequest { name: "No Where".into() }).await;
    refused(answer, bad, "name: ");
    let answer = admin.get_cluster(GetClusterRequest { name: String::new() }).await;
    refused(answer, bad, "name: ");
    let request = ListWorkersRequest { cluster: nowhere(), ..Default::default() };
    refused(admin.list_workers(request).await, missing, "nowhere");
    let request = ListWorkersRequest { cluster: crawl(), page_token: "x".into(), page_size: 0 };
    refused(admin.list_workers(request).await, bad, "page_token: ");
    let request = GetWorkerRequest { cluster: crawl(), worker: "w-9".into() };
    refused(admin.get_worker(request).await, missing, "w-9");
    let request = GetWorkerRequest { cluster: crawl(), worker: "w\n9".into() };
    refused(admin.get_worker(request).await, bad, "worker: ");
    let request = ListStreamsRequest { set: nowhere(), ..Default::default() };
    refused(admin.list_streams(request).await, missing, "nowhere");
    let request = GetStreamRequest { set: "feeds".into(), stream: "z".into() };
    refused(admin.get_stream(request).await, missing, "\"z\"");
    let request = ExplainStreamRequest { set: "feeds".into(), stream: "z".into() };
    refused(admin.explain_stream(request).await, missing, "\"z\"");
    let request = ExplainWorkerRequest { cluster: crawl(), worker: "w-9".into() };
    refused(admin.explain_worker(request).await, missing, "w-9");
    let request = DrainWorkerRequest { cluster: crawl(), worker: "w-9".into() };
    refused(admin.drain_worker(request).await, missing, "w-9");
    let request =
        DeclareWorkerGoneRequest { cluster: crawl(), worker: "w-9".into(), incarnation: Some(0) };
    refused(admin.declare_worker_gone(request).await, missing, "w-9");
    let answer =
        admin.watch_changes(WatchChangesRequest { cluster: nowhere(), ..Default::default() }).await;
    refused(answer, missing, "nowhere");
    let request = PlanRequest { cluster: nowhere(), ..Default::default() };
    refused(admin.plan(request).await, missing, "nowhere");
    let twice = vec!["w-1".to_owned(); 2];
    let request =
        PlanRequest { cluster: crawl(), add_workers: twice.clone(), ..Default::default() };
    refused(admin.plan(request).await, bad, "add_workers: ");
    let request = PlanRequest { cluster: crawl(), remove_workers: twice, ..Default::default() };
    refused(admin.plan(request).await, bad, "remove_workers: ");
    let request = PlanRequest { cluster: crawl(), max_jobs: Some(u32::MAX), ..Default::default() };
    refused(admin.plan(request).await, bad, "max_jobs: ");
}

#[tokio::test]
async fn only_a_worker_that_is_not_connected_can_be_declared_gone() {
    let replica = Replica::leading().await;
    let agent = join_and_settle(&replica, "w-0", 3, 4).await;
    let mut admin = admin(&replica).await;
    let request = |incarnation| DeclareWorkerGoneRequest {
        cluster: "crawl".into(),
        worker: "w-0".into(),
        incarnation,
    };
    let answer = admin.declare_worker_gone(request(None)).await;
    refused(answer, Code::InvalidArgument, "incarnation: missing");
    let answer = admin.declare_worker_gone(request(Some(0))).await;
    refused(answer, Code::FailedPrecondition, "w-0");
    drop(agent);
    let worker = || GetWorkerRequest { cluster: "crawl".into(), worker: "w-0".into() };
    let incarnation = until(async || {
        let found = admin.get_worker(worker()).await.expect("a worker").into_inner().worker;
        let found = found.expect("a worker");
        (found.presence() != Presence::Connected)
            .then(|| found.incarnation.expect("it has reported"))
    })
    .await;
    for other in [0, incarnation + 1] {
        let answer = admin.declare_worker_gone(request(Some(other))).await;
        refused(answer, Code::FailedPrecondition, "incarnation");
    }
    let answer = admin.declare_worker_gone(request(Some(incarnation))).await;
    let freed = answer.expect("an answer").into_inner();
    assert_eq!((freed.slots_freed, freed.streams_freed), (3, 4));
    refused(admin.get_worker(worker()).await, Code::NotFound, "w-0");
}

/// `make flaky TEST=queries_after_an_orders_answer` repeats it under load.
#[tokio::test]
async fn queries_after_an_orders_answer_show_its_effect() {
    let replica = Replica::leading().await;
    let mut admin = admin(&replica).await;
    let cluster = || "crawl".to_owned();
    for number in 0..ORDERS {
        let name = format!("w-{number}");
        let worker = || GetWorkerRequest { cluster: cluster(), worker: name.clone() };
        let agent = join_and_settle(&replica, &name, 3, 4).await;
        let request = DrainWorkerRequest { cluster: cluster(), worker: name.clone() };
        admin.drain_worker(request).await.expect("an answer");
        let found = admin.get_worker(worker()).await.expect("a worker").into_inner().worker;
        let found = found.expect("a worker");
        assert!(found.drain_ordered, "order {number}: {found:?}");
        let request = UndrainWorkerRequest { cluster: cluster(), worker: name.clone() };
        admin.undrain_worker(request).await.expect("an answer");
        let found = admin.get_worker(worker()).await.expect("a worker").into_inner().worker;
        let found = found.expect("a worker");
        assert!(!found.drain_ordered, "order {number}: {found:?}");
        let incarnation = found.incarnation.expect("it has reported");
        drop(agent);
        until(async || {
            let found = admin.get_worker(worker()).await.expect("a worker").into_inner().worker;
            (found.expect("a worker").presence() != Presence::Connected).then_some(())
        })
        .await;
        let request = DeclareWorkerGoneRequest {
            cluster: cluster(),
            worker: name.clone(),
            incarnation: Some(incarnation),
        };
        let freed = admin.declare_worker_gone(request).await.expect("an answer").into_inner();
        assert_eq!((freed.slots_freed, freed.streams_freed), (3, 4), "order {number}");
        refused(admin.get_worker(worker()).await, Code::NotFound, &name);
        let request = GetClusterRequest { name: cluster() };
        let found = admin.get_cluster(request).await.expect("a cluster").into_inner().cluster;
        let found = found.expect("a cluster");
        assert_eq!((found.granted, found.streams_owned), (0, 0), "order {number}: {found:?}");
    }
}

#[tokio::test]
async fn an_ordered_drain_reaches_the_agent() {
    let replica = Replica::leading().await;
    let mut agent = join_and_settle(&replica, "w-0", 3, 4).await;
    let request = DrainWorkerRequest { cluster: "crawl".into(), worker: "w-0".into() };
    admin(&replica).await.drain_worker(request).await.expect("an answer");
    loop {
        let grant = agent.grant().await;
        if grant.drain {
            break;
        }
        agent.beat(&grant).await;
    }
}

#[tokio::test]
async fn a_what_if_plan_changes_nothing() {
    let replica = Replica::leading().await;
    let _agent = join_and_settle(&replica, "w-0", 3, 4).await;
    let mut admin = admin(&replica).await;
    let request = PlanRequest {
        cluster: "crawl".into(),
        add_workers: vec!["w-1".into()],
        max_jobs: Some(4),
        ..Default::default()
    };
    let plan = admin.plan(request).await.expect("a plan").into_inner();
    let pools: Vec<_> = plan.pools.iter().map(|pool| (pool.worker.as_str(), pool.size)).collect();
    assert_eq!(pools, [("w-0", 2), ("w-1", 2)]);
    assert_eq!(plan.moves.len(), 2, "{:?}", plan.moves);
    assert!(
        plan.moves.iter().all(|moved| moved.from == "w-0" && moved.to == "w-1"),
        "{:?}",
        plan.moves
    );
    let request = ListWorkersRequest { cluster: "crawl".into(), ..Default::default() };
    let workers = admin.list_workers(request).await.expect("a list").into_inner().workers;
    assert_eq!(workers.len(), 1);
    assert_eq!((workers[0].granted, workers[0].streams), (3, 4));
}

#[tokio::test]
async fn a_plan_adds_no_worker_twice_and_removes_none_that_is_not_there() {
    let replica = Replica::leading().await;
    let _agent = join_and_settle(&replica, "w-0", 3, 4).await;
    let mut admin = admin(&replica).await;
    let plan = |add: &str, remove: &str| PlanRequest {
        cluster: "crawl".into(),
        add_workers: add.split_whitespace().map(Into::into).collect(),
        remove_workers: remove.split_whitespace().map(Into::into).collect(),
        max_jobs: None,
    };
    let twice = "cluster crawl has a worker w-0 already";
    refused(admin.plan(plan("w-1 w-0", "")).await, Code::InvalidArgument, twice);
    refused(
        admin.plan(plan("", "w-01")).await,
        Code::NotFound,
        "no worker w-01; did you mean w-0?",
    );
    refused(admin.plan(plan("", "zebra")).await, Code::NotFound, "`leasehold workers crawl`");
    let left = admin.plan(plan("w-1", "w-0")).await.expect("a plan").into_inner();
    assert_eq!((left.pools[1].worker.as_str(), left.pools[1].size), ("w-1", 3), "{:?}", left.pools);
}

#[tokio::test]
async fn few_plans_are_made_at_once_and_other_calls_are_answered_meanwhile() {
    let replica = Replica::leading().await;
    let mut many = desired();
    for set in many.sets.values_mut() {
        let stream = |number| Stream {
            name: StreamName::new(&format!("s-{number}")).expect("a name"),
            weight: 1,
            dedicated: false,
        };
        Arc::make_mut(set).streams = Arc::new((0..60_000).map(stream).collect());
    }
    replica.send(Event::Desired(Arc::new(many))).await;
    let mut admin = admin(&replica).await;
    until(async || {
        let clusters = admin.list_clusters(ListClustersRequest {}).await.expect("a list");
        (clusters.get_ref().clusters[0].streams == 60_000).then_some(())
    })
    .await;
    let mut plans = JoinSet::new();
    for _ in 0..16 {
        let mut admin = admin.clone();
        plans.spawn(async move {
            admin.plan(PlanRequest { cluster: "crawl".into(), ..Default::default() }).await
        });
    }
    let mut answered = 0;
    let (mut made, mut refused) = (0, 0);
    while made + refused < 16 {
        tokio::select! {
            Some(plan) = plans.join_next() => match plan.expect("no panic") {
                Ok(plan) => {
                    assert_eq!(plan.get_ref().unplaced.len(), 60_000);
                    made += 1;
                }
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    assert!(status.message().contains("too many plans"), "{status}");
                    refused += 1;
                }
            },
            status = admin.get_status(GetStatusRequest {}) => {
                assert!(status.expect("a status").get_ref().leads);
                answered += 1;
            }
        }
    }
    assert!(made > 0 && refused > 0, "{made} made, {refused} refused");
    assert!(answered > 0, "no other call was answered");
}

/// A later watch replays the changes with their times.
async fn replays(admin: &mut AdminServiceClient<Channel>, seen: &[ChangeKind]) {
    for (replay, all) in [("", true), ("30m", true), ("0s", false)] {
        let request = WatchChangesRequest {
            cluster: "crawl".into(),
            replay: replay.into(),
            only_replay: true,
        };
        let mut past = admin.watch_changes(request).await.expect("a watch").into_inner();
        let mut again = Vec::new();
        let mut next = async || timeout(PATIENCE, past.message()).await.expect("an end in time");
        while let Some(change) = next().await.expect("an end after the replay") {
            assert!(change.replayed && change.time.ends_with('Z'), "{change:?}");
            // Earlier changes came before the first watch.
            if !again.is_empty() || Some(&change.kind()) == seen.first() {
                again.push(change.kind());
            }
        }
        again.truncate(seen.len());
        assert_eq!(again, if all { seen } else { &[] }, "replay {replay:?}");
    }
    let request = WatchChangesRequest { replay: "soon".into(), ..Default::default() };
    let wrong = admin.watch_changes(request).await.expect_err("no duration");
    assert!(wrong.message().contains("invalid duration \"soon\""), "{wrong}");
}

#[tokio::test]
async fn watchers_get_changes_as_they_happen() {
    let replica = Replica::leading().await;
    let mut admin = admin(&replica).await;
    let (cluster, replay) = ("crawl".into(), "0s".into());
    let request = WatchChangesRequest { cluster, replay, only_replay: false };
    let mut changes = admin.watch_changes(request).await.expect("a watch").into_inner();
    let _agent = join_and_settle(&replica, "w-0", 3, 4).await;
    replica.problems.send_replace(Arc::default());
    let mut seen = Vec::new();
    while seen.iter().filter(|kind| **kind == ChangeKind::StreamGranted).count() < 4
        || !seen.contains(&ChangeKind::Manifests)
    {
        let change = timeout(PATIENCE, changes.message()).await.expect("a change in time");
        let change = change.expect("a change").expect("a watch that goes on");
        if change.kind() == ChangeKind::PoolGranted {
            assert_eq!((change.worker.as_str(), change.size), ("w-0", 3));
        }
        seen.push(change.kind());
    }
    assert!(seen.contains(&ChangeKind::Joined), "{seen:?}");
    assert!(seen.contains(&ChangeKind::PoolGranted), "{seen:?}");
    replays(&mut admin, &seen).await;
    // The watch ends with the coordinator.
    tokio::spawn(replica.stop());
    let end = async { while changes.message().await.is_ok_and(|change| change.is_some()) {} };
    timeout(PATIENCE + Duration::from_secs(1), end).await.expect("an end");
}
