//! A round of writes that takes long, by an API server that takes every renewal.

use axum::http::{Request, Response};
use kube::Client;
use kube::client::Body;
use leasehold_types::{ClusterName, Epoch, TimeBounds, WorkerName};
use serde_json::{Value, json};

use super::*;

/// Pods that are never written.
#[derive(Clone)]
struct Stuck;

impl Exposures for Stuck {
    async fn list_exposed(&self) -> anyhow::Result<BTreeMap<WorkerKey, Exposure>> {
        Ok(BTreeMap::new())
    }

    async fn expose(&self, entries: &[(WorkerKey, Exposure)]) -> Vec<bool> {
        vec![false; entries.len()]
    }

    async fn conceal(&self, _: &[WorkerKey]) {}
}

async fn answer(request: Request<Body>) -> kube::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let lease = match head.method.as_str() {
        "GET" => json!({ "metadata": { "resourceVersion": "5" }, "items": [] }),
        _ => {
            let body = body.collect_bytes().await?;
            let mut lease: Value = serde_json::from_slice(&body).expect("a Lease");
            lease["metadata"]["resourceVersion"] = json!("6");
            lease
        }
    };
    let body = Body::from(lease.to_string().into_bytes());
    Ok(Response::builder().status(200).body(body).expect("a response"))
}

#[tokio::test]
async fn a_renewal_within_a_round_is_told_before_the_round_is_done() {
    let client = Client::new(tower::service_fn(answer), "ns");
    let leadership = Duration::from_secs(10);
    let election = Election::new(client, "ns", "me".into(), "here:1".into(), leadership);
    let look = election.read().await.expect("an answer");
    let taken = election.take(&look, Epoch(0), TimeBounds::default(), Duration::ZERO).await;
    let (seat, sent_at) = taken.expect("an answer").expect("taken");
    let cluster = ClusterName::new("ci/builds").expect("a name");
    let worker = WorkerName::new("w-0").expect("a name");
    let change = (WorkerKey { cluster, worker }, Some(Exposure::default()));
    let (sender, renewals) = watch::channel(sent_at);
    let round = Round {
        election,
        exposures: Stuck,
        seat,
        renewed_at: sent_at,
        renewals: sender,
        // Whatever is written, leadership is renewed before.
        fresh: Duration::ZERO,
        changes: vec![change.clone()],
    };
    let done = round.run().await;
    assert_eq!(done.undone, [change]);
    let Ok(Standing::Leads { sent_at: last }) = done.standing else { panic!("leads no more") };
    let within = *renewals.borrow();
    assert!(sent_at < within && within < last, "{sent_at:?} {within:?} {last:?}");
}
