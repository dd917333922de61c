//! The ConfigMaps with lists of streams cost the API server one watch, however many a user names.

use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tests::kube::{Access, Replicas};
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

fn object(api: &str, kind: &str, name: &str, more: Value) -> Value {
    let mut object = json!({
        "apiVersion": api, "kind": kind,
        "metadata": { "name": name, "namespace": NAMESPACE },
    });
    let more = more.as_object().expect("an object").clone();
    object.as_object_mut().expect("an object").extend(more);
    object
}

/// A ConfigMap with one stream.
fn list(number: usize) -> Value {
    let data = json!({ "data": { "list": format!("stream-{number}\n") } });
    let mut list = object("v1", "ConfigMap", &format!("list-{number}"), data);
    list["metadata"]["labels"] = json!({ "leasehold.dev/stream-list": "true" });
    list
}

/// A set of the streams of this many ConfigMaps.
fn set(lists: usize) -> Value {
    let from = |number| {
        json!({
            "configMapKeyRef": { "name": format!("list-{number}"), "key": "list" }
        })
    };
    let from: Vec<_> = (0..lists).map(from).collect();
    let spec = json!({ "spec": { "cluster": "builds", "streamsFrom": from } });
    object("leasehold.dev/v1alpha1", "StreamSet", "cars", spec)
}

#[test]
fn many_lists_of_streams_cost_the_api_server_one_watch() {
    let Some(turn) = ExclusiveControlPlane::for_failures(NAMESPACE) else { return };
    let access = turn.access();
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
    let spec = json!({ "spec": { "maxJobs": 8, "maxJobsPerWorker": 3 } });
    access.apply(&object("leasehold.dev/v1alpha1", "WorkerCluster", "builds", spec).to_string());
    let lists: Vec<_> = (0..LISTS).map(list).collect();
    let lists = json!({ "apiVersion": "v1", "kind": "List", "items": lists });
    access.apply(&lists.to_string());
    access.apply(&set(1).to_string());
    await_streams(1);
    let before = watches(access);
    assert!(before > 0, "the coordinator watches its list");

    access.apply(&set(LISTS).to_string());
    await_streams(LISTS);
    // A watch of another component may be begun anew at this moment.
    assert!(watches(access) <= before + 1, "{before} before, {} now", watches(access));

    // The API server counts each watch.
    let _others = [(); 3].map(|()| OtherWatch::start(access));
    eventually("the watches of others", || (watches(access) >= before + 2).then_some(()));
}
