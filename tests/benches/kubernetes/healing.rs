//! How long pipelines are broken after the worker that served them is lost, beside the shortest
//! time in which a client that polls once a second could have noticed. A pod is lost in two ways:
//! its processes are killed and the node says so, or it is removed by force. The latter proves
//! nothing: its worker may run on, so that its shares are free when its lease is over.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use rustix::process::Signal;
use tests::kube::{Access, FleetFixture, Work};
use tests::process::soon;
use tokio::sync::mpsc;
use tokio::time::{interval, sleep};
use tokio_stream::StreamExt;

use crate::figures::Figures;
use crate::namespace;

/// All of them run on one worker; the other two stand by.
const PIPELINES: usize = 2;
const WORKERS: usize = 3;
/// Between two looks of the poll.
const POLL: Duration = Duration::from_secs(1);

fn manifest(fixture: &FleetFixture) -> String {
    let pipelines = (1..=PIPELINES).map(|number| {
        format!(
            r"
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {{name: p{number}}}
spec: {{documentsPerSecond: 10, workers: {{only: {{class: yellow}}}}}}"
        )
    });
    format!(
        r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {{name: yellow}}
spec:
  capacity: 200
  replicas: {WORKERS}
  maxReplicas: {WORKERS}
  port: 8080
  lease: {{ttl: 1s}}
  template:
    spec:
      affinity: {}
      containers: [{{name: worker, image: example.invalid/worker:1}}]{}
",
        fixture.affinity(),
        pipelines.collect::<String>()
    )
}

/// An event of the API server, and when it arrived.
enum HealingEvent {
    PodGone(String, Instant),
    Phase(String, String, Instant),
    PollMissed(String, Instant),
}

/// Loses the worker that serves all pipelines, this many times.
pub(crate) async fn measure(access: &Access, runs: usize, figures: &mut Figures) {
    let namespace = namespace(access, "healing");
    let fixture = FleetFixture::set(access, &namespace, 1, 1, Work::File).await;
    fixture.apply(&manifest(&fixture));
    println!("==> pipelines healed after a pod was lost, {runs} times");
    let (sender, mut seen) = mpsc::unbounded_channel();
    let client = access.client().await;
    tokio::spawn(watch_pods(client.clone(), namespace.clone(), sender.clone()));
    tokio::spawn(watch_pipelines(client.clone(), namespace.clone(), sender.clone()));
    tokio::spawn(poll(client, namespace.clone(), sender));
    for (how, is_forced) in [("whose end is reported", false), ("removed by force (ttl 1 s)", true)]
    {
        let (mut first, mut all, mut polled) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..runs {
            let victim = soon("pipelines that are ready", || serving(&fixture)).await;
            while seen.try_recv().is_ok() {}
            // The poll is caught at any point of its second.
            sleep(POLL.mul_f64((run as f64 * 0.618).fract())).await;
            lose(&fixture, &victim, is_forced);
            let (healed, noticed) = healing(&victim, &mut seen).await;
            first.extend(healed.first());
            all.extend(healed.last());
            polled.push(noticed);
        }
        figures.add(&format!("a pod {how}: its first pipeline healed"), &first);
        figures.add(&format!("a pod {how}: its second one, too"), &all);
        figures.add(&format!("a pod {how}: a poll of 1 s sees it"), &polled);
    }
    fixture.kubectl(&["delete", "pipeline", "--all", "--wait=false"]);
    fixture.kubectl(&["delete", "workerclass", "yellow", "--wait=false"]);
    soon("the end of all pods", || {
        fixture.kubectl(&["get", "pods", "--output=name"]).is_empty().then_some(())
    })
    .await;
}

/// Ends a pod: its agent is killed and its node says that nothing of it runs, or it is removed
/// whatever runs.
fn lose(fixture: &FleetFixture, victim: &str, is_forced: bool) {
    let delete = ["delete", "pod", victim, "--wait=false"];
    if is_forced {
        fixture.kubectl(&[&delete[..], &["--grace-period=0", "--force"]].concat());
        return;
    }
    let pods = fixture.pods();
    let pod = pods.iter().find(|pod| pod["metadata"]["name"] == victim);
    let uid = pod.and_then(|pod| pod["metadata"]["uid"].as_str()).expect("it is there");
    let member = fixture.fleet.member(uid).expect("it runs");
    let (agent, _) = member.agent.as_ref().expect("it has an agent");
    agent.lock().expect("no panic while it is held").signal(Signal::KILL);
    fixture.kubectl(&delete);
}

/// The pod that serves all pipelines, once they are ready and every worker is there.
fn serving(fixture: &FleetFixture) -> Option<String> {
    let class = fixture.get("workerclass", "yellow")?;
    let workers = class["status"]["workers"]["ready"].as_u64()?;
    let mut pods = BTreeSet::new();
    for number in 1..=PIPELINES {
        let ready = fixture.get("pipeline", &format!("p{number}"))?["status"]["phase"] == "Ready";
        let binding = fixture.get("pipelinebinding", &format!("p{number}-only"))?;
        let worker = binding["status"]["workerList"][0]["name"].as_str()?.to_owned();
        pods.extend(ready.then_some(worker));
    }
    let pod = pods.pop_first()?;
    (workers == WORKERS as u64 && pods.is_empty()).then_some(pod)
}

/// How long after the pod's end each pipeline was ready again, shortest first, and after which
/// time the poll missed the pod.
async fn healing(
    victim: &str,
    seen: &mut mpsc::UnboundedReceiver<HealingEvent>,
) -> (Vec<Duration>, Duration) {
    let (mut gone, mut noticed) = (None, None);
    let (mut broken, mut ready) = (BTreeSet::new(), Vec::new());
    while gone.is_none() || noticed.is_none() || ready.len() < PIPELINES {
        match seen.recv().await.expect("the watches go on") {
            HealingEvent::PodGone(pod, at) if pod == victim => gone = gone.or(Some(at)),
            HealingEvent::PollMissed(pod, at) if pod == victim => noticed = Some(at),
            // It may be ready again before the status of the loss is written.
            HealingEvent::Phase(pipeline, phase, at) if phase == "Ready" => {
                if broken.remove(&pipeline) {
                    ready.push(at);
                }
            }
            HealingEvent::Phase(pipeline, ..) => drop(broken.insert(pipeline)),
            HealingEvent::PodGone(..) | HealingEvent::PollMissed(..) => {}
        }
    }
    let gone = gone.expect("it was waited for");
    let since = |at: Instant| at.saturating_duration_since(gone);
    let mut healed: Vec<_> = ready.into_iter().map(since).collect();
    healed.sort_unstable();
    (healed, since(noticed.expect("it was waited for")))
}

/// Whether a node has said that nothing of the pod runs any more.
fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

async fn watch_pods(client: Client, namespace: String, seen: mpsc::UnboundedSender<HealingEvent>) {
    let pods = Api::<Pod>::namespaced(client, &namespace);
    let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        if let Ok(Event::Delete(pod) | Event::Apply(pod)) = &event
            && (matches!(event, Ok(Event::Delete(_))) || is_over(pod))
        {
            let _ = seen.send(HealingEvent::PodGone(pod.name_any(), Instant::now()));
        }
    }
}

async fn watch_pipelines(
    client: Client,
    namespace: String,
    seen: mpsc::UnboundedSender<HealingEvent>,
) {
    let kind =
        ApiResource::from_gvk(&GroupVersionKind::gvk("leasehold.dev", "v1alpha1", "Pipeline"));
    let pipelines = Api::<DynamicObject>::namespaced_with(client, &namespace, &kind);
    let events = watcher(pipelines, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        if let Ok(Event::Apply(pipeline)) = event
            && let Some(phase) = pipeline.data["status"]["phase"].as_str()
        {
            let _ = seen.send(HealingEvent::Phase(
                pipeline.name_any(),
                phase.to_owned(),
                Instant::now(),
            ));
        }
    }
}

/// Looks at the pods once a second.
async fn poll(client: Client, namespace: String, seen: mpsc::UnboundedSender<HealingEvent>) {
    let pods = Api::<Pod>::namespaced(client, &namespace);
    let mut before = BTreeSet::new();
    let mut ticks = interval(POLL);
    loop {
        ticks.tick().await;
        let Ok(list) = pods.list(&ListParams::default()).await else { continue };
        let now: BTreeSet<String> =
            list.iter().filter(|pod| !is_over(pod)).map(ResourceExt::name_any).collect();
        for pod in before.difference(&now) {
            let _ = seen.send(HealingEvent::PollMissed(pod.clone(), Instant::now()));
        }
        before = now;
    }
}
