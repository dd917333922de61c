//! Objects that the last release has stored, under today's definitions and coordinator.

use std::collections::BTreeMap;

use serde_json::Value;
use tests::kube::{ControlPlane, FleetFixture, Namespace, Work};
use tests::process::until_ok;
use tests::toolbox;

/// The samples of `deploy`.
const SAMPLES: [&str; 3] = ["builds", "swarm", "pipelines"];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_the_last_release_has_stored_keeps_its_fields_and_comes_into_force() {
    let Some(release) = toolbox::last_release("objects of the last release") else { return };
    let Some(plane) = ControlPlane::start() else { return };
    let access = plane.access();
    let part = |part: &str| release.join("deploy").join(part).to_str().expect("UTF-8").to_owned();
    access.kubectl(&["apply", "--server-side", "--kustomize", &part("crds")]);
    access.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]);
    let namespace = Namespace::create(access, "stored");
    for sample in SAMPLES {
        let sample = part(&format!("samples/{sample}"));
        access.kubectl(&["--namespace", &namespace, "apply", "--kustomize", &sample]);
    }
    let before = specs(&objects(&namespace));
    assert!(before.len() > SAMPLES.len(), "{:?}", before.keys());

    // It applies today's definitions before it starts a coordinator.
    let work = Work::Jobs { ms_min: 1_000, ms_max: 2_000 };
    let fixture = FleetFixture::start_with(namespace, 1, 0, work, &[]).await;
    until_ok("every object in force", || {
        let objects = objects(&fixture);
        let waits = |object: &&Value| {
            object["status"]["inForceGeneration"] != object["metadata"]["generation"]
        };
        let waiting: Vec<&Value> = objects.iter().filter(waits).collect();
        if waiting.is_empty() { Ok(()) } else { Err(format!("{waiting:#?}")) }
    });
    assert_eq!(specs(&objects(&fixture)), before, "no field is lost");
}

/// All objects that a user has written.
fn objects(namespace: &Namespace) -> Vec<Value> {
    let list = namespace.kubectl(&["get", "wc,ss,wcl,pl", "--output=json"]);
    let mut list: Value = serde_json::from_str(&list).expect("JSON");
    list["items"].as_array_mut().map(std::mem::take).expect("a list")
}

/// What users want, by kind and name.
fn specs(objects: &[Value]) -> BTreeMap<String, Value> {
    let named = |object: &Value| {
        (format!("{} {}", object["kind"], object["metadata"]["name"]), object["spec"].clone())
    };
    objects.iter().map(named).collect()
}
