//! The stream of changes. A watcher that is too slow gets the number of changes that it missed, and
//! then the oldest change that is still kept. Its right to see changes is checked again while it
//! watches.

use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use leasehold_coordinator_core::effect::{Freed, Notice};
use leasehold_driver::clock::Timestamp;
use leasehold_driver::history::{FleetChange, RecordedChange, Replay};
use leasehold_driver::order::{OrderKind, WorkerOrder};
use leasehold_proto::admin::v1::{ChangeKind, WatchChangesResponse};
use leasehold_types::limits::HISTORY_RETENTION;
use leasehold_types::{Epoch, StreamKey, Token, WorkerKey, duration};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use super::caller_limits::WatchPermit;
use super::error::AdminError;
use super::viewer::Viewer;
use super::wire;

/// How far back a watch goes; an hour if `text` is empty.
pub(super) fn replay_duration(text: &str) -> Result<Duration, AdminError> {
    if text.is_empty() {
        return Ok(HISTORY_RETENTION);
    }
    duration::parse(text).map_err(|error| AdminError::Invalid(format!("replay: {error}")))
}

/// The changes that the viewer may see; ends with the coordinator, after the replay if no other
/// changes are wanted, or with an error once the viewer has lost its right to the watch. Holds
/// `permit` until then.
pub(super) fn watch(
    replay: Replay,
    only_replay: bool,
    viewer: Viewer,
    permit: WatchPermit,
) -> impl Stream<Item = Result<WatchChangesResponse, Status>> + Send {
    let Replay { missing, changes, live } = replay;
    let missing = (missing > 0).then(|| WatchChangesResponse {
        skipped: missing,
        message: "older changes are no longer kept".into(),
        replayed: true,
        ..of(ChangeKind::Skipped)
    });
    let recheck_at = viewer.recheck_at();
    let watch = ChangeWatch {
        missing,
        replayed: changes.into_iter(),
        live: (!only_replay).then_some(live),
        viewer,
        recheck_at,
        deposed_at: None,
        has_ended: false,
        _permit: permit,
    };
    futures_util::stream::unfold(watch, ChangeWatch::next)
}

/// One watcher's stream.
struct ChangeWatch {
    missing: Option<WatchChangesResponse>,
    replayed: std::vec::IntoIter<Arc<RecordedChange>>,
    /// None if the watch ends after the replay.
    live: Option<Receiver<Arc<RecordedChange>>>,
    viewer: Viewer,
    /// When the viewer's right is checked again.
    recheck_at: Instant,
    /// Since when another replica leads, whose changes are not here.
    deposed_at: Option<String>,
    has_ended: bool,
    _permit: WatchPermit,
}

impl ChangeWatch {
    /// The next change, or why the stream ends.
    async fn next(mut self) -> Option<(Result<WatchChangesResponse, Status>, Self)> {
        if self.has_ended {
            return None;
        }
        if let Some(missing) = self.missing.take() {
            return Some((Ok(missing), self));
        }
        loop {
            if Instant::now() >= self.recheck_at {
                if let Err(denied) = self.viewer.recheck().await {
                    self.has_ended = true;
                    return Some((Err(AdminError::from(denied).into()), self));
                }
                self.recheck_at = self.viewer.recheck_at();
            }
            let response = tokio::select! {
                response = next_change(&mut self.replayed, self.live.as_mut()) => response?,
                () = sleep_until(self.recheck_at) => continue,
            };
            let Some(response) = response else { continue };
            let response = self.with_gap(response);
            if self.viewer.may_see(&response).await {
                return Some((Ok(response), self));
            }
        }
    }

    /// The same change. Where the replica leads again, it says whose changes are missing before it.
    fn with_gap(&mut self, mut change: WatchChangesResponse) -> WatchChangesResponse {
        match change.kind() {
            ChangeKind::Deposed => self.deposed_at = Some(change.time.clone()),
            ChangeKind::Elected => {
                if let Some(since) = self.deposed_at.take() {
                    change.message = format!(
                        "changes since {since} are missing here: another replica led until now"
                    );
                }
            }
            _ => {}
        }
        change
    }
}

/// The next change as a message, if watchers get one; `None` at the end.
async fn next_change(
    replayed: &mut std::vec::IntoIter<Arc<RecordedChange>>,
    live: Option<&mut Receiver<Arc<RecordedChange>>>,
) -> Option<Option<WatchChangesResponse>> {
    if let Some(recorded) = replayed.next() {
        let response = timed_response(&recorded);
        return Some(response.map(|response| WatchChangesResponse { replayed: true, ..response }));
    }
    match live?.recv().await {
        Ok(recorded) => Some(timed_response(&recorded)),
        Err(RecvError::Lagged(skipped)) => Some(Some(WatchChangesResponse {
            skipped,
            message: "the watcher was too slow".into(),
            time: Timestamp::now().to_string(),
            ..of(ChangeKind::Skipped)
        })),
        Err(RecvError::Closed) => None,
    }
}

/// The message for a change with its time, which is the same for every watcher.
fn timed_response(recorded: &RecordedChange) -> Option<WatchChangesResponse> {
    let response = response(recorded.change.clone())?;
    Some(WatchChangesResponse { time: recorded.at.to_string(), ..response })
}

/// The message for a change, if watchers get one.
fn response(change: FleetChange) -> Option<WatchChangesResponse> {
    match change {
        FleetChange::Notice(notice) => notice_response(notice),
        FleetChange::Ordered(WorkerOrder { kind, worker, by }) => {
            let what = match kind {
                OrderKind::Drain => "to drain",
                OrderKind::Undrain => "to drain no longer",
                OrderKind::DeclareGone => "to count as gone",
            };
            let message = format!("{by} ordered it {what}");
            Some(WatchChangesResponse { message, ..of_worker(ChangeKind::Ordered, &worker) })
        }
        FleetChange::Manifests { problems } => Some(WatchChangesResponse {
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
        Notice::Failing { worker, failure } => WatchChangesResponse {
            message: failure.to_string(),
            ..of_worker(ChangeKind::Failing, &worker)
        },
        Notice::NameRefused { worker, peer } => WatchChangesResponse {
            message: format!("another agent wants its name: {}", wire::peer(peer.as_deref())),
            ..of_worker(ChangeKind::NameRefused, &worker)
        },
        Notice::Recovered(worker) => of_worker(ChangeKind::Recovered, &worker),
        Notice::Gone(worker) => of_worker(ChangeKind::Gone, &worker),
        Notice::PoolGranted { worker, size, token, .. } => WatchChangesResponse {
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
        Notice::EpochRepeated { worker, epoch } => WatchChangesResponse {
            message: format!("has obeyed another leader of epoch {epoch}: the term is given up"),
            ..of_worker(ChangeKind::Offence, &worker)
        },
        Notice::ProtocolViolation { worker, rule } => {
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
