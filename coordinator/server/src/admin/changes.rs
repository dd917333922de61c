//! The stream of changes. A watcher that is too slow gets the number of changes that it missed, and
//! then the oldest change that is still kept.

use std::future::ready;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use leasehold_coordinator_core::effect::{Freed, Notice};
use leasehold_driver::clock::Timestamp;
use leasehold_driver::history::{Change, HISTORY_RETENTION, Replay};
use leasehold_proto::admin::v1::{ChangeKind, WatchChangesResponse};
use leasehold_types::{ClusterName, Epoch, StreamKey, Token, WorkerKey, duration};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tonic::Status;

use super::error::AdminError;
use super::wire;

/// How far back a watch goes; an hour if `text` is empty.
pub(super) fn replay_duration(text: &str) -> Result<Duration, AdminError> {
    if text.is_empty() {
        return Ok(HISTORY_RETENTION);
    }
    duration::parse(text).map_err(|error| AdminError::Invalid(format!("replay: {error}")))
}

/// The changes of `cluster`, or all; ends with the coordinator. Holds `permit` until then.
pub(super) fn watch(
    replay: Replay,
    cluster: Option<ClusterName>,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<WatchChangesResponse, Status>> + Send {
    let Replay { missing, changes, live } = replay;
    let missing = (missing > 0).then(|| WatchChangesResponse {
        skipped: missing,
        message: "older changes are no longer kept".into(),
        replayed: true,
        ..of(ChangeKind::Skipped)
    });
    let replayed = changes.into_iter().filter_map(|recorded| {
        let response = response(recorded.change.clone())?;
        Some(WatchChangesResponse { time: recorded.at.to_string(), replayed: true, ..response })
    });
    let replayed = futures_util::stream::iter(missing.into_iter().chain(replayed));
    let all = replayed.chain(live_changes(live, permit));
    let concerns = move |response: &WatchChangesResponse| match &cluster {
        Some(cluster) => response.cluster.is_empty() || response.cluster == cluster.as_str(),
        None => true,
    };
    all.filter(move |response| ready(concerns(response))).map(Ok)
}

/// Every change from now on.
fn live_changes(
    changes: Receiver<Change>,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = WatchChangesResponse> + Send {
    futures_util::stream::unfold((changes, permit), |(mut changes, permit)| async move {
        loop {
            let response = match changes.recv().await {
                Ok(change) => match response(change) {
                    Some(response) => response,
                    None => continue,
                },
                Err(RecvError::Lagged(skipped)) => WatchChangesResponse {
                    skipped,
                    message: "the watcher was too slow".into(),
                    ..of(ChangeKind::Skipped)
                },
                Err(RecvError::Closed) => return None,
            };
            let response = WatchChangesResponse { time: Timestamp::now().to_string(), ..response };
            return Some((response, (changes, permit)));
        }
    })
}

/// The message for a change, if watchers get one.
fn response(change: Change) -> Option<WatchChangesResponse> {
    match change {
        Change::Notice(notice) => notice_response(notice),
        Change::Manifests { problems } => Some(WatchChangesResponse {
            message: match problems {
                0 => "the manifests have no problem".into(),
                count => format!("the manifests have problems: {count}"),
            },
            ..of(ChangeKind::Manifests)
        }),
    }
}

fn notice_response(notice: Notice) -> Option<WatchChangesResponse> {
    Some(match notice {
        Notice::Elected(epoch) => of_epoch(ChangeKind::Elected, epoch),
        Notice::Deposed(epoch) => of_epoch(ChangeKind::Deposed, epoch),
        Notice::HoldEnded(cluster) => {
            WatchChangesResponse { cluster: cluster.to_string(), ..of(ChangeKind::HoldEnded) }
        }
        Notice::Joined(worker) => of_worker(ChangeKind::Joined, &worker),
        Notice::Disconnected(worker) => of_worker(ChangeKind::Disconnected, &worker),
        Notice::Lost(worker) => of_worker(ChangeKind::Lost, &worker),
        // A notice that the worker is gone follows.
        Notice::GivenUp { .. } => return None,
        Notice::DrainStarted(worker) => of_worker(ChangeKind::DrainStarted, &worker),
        Notice::Gone(worker) => of_worker(ChangeKind::Gone, &worker),
        Notice::PoolGranted { worker, size, token } => WatchChangesResponse {
            token: token.to_string(),
            size,
            ..of_worker(ChangeKind::PoolGranted, &worker)
        },
        Notice::StreamGranted { worker, stream, token } => {
            of_stream(ChangeKind::StreamGranted, &worker, &stream, token)
        }
        Notice::StreamRevoked { worker, stream, token } => {
            of_stream(ChangeKind::StreamRevoked, &worker, &stream, token)
        }
        Notice::StreamFreed { worker, stream, token, how } => {
            let kind = match how {
                Freed::Released => ChangeKind::StreamReleased,
                Freed::Expired => ChangeKind::StreamExpired,
                Freed::Gone => ChangeKind::StreamGone,
            };
            of_stream(kind, &worker, &stream, token)
        }
        Notice::Pipeline { pipeline, to, why, .. } => WatchChangesResponse {
            pipeline: pipeline.to_string(),
            pipeline_phase: to.map_or(0, |to| wire::pipeline_phase(to).into()),
            message: why,
            ..of(ChangeKind::Pipeline)
        },
        Notice::Binding { pipeline, node, to, .. } => WatchChangesResponse {
            pipeline: pipeline.to_string(),
            node: node.to_string(),
            binding_phase: to.map_or(0, |to| wire::binding_phase(to).into()),
            ..of(ChangeKind::Binding)
        },
        // Changed shares have notices of their own.
        Notice::Endpoints { .. } => return None,
        Notice::EpochAhead { worker, seen } => WatchChangesResponse {
            message: format!("remembers epoch {seen}, which this leader's store does not know"),
            ..of_worker(ChangeKind::Offence, &worker)
        },
        Notice::Offence { worker, rule } => {
            WatchChangesResponse { message: rule.into(), ..of_worker(ChangeKind::Offence, &worker) }
        }
    })
}

fn of(kind: ChangeKind) -> WatchChangesResponse {
    WatchChangesResponse { kind: kind.into(), ..WatchChangesResponse::default() }
}

fn of_epoch(kind: ChangeKind, epoch: Epoch) -> WatchChangesResponse {
    WatchChangesResponse { epoch: epoch.0, ..of(kind) }
}

fn of_worker(kind: ChangeKind, worker: &WorkerKey) -> WatchChangesResponse {
    WatchChangesResponse {
        cluster: worker.cluster.to_string(),
        worker: worker.worker.to_string(),
        ..of(kind)
    }
}

fn of_stream(
    kind: ChangeKind,
    worker: &WorkerKey,
    stream: &StreamKey,
    token: Token,
) -> WatchChangesResponse {
    WatchChangesResponse {
        set: stream.set.to_string(),
        stream: stream.stream.to_string(),
        token: token.to_string(),
        ..of_worker(kind, worker)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use tokio::sync::{Semaphore, broadcast};

    use super::*;

    fn from_now_on(live: Receiver<Change>) -> Replay {
        Replay { missing: 0, changes: Vec::new(), live }
    }

    #[tokio::test]
    async fn a_slow_watcher_gets_the_number_of_changes_that_it_missed() {
        let (sender, receiver) = broadcast::channel(2);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a free permit");
        let mut changes = pin!(watch(from_now_on(receiver), None, permit));
        for epoch in 1..=5 {
            sender.send(Change::Notice(Notice::Elected(Epoch(epoch)))).expect("a watcher");
        }
        drop(sender);
        let mut seen = Vec::new();
        while let Some(change) = changes.next().await {
            let change = change.expect("a change");
            seen.push((change.kind(), change.skipped, change.epoch));
        }
        let elected = ChangeKind::Elected;
        assert_eq!(seen, [(ChangeKind::Skipped, 3, 0), (elected, 0, 4), (elected, 0, 5)]);
    }

    #[tokio::test]
    async fn a_watcher_of_one_cluster_gets_no_changes_of_others() {
        let (sender, receiver) = broadcast::channel(8);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a free permit");
        let cluster = |name| ClusterName::new(name).expect("a name");
        let mut changes = pin!(watch(from_now_on(receiver), Some(cluster("ours")), permit));
        for notice in [
            Notice::HoldEnded(cluster("other")),
            Notice::Elected(Epoch(1)),
            Notice::HoldEnded(cluster("ours")),
        ] {
            sender.send(Change::Notice(notice)).expect("a watcher");
        }
        drop(sender);
        let mut seen = Vec::new();
        while let Some(change) = changes.next().await {
            seen.push(change.expect("a change").kind());
        }
        assert_eq!(seen, [ChangeKind::Elected, ChangeKind::HoldEnded]);
    }
}
