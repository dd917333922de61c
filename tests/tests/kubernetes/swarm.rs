//! k8s-swarm's own sample: 27 streams over a StatefulSet of two, scaled to three and back. Its
//! README's slices come out under `Contiguous`, the fewest moves under `Sticky`, and a worker reads
//! the file that it always read.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tests::kube::{FleetFixture, Work};
use tests::toolbox;

/// Worker to streams. Which it has is what counts: its file lists them by name.
type Layout = BTreeMap<String, BTreeSet<String>>;

fn sample(file: &str) -> String {
    let path = toolbox::root().join("deploy/samples/swarm").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sample's list, in its order.
fn streams() -> Vec<String> {
    let list = sample("swarm-streams.txt");
    let lines = list.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn slices(streams: &[String], workers: usize) -> Layout {
    let (size, larger) = (streams.len() / workers, streams.len() % workers);
    let mut rest = streams;
    let mut layout = Layout::new();
    for worker in 0..workers {
        let (slice, left) = rest.split_at(size + usize::from(worker < larger));
        layout.insert(format!("swarm-worker-{worker}"), slice.iter().cloned().collect());
        rest = left;
    }
    layout
}

/// What each worker's `config.yml` lists for it, as k8s-swarm's worker looks it up.
fn layout(fixture: &FleetFixture) -> Option<Layout> {
    let mut layout = Layout::new();
    for pod in fixture.pods() {
        let name = pod["metadata"]["name"].as_str()?.to_owned();
        let folder = fixture.fleet.pod_folder(pod["metadata"]["uid"].as_str()?);
        let text = std::fs::read_to_string(folder.join("config.yml")).ok()?;
        let config: Value = serde_yaml::from_str(&text).expect("k8s-swarm's format");
        let jobs = config["workloads"][&name]["jobs"].as_array().cloned().unwrap_or_default();
        let jobs = jobs.iter().filter_map(|job| job.as_str().map(str::to_owned));
        layout.insert(name, jobs.collect());
    }
    Some(layout)
}

fn wait_converged(fixture: &FleetFixture, workers: usize) -> Layout {
    fixture.wait_for("a converged set", "ss", "swarm", |set| {
        let conditions = set["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let converged = conditions
            .iter()
            .any(|condition| condition["type"] == "Converged" && condition["status"] == "True");
        converged
            && set["status"]["inForceGeneration"] == set["metadata"]["generation"]
            && set["status"]["workers"]["total"] == workers
    });
    let layout = layout(fixture).expect("every worker has its file");
    assert_eq!(layout.len(), workers);
    layout
}

fn moved(before: &Layout, after: &Layout) -> usize {
    let owner = |layout: &Layout, stream: &String| {
        layout.iter().find(|(_, all)| all.contains(stream)).map(|(worker, _)| worker.clone())
    };
    streams().iter().filter(|stream| owner(before, stream) != owner(after, stream)).count()
}

/// Every owned stream, once per owner.
fn sorted(layout: &Layout) -> Vec<String> {
    let mut all: Vec<_> = layout.values().flatten().cloned().collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_swarm_sample_assigns_contiguous_slices_and_moves_the_fewest_streams() {
    let Some(fixture) = FleetFixture::start("swarm", 1, 1, Work::File).await else { return };
    let list = streams();
    assert_eq!(list.len(), 27);
    let folder = toolbox::root().join("deploy/samples/swarm");
    let rendered =
        fixture.access.kubectl(&["kustomize", folder.to_str().expect("a folder's name")]);
    // The sample names a namespace of its own; the pods are simulated on this test's nodes.
    let mut everything = String::new();
    for document in rendered.split("\n---\n") {
        let mut object: Value = serde_yaml::from_str(document).expect("a manifest");
        if object["kind"] == "Namespace" {
            continue;
        }
        object["metadata"]["namespace"] = Value::from(&*fixture.namespace);
        if object["kind"] == "StatefulSet" {
            object["spec"]["template"]["spec"]["affinity"] = fixture.affinity();
            object["spec"]["replicas"] = Value::from(2);
        }
        if object["kind"] == "StreamSet" {
            object["spec"]["policy"] = Value::from("Contiguous");
            // What has just moved may move again at once: the test does not wait for half a minute.
            object["spec"]["moves"] = serde_json::json!({"cooldown": "0s"});
        }
        everything.push_str(&format!("---\n{object}\n"));
    }
    fixture.apply(&everything);
    let scale = |replicas: u32| {
        fixture.kubectl(&["scale", "sts/swarm-worker", &format!("--replicas={replicas}")])
    };
    let policy = |policy: &str| {
        let patch = format!(r#"{{"spec":{{"policy":"{policy}"}}}}"#);
        fixture.kubectl(&["patch", "ss", "swarm", "--type=merge", "--patch", &patch])
    };

    assert_eq!(wait_converged(&fixture, 2), slices(&list, 2));
    scale(3);
    assert_eq!(wait_converged(&fixture, 3), slices(&list, 3));
    scale(2);
    assert_eq!(wait_converged(&fixture, 2), slices(&list, 2));

    policy("Sticky");
    let two = wait_converged(&fixture, 2);
    assert_eq!(two, slices(&list, 2), "what is balanced stays where it is");
    scale(3);
    let three = wait_converged(&fixture, 3);
    assert_eq!(moved(&two, &three), 9, "just the new worker's share");
    assert_eq!(sorted(&three).len(), 27);
    scale(2);
    let again = wait_converged(&fixture, 2);
    assert_eq!(moved(&three, &again), 9, "just what the leaving worker had");
    let mut all = list.clone();
    all.sort();
    assert_eq!(sorted(&again), all);
    drop(fixture);
}
