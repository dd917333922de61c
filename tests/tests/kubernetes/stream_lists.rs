//! The ConfigMaps with lists of streams cost the API server one watch, however many a user names.

use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tests::kube::{Access, Namespace, Replicas, list, object, until};
use tests::process::{eventually, get};

use crate::installed::ExclusiveControlPlane;

const NAMESPACE: &str = "lists";
/// ConfigMaps that one set names.
const LISTS: usize = 40;

/// The watches of ConfigMaps that the API server serves.
fn watches(access: &Access) -> usize {
    let metrics = access.kubectl(&["get", "--raw", "/metrics"]);
    let of_maps = metrics.lines().filter(|line| {
        let labels = ["resource=\"configmaps\"", "verb=\"WATCH\""];
        line.starts_with("apiserver_longrunning_requests{")
            && labels.iter().all(|label| line.contains(label))
    });
    of_maps.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}

/// A watch that somebody else has, until it is dropped.
struct OtherWatch(Child);

impl OtherWatch {
    fn start(access: &Access) -> Self {
        let watch = ["get", "configmaps", "--watch", "--namespace", NAMESPACE];
        let mut command = access.kubectl_command(&watch);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().expect("kubectl starts"))
    }
}

impl Drop for OtherWatch {
    fn drop(&mut self) {
        // Both fail only where the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A ConfigMap with one stream.
fn stream_list(number: usize) -> Value {
    let labels = json!({ "leasehold.dev/stream-list": "true" });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": format!("list-{number}"), "labels": labels },
        "data": { "list": format!("stream-{number}\n") },
    })
}

/// A set of the streams of this many ConfigMaps.
fn set(lists: usize) -> Value {
    let from = |number| {
        json!({
            "configMapKeyRef": { "name": format!("list-{number}"), "key": "list" }
        })
    };
    let from: Vec<_> = (0..lists).map(from).collect();
    object("StreamSet", "cars", json!({ "cluster": "builds", "streamsFrom": from }))
}

#[test]
fn many_lists_of_streams_cost_the_api_server_one_watch() {
    let Some(turn) = ExclusiveControlPlane::for_failures(NAMESPACE) else { return };
    let access = turn.access();
    let namespace = Namespace::existing(access, NAMESPACE);
    let mut replicas = Replicas::new(access, NAMESPACE, &[]);
    replicas.start();
    let http = replicas.running[replicas.leader()].http;
    let await_streams = |wanted: usize| {
        let line = format!("leasehold_streams{{cluster=\"{NAMESPACE}/builds\"}} {wanted}");
        eventually(&format!("{wanted} streams"), || {
            let (_, metrics) = get(http, "/metrics")?;
            metrics.lines().any(|found| found == line).then_some(())
        });
    };
    let spec = json!({ "maxJobs": 8, "maxJobsPerWorker": 3 });
    namespace.apply(&object("WorkerCluster", "builds", spec));
    namespace.apply(&list((0..LISTS).map(stream_list)));
    namespace.apply(&set(1));
    await_streams(1);
    let before = watches(access);
    assert!(before > 0, "the coordinator watches its list");

    namespace.apply(&set(LISTS));
    await_streams(LISTS);
    // A watch of another component may be begun anew at this moment.
    assert!(watches(access) <= before + 1, "{before} before, {} now", watches(access));

    // The API server counts each watch.
    let _others = [(); 3].map(|()| OtherWatch::start(access));
    until("the watches of others", || watches(access), |now| *now >= before + 2);
}
