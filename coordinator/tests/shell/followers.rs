//! Replicas that follow each other are named to people.

use leasehold_proto::admin::v1::GetStatusRequest;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::coordinator::v1::FollowRequest;
use leasehold_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use tonic::transport::Channel;

use crate::agent::connect;
use crate::replica::{Replica, until};

/// Waits until a replica lists these addresses.
async fn lists(admin: &mut AdminServiceClient<Channel>, mut wanted: Vec<String>) {
    wanted.sort();
    until(async || {
        let status = admin.get_status(GetStatusRequest {}).await.expect("a status");
        let replicas = status.into_inner().replicas;
        let addresses: Vec<_> = replicas.iter().map(|one| one.address.clone()).collect();
        (addresses == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_leader_names_its_followers_to_people_and_to_each_follower() {
    let leader = Replica::leading().await;
    let own = leader.grpc.to_string();
    let mut admin = AdminServiceClient::new(connect(leader.grpc).await);
    lists(&mut admin, vec![own.clone()]).await;
    let mut peers = PeerServiceClient::new(connect(leader.grpc).await);
    let standby = "10.1.2.3:7400".to_owned();
    let request = FollowRequest {
        identity: "standby".into(),
        address: standby.clone(),
        version: "9.8.7".into(),
    };
    let follow = peers.follow(request).await.expect("it may follow");
    let mut heartbeats = follow.into_inner();
    let heartbeat = heartbeats.message().await.expect("a stream").expect("a heartbeat");
    let named = heartbeat.replicas.iter().find(|one| one.address == standby);
    assert_eq!(named.expect("the follower").version, "9.8.7");
    assert!(heartbeat.replicas.iter().any(|one| one.address == own), "the leader itself");
    lists(&mut admin, vec![own.clone(), standby.clone()]).await;

    let status = admin.get_status(GetStatusRequest {}).await.expect("a status").into_inner();
    assert_eq!(status.address, own);
    for replica in status.replicas {
        assert_eq!(replica.leads, replica.address == own, "{replica:?}");
    }
    drop(heartbeats);
    lists(&mut admin, vec![own]).await;
}
