//! One user who asks all the time leaves places for the others.

use std::sync::Arc;

use leasehold_coordinator_core::desired::Stream;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::access::{Access, AccessRequest, Caller};
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::*;
use leasehold_types::StreamName;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::agent::connect;
use crate::replica::{LONG, Replica, desired, options, soon, until};

/// Streams of the cluster, so that a plan takes a while.
const STREAMS: usize = 60_000;
/// Tasks that plan all the time, and plans of another user meanwhile.
const PLANNERS: usize = 8;
const PLANS: usize = 5;

/// Grants everything; a token is its user's name.
async fn grant_all(mut asked: mpsc::Receiver<AccessRequest>) {
    while let Some(AccessRequest { shown, answer, .. }) = asked.recv().await {
        let user = Caller::User(shown.token.expect("a token"));
        // The caller may have gone.
        let _ = answer.send(Ok(user));
    }
}

fn by<T>(user: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let token = format!("Bearer {user}").parse().expect("a value");
    request.metadata_mut().insert("authorization", token);
    request
}

async fn plan(admin: &mut AdminServiceClient<Channel>, user: &str) -> Result<PlanResponse, Status> {
    let request = PlanRequest { cluster: "crawl".into(), ..PlanRequest::default() };
    admin.plan(by(user, request)).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn the_accounts_of_a_namespace_that_plan_all_the_time_leave_a_place_for_others() {
    let (questions, asked) = mpsc::channel(64);
    let replica = Replica::start_with(options(), Access::Asked(questions)).await;
    tokio::spawn(grant_all(asked));
    let mut many = desired();
    for set in many.sets.values_mut() {
        let stream = |number| Stream {
            name: StreamName::new(&format!("s-{number}")).expect("a name"),
            weight: 1,
            dedicated: false,
        };
        Arc::make_mut(set).streams = Arc::new((0..STREAMS).map(stream).collect());
    }
    replica.send(Event::Desired(Arc::new(many))).await;
    replica.elect(1, LONG).await;
    let mut admin = AdminServiceClient::new(connect(replica.grpc).await);
    until(async || plan(&mut admin, "bob").await.ok()).await;

    let mut planners = JoinSet::new();
    let (refusals, mut refused) = mpsc::channel(1);
    for number in 0..PLANNERS {
        let (mut admin, refusals) = (admin.clone(), refusals.clone());
        planners.spawn(async move {
            loop {
                let account = format!("system:serviceaccount:ci:account-{number}");
                if let Err(status) = plan(&mut admin, &account).await {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    // The test looks at the first one only.
                    let _ = refusals.try_send(status);
                }
            }
        });
    }
    let refused = soon(refused.recv()).await.expect("a refusal");
    assert!(refused.message().contains("too many plans"), "{refused}");
    for _ in 0..PLANS {
        let made = plan(&mut admin, "bob").await.expect("another user's plan");
        assert_eq!(made.unplaced.len(), STREAMS);
    }
    assert_eq!(planners.len(), PLANNERS, "a planner has ended");
}
