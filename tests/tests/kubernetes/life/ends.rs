//! The end of pods: by a rollout, a scale-in, an eviction, the drain of a node, or because the work
//! is done.

use std::time::Duration;

use leasehold_demo::checker::peak;
use serde_json::{Value, json};
use tests::kube::{RealInstallation, container, list, object};
use tests::process::eventually;

use super::{AGENT, cluster, deployment, nothing_broke, pods, template};

/// What a Deployment that was there before becomes with one label: ten minutes of a platform team's
/// day, in jobs of ten seconds.
#[test]
fn a_rollout_a_scale_in_an_eviction_and_a_drained_node_lose_no_job() {
    let Some(installation) = RealInstallation::start(2) else { return };
    let namespace = installation.namespace("ends");
    let long = ["--streams", "--job-ms-min=10000", "--job-ms-max=12000"];
    let mut cluster = cluster(8);
    let workload = json!({ "kind": "Deployment", "name": "builds", "scale": true });
    cluster[0]["spec"]["workloadRef"] = workload;
    namespace.apply(&list(cluster));
    namespace.apply(&deployment(&namespace, 4, &long));
    namespace.until("wc/builds", ".status.jobs.running", "8");
    namespace.until("ss/feeds", ".status.streams.owned", "6");

    // A busy pod is not evicted, by anybody.
    let busy = &pods(&namespace)[0];
    let eviction =
        format!(r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{busy}"}}}}"#);
    let path = format!(
        "/api/v1/namespaces/{}/pods/{busy}/eviction",
        namespace.field(&format!("pod/{busy}"), ".metadata.namespace")
    );
    let access = installation.cluster().access();
    let refused = access.try_kubectl_with(&["create", "--raw", &path, "-f", "-"], &eviction);
    let refused = refused.expect_err("it is busy");
    assert!(refused.contains("runs jobs"), "{refused}");

    // A rollout; while the old pods drain, the new ones get each slot as it falls free.
    let before = pods(&namespace);
    namespace.kubectl(&["set", "env", "deployment/builds", "ROUND=2"]);
    eventually("four new workers and no other", || {
        let now = pods(&namespace);
        let all = namespace.field("wc/builds", ".status.workers.total");
        (now.len() == 4 && now.iter().all(|pod| !before.contains(pod)) && all == "4").then_some(())
    });
    namespace.until("wc/builds", ".status.jobs.running", "8");

    // Half the budget, and a node is drained, at the same moment.
    namespace.kubectl(&[
        "patch",
        "wc/builds",
        "--type=merge",
        "--patch={\"spec\":{\"maxJobs\":4}}",
    ]);
    let drained = installation.cluster().nodes()[1].name().to_owned();
    let drain = ["drain", &drained, "--pod-selector=app=builds", "--timeout=170s"];
    access.kubectl(&[&drain[..], &["--delete-emptydir-data", "--force"]].concat());
    namespace.until("wc/builds", ".status.workers.total", "2");
    namespace.until("wc/builds", ".status.jobs.running", "4");
    for pod in pods(&namespace) {
        assert_ne!(namespace.field(&format!("pod/{pod}"), ".spec.nodeName"), drained);
    }

    namespace.kubectl(&["delete", "wc/builds", "deployment/builds"]);
    namespace.until_no_pod("");
    let evidence = namespace.evidence();
    nothing_broke(&evidence, 8);
    assert_eq!(peak(&evidence.runs, 0, u64::MAX), 8);
    // SIGTERM reached each worker when it had nothing left, and its agent after its end; none was
    // killed at the end of a grace period.
    let seen = namespace.pods_deleted();
    assert!(seen.len() >= 8, "{:?}", seen.keys());
    for termination in &evidence.terminations {
        assert_eq!((termination.running, termination.owned), (0, 0), "{termination:?}");
    }
    for (name, pod) in &seen {
        let ended = |name: &str| container(pod, name)["state"]["terminated"].clone();
        let (worker, agent) = (ended("worker"), ended(AGENT));
        // A pod that was removed before it started gets no event.
        if worker["startedAt"].is_null() {
            continue;
        }
        assert!(
            evidence.terminations.iter().any(|termination| termination.worker == *name),
            "{name}: {worker}"
        );
        assert_eq!((&worker["exitCode"], &agent["exitCode"]), (&0.into(), &0.into()), "{name}");
        let at = |state: &Value| state["finishedAt"].as_str().map(str::to_owned);
        assert!(at(&worker) <= at(&agent), "{name}: {worker} {agent}");
    }
}

/// The kernel drops a SIGTERM for process 1 of a container until that process handles it, and the
/// kubelet sends it once. Its grace period is longer than this test waits.
#[test]
fn pods_that_are_deleted_while_their_agents_start_end_at_once() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("early");
    namespace.apply(&list(cluster(8)));
    for delay in [500, 1000, 1500, 2000] {
        namespace.apply(&deployment(&namespace, 4, &[]));
        std::thread::sleep(Duration::from_millis(delay));
        namespace.kubectl(&["delete", "deployment/builds", "--wait=false"]);
        namespace.until_no_pod(&format!("that were deleted after {delay} ms"));
    }
    nothing_broke(&namespace.evidence(), 8);
}

/// A Job completes: its sidecar ends by itself, and with 0.
#[test]
fn a_job_whose_work_is_done_completes() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("job");
    namespace.apply(&list(cluster(4)));
    let mut template = template(&namespace, &["--jobs=2", "--job-ms-min=100", "--job-ms-max=200"]);
    template["spec"]["restartPolicy"] = json!("Never");
    let spec = json!({
        "completions": 2, "parallelism": 2, "backoffLimit": 0, "template": template,
    });
    namespace.apply(&object("Job", "batch", spec));
    namespace.until("job/batch", ".status.succeeded", "2");
    namespace.until("wc/builds", ".status.workers.total", "0");
    let evidence = namespace.evidence();
    nothing_broke(&evidence, 4);
    assert_eq!(evidence.runs.len(), 4);
    for name in namespace.pods_seen().keys() {
        let agent = eventually("the end of the agent to be seen", || {
            let agent =
                container(&namespace.pods_seen()[name], AGENT)["state"]["terminated"].clone();
            (!agent.is_null()).then_some(agent)
        });
        assert_eq!(agent["exitCode"], 0, "{name}: {agent}");
    }
}
