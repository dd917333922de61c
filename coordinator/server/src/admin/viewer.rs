//! Who watches changes, and which of them they may see. Each decision is asked for again while the
//! watch runs: a right that was taken away ends the watch of its cluster, and hides the rest.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_driver::access::{Access, Credentials, Denied, Permission, Subject};
use leasehold_proto::admin::v1::WatchChangesResponse;
use leasehold_types::{ClusterName, SetName};
use tokio::time::Instant;

/// How long a decision counts.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How long the last decision counts while access cannot be decided, as while the API server is
/// away.
const UNDECIDED_MAX: Duration = Duration::from_secs(300);
/// The most decisions of one watcher that are kept.
const DECISIONS_MAX: usize = 1_024;

/// A watcher.
#[derive(Debug)]
pub(super) struct Viewer {
    access: Access,
    shown: Credentials,
    /// The cluster that is watched; without one, all.
    cluster: Option<ClusterName>,
    /// How long a decision counts.
    interval: Duration,
    /// When the right to the watch was confirmed.
    confirmed_at: Instant,
    /// Which objects beside the cluster the watcher may read, and since when that is known.
    decisions: HashMap<Subject, (bool, Instant)>,
}

impl Viewer {
    /// A viewer whose right to [`Self::subject`] was just confirmed.
    pub(super) fn new(access: Access, shown: Credentials, cluster: Option<ClusterName>) -> Self {
        let (confirmed_at, decisions) = (Instant::now(), HashMap::new());
        Self { access, shown, cluster, interval: RECHECK_INTERVAL, confirmed_at, decisions }
    }

    /// The only cluster that is watched, if it is only one.
    pub(super) fn cluster(&self) -> Option<&ClusterName> {
        self.cluster.as_ref()
    }

    /// When the right to the watch is to be checked next.
    pub(super) fn recheck_at(&self) -> Instant {
        Instant::now() + self.interval
    }

    /// What a watcher of this cluster, or of all, must be allowed to read.
    pub(super) fn subject(cluster: Option<&ClusterName>) -> Subject {
        cluster.cloned().map_or(Subject::All, Subject::Cluster)
    }

    /// Checks again that the viewer may watch.
    ///
    /// # Errors
    /// If it may no longer, or if that could not be decided for long.
    pub(super) async fn recheck(&mut self) -> Result<(), Denied> {
        let permission = Permission::Read(Self::subject(self.cluster.as_ref()));
        match self.access.ask(self.shown.clone(), permission).await {
            Ok(_) => {
                self.confirmed_at = Instant::now();
                Ok(())
            }
            Err(Denied::Unavailable(_)) if self.confirmed_at.elapsed() < UNDECIDED_MAX => Ok(()),
            Err(denied) => Err(denied),
        }
    }

    /// Whether the viewer may see a change. Who may read everything sees all changes. In a watch of
    /// one cluster other objects need a right of their own; what concerns no object is shown to
    /// everybody.
    pub(super) async fn may_see(&mut self, change: &WatchChangesResponse) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        if !change.cluster.is_empty() && change.cluster != cluster.as_str() {
            return false;
        }
        if !change.pipeline.is_empty() && !is_beside(&change.pipeline, cluster) {
            return false;
        }
        // A pipeline belongs to the set of its namespace's shares.
        let set = match (change.set.as_str(), change.pipeline.as_str()) {
            ("", "") => return true,
            ("", _) => Some(cluster.shares()),
            (set, _) => SetName::new(set).ok(),
        };
        match set {
            Some(set) => self.may_read(Subject::Set(set)).await,
            None => false,
        }
    }

    /// Whether the viewer may see the streams of a set.
    pub(super) async fn may_read_set(&mut self, set: &str) -> bool {
        match SetName::new(set) {
            Ok(set) => self.may_read(Subject::Set(set)).await,
            Err(_) => false,
        }
    }

    async fn may_read(&mut self, subject: Subject) -> bool {
        let known = self.decisions.get(&subject).copied();
        if let Some((allowed, at)) = known
            && at.elapsed() < self.interval
        {
            return allowed;
        }
        let asked = self.access.ask(self.shown.clone(), Permission::Read(subject.clone())).await;
        let decision = match (asked, known) {
            (Ok(_), _) => (true, Instant::now()),
            // Not asked again at once: the next change may follow soon.
            (Err(Denied::Unavailable(_)), Some(known)) if known.1.elapsed() < UNDECIDED_MAX => {
                return known.0;
            }
            (Err(_), _) => (false, Instant::now()),
        };
        if self.decisions.len() >= DECISIONS_MAX {
            self.decisions.clear();
        }
        self.decisions.insert(subject, decision);
        decision.0
    }
}

/// Whether a pipeline is in the namespace of a cluster.
fn is_beside(pipeline: &str, cluster: &ClusterName) -> bool {
    let namespace = pipeline.split_once('/').map(|(namespace, _)| namespace);
    namespace == cluster.parts().0
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::{Arc, Mutex};

    use futures_util::{Stream, StreamExt};
    use leasehold_coordinator_core::effect::Notice;
    use leasehold_coordinator_core::view::PipelinePhase;
    use leasehold_driver::access::Caller;
    use leasehold_driver::history::{FleetChange, RecordedChange, Replay};
    use leasehold_proto::admin::v1::ChangeKind;
    use leasehold_types::limits::NamespaceShare;
    use leasehold_types::{Epoch, Moment, PipelineName, StreamKey, StreamName, Token, WorkerKey};
    use tokio::sync::{broadcast, mpsc};
    use tonic::{Code, Status};

    use super::super::caller_limits::{CallLimits, WatchLimits};
    use super::super::changes::watch;
    use super::*;
    use crate::grpc::credentials::Authorized;

    type Answer = fn(&Subject) -> Result<(), Denied>;

    /// A platform that answers as it is told.
    struct Platform {
        access: Access,
        answer: Arc<Mutex<Answer>>,
    }

    impl Platform {
        fn new(answer: Answer) -> Self {
            let answer = Arc::new(Mutex::new(answer));
            let (requests, mut asked) =
                mpsc::channel::<leasehold_driver::access::AccessRequest>(16);
            let answers = Arc::clone(&answer);
            tokio::spawn(async move {
                while let Some(request) = asked.recv().await {
                    let Permission::Read(subject) = &request.permission else {
                        panic!("{request:?}")
                    };
                    let decided = answers.lock().expect("the lock")(subject);
                    let ada = Caller::User("ada".into());
                    request.answer.send(decided.map(|()| ada)).expect("someone who asks");
                }
            });
            Self { access: Access::Asked(requests), answer }
        }

        fn change(&self, answer: Answer) {
            *self.answer.lock().expect("the lock") = answer;
        }

        fn watch(
            &self,
            live: broadcast::Receiver<Arc<RecordedChange>>,
            cluster: Option<&str>,
        ) -> Pin<Box<dyn Stream<Item = Result<WatchChangesResponse, Status>> + Send>> {
            let cluster = cluster.map(name);
            let mut viewer = Viewer::new(self.access.clone(), Credentials::default(), cluster);
            // Each change asks anew.
            viewer.interval = Duration::ZERO;
            let replay = Replay { missing: 0, changes: Vec::new(), live };
            let somebody = Authorized { caller: Caller::Unknown, connection: None };
            let call = CallLimits::new(NamespaceShare::WHOLE).begin(somebody).expect("a call");
            let permit = WatchLimits::new(NamespaceShare::WHOLE).begin(call).expect("a permit");
            Box::pin(watch(replay, false, viewer, permit))
        }
    }

    fn recorded(notice: Notice) -> Arc<RecordedChange> {
        Arc::new(RecordedChange::new(FleetChange::Notice(notice), Moment(0)))
    }

    fn name(name: &str) -> ClusterName {
        ClusterName::new(name).expect("a name")
    }

    fn forbidden() -> Result<(), Denied> {
        Err(Denied::Forbidden("ada may not".into()))
    }

    fn granted(cluster: &str, set: &str) -> Notice {
        let worker = leasehold_types::WorkerName::new("w-0").expect("a name");
        let set = SetName::new(set).expect("a name");
        let stream = StreamName::new("a").expect("a name");
        Notice::StreamGranted {
            worker: WorkerKey { cluster: name(cluster), worker },
            stream: StreamKey { set, stream },
            token: Token { epoch: Epoch(1), seq: 1 },
        }
    }

    fn pipeline(pipeline: &str) -> Notice {
        let pipeline = PipelineName::new(pipeline).expect("a name");
        let (from, to) = (None, Some(PipelinePhase::Ready));
        Notice::Pipeline { pipeline, from, to, why: String::new() }
    }

    async fn kinds(
        changes: impl Stream<Item = Result<WatchChangesResponse, Status>>,
    ) -> Vec<(ChangeKind, String)> {
        let mut changes = pin!(changes);
        let mut seen = Vec::new();
        while let Some(change) = changes.next().await {
            let change = change.expect("a change");
            seen.push((change.kind(), format!("{}{}", change.cluster, change.pipeline)));
        }
        seen
    }

    #[tokio::test]
    async fn a_replica_that_leads_again_says_since_when_changes_are_missing() {
        let platform = Platform::new(|_| Ok(()));
        let (sender, receiver) = broadcast::channel(8);
        let changes = platform.watch(receiver, None);
        for notice in [Notice::Elected(Epoch(1)), Notice::Deposed(Epoch(1))] {
            sender.send(recorded(notice)).expect("a watcher");
        }
        for epoch in [3, 4] {
            sender.send(recorded(Notice::Elected(Epoch(epoch)))).expect("a watcher");
        }
        drop(sender);
        let changes: Vec<_> = changes.map(|change| change.expect("a change")).collect().await;
        let missing = format!(
            "changes since {} are missing here: another replica led until now",
            changes[1].time
        );
        let said: Vec<_> = changes.iter().map(|change| change.message.as_str()).collect();
        assert_eq!(said, ["", "", &missing, ""]);
    }

    #[tokio::test]
    async fn a_slow_watcher_gets_the_number_of_changes_that_it_missed() {
        let platform = Platform::new(|_| Ok(()));
        let (sender, receiver) = broadcast::channel(2);
        let mut changes = platform.watch(receiver, None);
        for epoch in 1..=5 {
            sender.send(recorded(Notice::Elected(Epoch(epoch)))).expect("a watcher");
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
    async fn a_watcher_of_one_cluster_gets_no_change_of_another_or_of_another_namespace() {
        let platform = Platform::new(|_| Ok(()));
        let (sender, receiver) = broadcast::channel(16);
        let all = sender.subscribe();
        let ours = platform.watch(receiver, Some("ours/builds"));
        for notice in [
            Notice::HoldEnded(name("ours/other")),
            Notice::HoldEnded(name("theirs/builds")),
            Notice::Elected(Epoch(1)),
            pipeline("theirs/secret"),
            pipeline("ours/first"),
            granted("ours/builds", "ours/feeds"),
            granted("theirs/builds", "theirs/feeds"),
        ] {
            sender.send(recorded(notice)).expect("a watcher");
        }
        drop(sender);
        let want = [
            (ChangeKind::Elected, String::new()),
            (ChangeKind::Pipeline, "ours/first".to_owned()),
            (ChangeKind::StreamGranted, "ours/builds".to_owned()),
        ];
        assert_eq!(kinds(ours).await, want);
        assert_eq!(kinds(platform.watch(all, None)).await.len(), 7, "who may read all sees all");
    }

    #[tokio::test]
    async fn streams_and_pipelines_need_a_right_of_their_own() {
        let platform = Platform::new(|subject| match subject {
            Subject::Cluster(_) => Ok(()),
            _ => forbidden(),
        });
        let (sender, receiver) = broadcast::channel(16);
        let changes = platform.watch(receiver, Some("ours/builds"));
        for notice in [
            granted("ours/builds", "ours/feeds"),
            pipeline("ours/first"),
            Notice::HoldEnded(name("ours/builds")),
        ] {
            sender.send(recorded(notice)).expect("a watcher");
        }
        drop(sender);
        assert_eq!(kinds(changes).await, [(ChangeKind::HoldEnded, "ours/builds".to_owned())]);
    }

    #[tokio::test]
    async fn a_right_that_is_taken_away_ends_the_watch_and_hides_the_rest() {
        let platform = Platform::new(|_| Ok(()));
        let (sender, receiver) = broadcast::channel(16);
        let mut changes = platform.watch(receiver, Some("ours/builds"));
        let send = |notice| _ = sender.send(recorded(notice)).expect("a watcher");
        send(granted("ours/builds", "ours/feeds"));
        let first = changes.next().await.expect("no end").expect("a change");
        assert_eq!(first.kind(), ChangeKind::StreamGranted);

        platform.change(|subject| match subject {
            Subject::Set(_) => forbidden(),
            _ => Ok(()),
        });
        send(granted("ours/builds", "ours/feeds"));
        send(Notice::HoldEnded(name("ours/builds")));
        let next = changes.next().await.expect("no end").expect("a change");
        assert_eq!(next.kind(), ChangeKind::HoldEnded, "the stream is hidden");

        // While nobody can decide, the watch goes on; then it ends.
        platform.change(|_| Err(Denied::Unavailable("no answer".into())));
        send(Notice::HoldEnded(name("ours/builds")));
        assert!(changes.next().await.expect("no end").is_ok());
        platform.change(|_| forbidden());
        let end = changes.next().await.expect("the reason").expect_err("no right");
        assert_eq!((end.code(), end.message()), (Code::PermissionDenied, "ada may not"));
        assert!(changes.next().await.is_none());
    }
}
