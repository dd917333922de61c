//! The stream of the fleet: everything first, then what changed. All watchers share one look at the
//! fleet, four times a second at most, and nobody looks while nobody watches.

mod snapshot;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::Stream;
use leasehold_driver::clock;
use leasehold_proto::admin::v1::{ClusterHistory, ClusterSample, WatchFleetResponse};
use leasehold_types::ClusterName;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;

use self::snapshot::Snapshot;
use super::caller_limits::WatchPermit;
use super::error::AdminError;
use super::status::StatusSource;
use super::viewer::Viewer;
use crate::cluster_history::{ClusterHistories, Sample};

/// The least time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// A look that takes long is followed by a pause of this many times its duration: watchers take at
/// most a twentieth of the driver's time.
const PAUSE_FACTOR: u32 = 19;
/// After this time without a change a message without one is sent.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// The most workers and pipelines of one message.
const ENTRIES_MAX: usize = 1_000;

/// Looks at the fleet while somebody watches.
#[derive(Debug)]
pub(super) struct FleetWatchers {
    source: StatusSource,
    /// The present looks; they end with their last watcher.
    looks: Mutex<Weak<Looks>>,
}

/// The looks that the present watchers share.
#[derive(Debug)]
struct Looks {
    latest: watch::Receiver<Look>,
    task: AbortHandle,
}

/// What the last look has shown.
#[derive(Clone, Debug)]
enum Look {
    /// There was none yet.
    Pending,
    Seen(Arc<Snapshot>),
    /// This replica does not lead, or stops.
    Ended(Status),
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FleetWatchers {
    pub(super) fn new(source: StatusSource) -> Self {
        Self { source, looks: Mutex::default() }
    }

    /// The looks that others share already, or new ones.
    fn looks(&self) -> Arc<Looks> {
        let mut shared = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let going_on = shared.upgrade().filter(|looks| !looks.has_ended());
        going_on.unwrap_or_else(|| {
            let (sender, latest) = watch::channel(Look::Pending);
            let task = tokio::spawn(look(self.source.clone(), sender)).abort_handle();
            let looks = Arc::new(Looks { latest, task });
            *shared = Arc::downgrade(&looks);
            looks
        })
    }

    /// The fleet as the viewer may see it; ends once this replica no longer leads, or the viewer
    /// may no longer watch. Holds `permit` until then.
    pub(super) fn watch(
        &self,
        viewer: Viewer,
        histories: &ClusterHistories,
        permit: WatchPermit,
    ) -> impl Stream<Item = Result<WatchFleetResponse, Status>> + Send + use<> {
        let looks = self.looks();
        let histories = histories_of(histories, viewer.cluster());
        let recheck_at = viewer.recheck_at();
        let watch = FleetWatch {
            latest: looks.latest.clone(),
            _looks: looks,
            viewer,
            recheck_at,
            histories,
            shown: None,
            waiting: VecDeque::new(),
            has_ended: false,
            _permit: permit,
        };
        futures_util::stream::unfold(watch, FleetWatch::next)
    }
}

impl Looks {
    fn has_ended(&self) -> bool {
        matches!(*self.latest.borrow(), Look::Ended(_))
    }
}

/// Looks again and again, until this replica does not lead.
async fn look(source: StatusSource, latest: watch::Sender<Look>) {
    let mut before = None;
    loop {
        let begun = Instant::now();
        match Snapshot::take(&source, before.as_deref()).await {
            Ok(snapshot) => {
                let snapshot = Arc::new(snapshot);
                before = Some(Arc::clone(&snapshot));
                latest.send_replace(Look::Seen(snapshot));
            }
            Err(why) => {
                latest.send_replace(Look::Ended(why.into()));
                return;
            }
        }
        let pause = (begun.elapsed() * PAUSE_FACTOR).max(LOOK_INTERVAL);
        sleep(pause).await;
    }
}

fn histories_of(histories: &ClusterHistories, only: Option<&ClusterName>) -> Vec<ClusterHistory> {
    let now = clock::now();
    let sample = |sample: Sample| ClusterSample {
        seconds_ago: u32::try_from(now.since(sample.at).as_secs()).unwrap_or(u32::MAX),
        max_jobs: sample.jobs_max,
        committed: sample.committed,
        running: sample.running,
        granted: sample.granted,
    };
    let histories = histories.of(only).into_iter().map(|(cluster, samples)| ClusterHistory {
        cluster: cluster.to_string(),
        samples: samples.into_iter().map(sample).collect(),
    });
    histories.collect()
}

/// One watcher's stream.
struct FleetWatch {
    latest: watch::Receiver<Look>,
    _looks: Arc<Looks>,
    viewer: Viewer,
    /// When the viewer's right is checked again.
    recheck_at: Instant,
    /// For the first message.
    histories: Vec<ClusterHistory>,
    /// What the watcher has been shown.
    shown: Option<Arc<Snapshot>>,
    /// Messages of one moment that are still to be sent.
    waiting: VecDeque<WatchFleetResponse>,
    has_ended: bool,
    _permit: WatchPermit,
}

impl FleetWatch {
    /// The next message, or why the stream ends.
    async fn next(mut self) -> Option<(Result<WatchFleetResponse, Status>, Self)> {
        if self.has_ended {
            return None;
        }
        if let Some(message) = self.waiting.pop_front() {
            return Some((Ok(message), self));
        }
        match self.changes().await {
            Ok(changes) => {
                self.waiting = parts(changes).into();
                let message = self.waiting.pop_front().expect("there is always one part");
                Some((Ok(message), self))
            }
            Err(status) => {
                self.has_ended = true;
                Some((Err(status), self))
            }
        }
    }

    /// What has changed since the last message, once anything has or it is time for a message.
    async fn changes(&mut self) -> Result<WatchFleetResponse, Status> {
        let silent_from = Instant::now() + SILENCE_MAX;
        loop {
            if Instant::now() >= self.recheck_at {
                self.viewer.recheck().await.map_err(AdminError::from)?;
                self.recheck_at = self.viewer.recheck_at();
            }
            let wait_until = silent_from.min(self.recheck_at);
            let is_due = tokio::select! {
                changed = self.latest.changed() => {
                    // The sender lives as long as its task, and that as long as the watchers.
                    changed.map_err(|_| AdminError::Stopped)?;
                    Instant::now() >= silent_from
                }
                () = sleep_until(wait_until) => wait_until == silent_from,
            };
            let look = self.latest.borrow().clone();
            let now = match look {
                Look::Pending => continue,
                Look::Seen(snapshot) => self.visible(snapshot).await,
                Look::Ended(status) => return Err(status),
            };
            let changes = now.changes_since(self.shown.as_deref());
            let time = now.time().to_owned();
            let is_first = self.shown.replace(now).is_none();
            if is_first || is_due || changes != WatchFleetResponse::default() {
                let histories = std::mem::take(&mut self.histories);
                return Ok(WatchFleetResponse { time, histories, ..changes });
            }
        }
    }

    /// What the viewer may see of it.
    async fn visible(&mut self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        let Some(cluster) = self.viewer.cluster().cloned() else { return snapshot };
        let mut hidden = Vec::new();
        for set in snapshot.sets_on(&cluster) {
            if !self.viewer.may_read_set(&set).await {
                hidden.push(set);
            }
        }
        Arc::new(snapshot.of_cluster(&cluster, &hidden))
    }
}

/// The same changes in messages of a bounded size.
fn parts(mut whole: WatchFleetResponse) -> Vec<WatchFleetResponse> {
    let mut workers = std::mem::take(&mut whole.workers).into_iter();
    let mut pipelines = std::mem::take(&mut whole.pipelines).into_iter();
    let time = whole.time.clone();
    let mut parts = vec![whole];
    loop {
        let part = parts.last_mut().expect("there is one");
        part.workers = workers.by_ref().take(ENTRIES_MAX).collect();
        part.pipelines = pipelines.by_ref().take(ENTRIES_MAX).collect();
        if workers.len() == 0 && pipelines.len() == 0 {
            return parts;
        }
        part.more = true;
        parts.push(WatchFleetResponse { time: time.clone(), ..WatchFleetResponse::default() });
    }
}
