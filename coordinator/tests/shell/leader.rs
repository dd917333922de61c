//! Who leads, as a replica answers it to agents that follow.

use std::sync::Arc;

use leasehold_coordinator_core::event::{Event, KnownLeader};
use leasehold_proto::coordinator::v1::leader_service_client::LeaderServiceClient;
use leasehold_proto::coordinator::v1::{WatchLeaderRequest, WatchLeaderResponse};
use leasehold_types::Epoch;
use tonic::Streaming;

use crate::agent::connect;
use crate::replica::{LONG, Replica, desired, options, soon};

const LEADER: &str = "leader.example:7400";

async fn follow(replica: &Replica, worker: &str) -> Streaming<WatchLeaderResponse> {
    let mut client = LeaderServiceClient::new(connect(replica.grpc).await);
    let request =
        WatchLeaderRequest { cluster: "crawl".into(), worker: worker.into(), cell: String::new() };
    client.watch_leader(request).await.expect("it may follow").into_inner()
}

/// The leader and its epoch in the next response; `None` at the end of the stream.
async fn next(responses: &mut Streaming<WatchLeaderResponse>) -> Option<(String, u64)> {
    let response = soon(responses.message()).await.expect("no error");
    response.map(|WatchLeaderResponse { leader, epoch }| (leader, epoch))
}

#[tokio::test]
async fn agents_are_sent_the_leaders_epoch_until_the_replica_itself_leads() {
    let replica = Replica::start(options()).await;
    let mut early = follow(&replica, "w-0").await;
    assert_eq!(next(&mut early).await, Some((String::new(), 0)));
    for (epoch, sent) in [(None, 0), (Some(Epoch(7)), 7), (Some(Epoch(8)), 8)] {
        let leader = KnownLeader { address: LEADER.into(), epoch };
        replica.send(Event::Deposed { leader: Some(leader) }).await;
        assert_eq!(next(&mut early).await, Some((LEADER.to_owned(), sent)));
    }
    let mut late = follow(&replica, "w-1").await;
    assert_eq!(next(&mut late).await, Some((LEADER.to_owned(), 8)), "the first response");

    replica.send(Event::Desired(Arc::new(desired()))).await;
    replica.elect(9, LONG).await;
    let own = (replica.grpc.to_string(), 9);
    for stream in [&mut early, &mut late] {
        let mut last = None;
        // No leader is known while the replica starts its term.
        while let Some(response) = next(stream).await {
            last = Some(response);
        }
        assert_eq!(last.as_ref(), Some(&own), "the last response");
    }
    let mut of_leader = follow(&replica, "w-2").await;
    assert_eq!(next(&mut of_leader).await, Some(own));
    assert_eq!(next(&mut of_leader).await, None, "the stream of a leader ends");
}
