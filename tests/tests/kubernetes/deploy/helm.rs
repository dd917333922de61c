//! The Helm chart: with the values of each file in `helm/` it renders the objects that kustomize
//! builds of the parts which the file's first line names, and Helm installs, upgrades and removes
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;
use tests::toolbox;

use super::{ExclusiveControlPlane, folder, kustomization, objects, remove, render, stand_ins};
use super::{until_kinds_are_known, until_pods_are_admitted};
use crate::installed::{HOME, chart, helm};

/// Labels that Helm's objects have and kustomize's do not, or with another value.
const OWN_LABELS: [&str; 4] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];
/// Lists whose order means nothing to Kubernetes.
const SETS: [&str; 7] = [
    "env",
    "containers",
    "volumes",
    "volumeMounts",
    "webhooks",
    "ports",
    "topologySpreadConstraints",
];

/// An object's version, kind, namespace and name.
type ObjectKey = [String; 4];

#[test]
fn the_chart_renders_what_kustomize_builds() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let definitions = render(access, &folder("crds"));
    let mut compared = BTreeSet::new();
    for file in values_files() {
        let name = file.file_stem().expect("a name").display().to_string();
        let text = std::fs::read_to_string(&file).expect("values");
        let parts =
            text.lines().next().and_then(|line| line.strip_prefix("# ")).expect("the parts");
        let mut parts = parts.split(" + ");
        let first = format!("../../deploy/{}", parts.next().expect("a part"));
        let components: Vec<_> =
            parts.map(|part| part.strip_prefix("components/").expect("a component")).collect();
        compared.extend(components.iter().map(|component| (*component).to_owned()));
        let labels = "labels:\n  - pairs:\n      app.kubernetes.io/part-of: leasehold\n      \
                      app.kubernetes.io/managed-by: kustomize\n";
        let built = kustomization(&first, &components, labels);
        let built = format!("{}\n---\n{definitions}", render(access, built.path()));
        let values = file.to_str().expect("UTF-8");
        let Some(rendered) = helm(access, &["template", "leasehold", &chart(), "--values", values])
        else {
            return;
        };
        helm(access, &["lint", "--strict", &chart(), "--values", values]);
        let (built, rendered) = (parsed(&built), parsed(&rendered));
        let keys =
            |objects: &BTreeMap<ObjectKey, Value>| objects.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(keys(&rendered), keys(&built), "{name}");
        for (key, object) in &built {
            let mut differences = Vec::new();
            compare("", object, &rendered[key], &mut differences);
            assert!(differences.is_empty(), "{name}: {key:?}: {differences:#?}");
        }
    }
    // Those that no values file names are parts of an overlay, or for the objects of users.
    for entry in std::fs::read_dir(folder("components")).expect("components") {
        let component = entry.expect("an entry").file_name().display().to_string();
        let elsewhere =
            ["aggregate-roles", "hpa", "keda", "pipelines", "stream-lists", "user-roles"];
        let is_compared = compared.contains(&component) || elsewhere.contains(&&*component);
        assert!(is_compared, "no values file is compared with components/{component}");
    }
}

#[test]
fn a_value_that_is_mistyped_or_cannot_work_is_named() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    for (set, expected) in [
        ("replica=1", "'replica' not allowed"),
        ("certificates.source=acme", "/certificates/source"),
        ("replicas=none", "/replicas"),
        ("namespaces={leasehold-system}", "is the release's own namespace"),
        ("image.digest=latest", "expected sha256:"),
        ("monitoring.agents.interval=often", "invalid monitoring.agents.interval"),
        ("monitoring.serviceMonitor.enabled=true", "needs monitoring.namespace"),
        (
            "networkPolicy.enabled=false,monitoring.podMonitor.enabled=true,\
             monitoring.serviceMonitor.enabled=true",
            "each replica scraped twice",
        ),
    ] {
        let Some(mut command) = turn.access().helm_command() else { return };
        command.args(["template", "leasehold", &chart(), "--namespace", HOME, "--set", set]);
        let output = command.output().expect("Helm starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{set}: {said}");
    }
}

#[test]
fn an_agent_s_image_is_beside_the_coordinator_s() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let version = env!("CARGO_PKG_VERSION");
    let digest = format!("image.digest=sha256:{}", "0123456789abcdef".repeat(4));
    let own = "image.repository=mirror.example/a/coordinator";
    let beside = |tag: &str| Some(format!("mirror.example/a/agent:{tag}"));
    for (set, expected) in [
        (&["replicas=1"][..], None),
        (&["image.tag=nightly"], Some("registry.invalid/leasehold/agent:nightly".to_owned())),
        (&[own], beside(version)),
        (&[own, "image.tag=nightly"], beside("nightly")),
        (&[own, "image.tag=nightly", &digest], beside(version)),
        (&["image.repository=mirror.example/other"], None),
        (&[own, "agent.image=mirror.example/b:2"], Some("mirror.example/b:2".to_owned())),
    ] {
        let values: Vec<_> = set.iter().flat_map(|value| ["--set", value]).collect();
        let template = ["template", "leasehold", &chart()];
        let Some(rendered) = helm(turn.access(), &[&template, &values[..]].concat()) else {
            return;
        };
        let objects = parsed(&rendered);
        let deployment = objects.values().find(|object| object["kind"] == "Deployment");
        let container =
            &deployment.expect("a Deployment")["spec"]["template"]["spec"]["containers"];
        let variables = container[0]["env"].as_array().expect("variables");
        let image = variables.iter().find(|one| one["name"] == "LEASEHOLD_AGENT_IMAGE");
        let image = image.map(|one| one["value"].as_str().expect("text").to_owned());
        assert_eq!(image, expected, "{set:?}");
    }
}

#[test]
fn helm_installs_upgrades_rolls_back_and_keeps_the_definitions() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _stand_ins = stand_ins(access);
    let before = objects(access);
    let chart = chart();
    if helm(access, &["install", "leasehold", &chart, "--create-namespace"]).is_none() {
        return;
    }
    until_pods_are_admitted(access, 3);
    until_kinds_are_known(access);
    helm(access, &["upgrade", "leasehold", &chart, "--set", "replicas=2"]);
    until_pods_are_admitted(access, 2);
    helm(access, &["rollback", "leasehold", "1"]);
    until_pods_are_admitted(access, 3);
    helm(access, &["uninstall", "leasehold"]);
    remove(access, &["namespace", HOME]);
    let left: BTreeSet<String> = objects(access).difference(&before).cloned().collect();
    let kinds = |name: &String| name.starts_with("CustomResourceDefinition /");
    assert!(left.iter().all(kinds), "{left:#?}");
    assert_eq!(
        left.len(),
        std::fs::read_dir(folder("helm/leasehold/files/crds")).expect("a folder").count()
    );
    remove(access, &["-k", folder("crds").to_str().expect("UTF-8")]);
}

fn values_files() -> Vec<PathBuf> {
    let folder = toolbox::root().join("tests/tests/kubernetes/deploy/helm");
    let entries = std::fs::read_dir(folder).expect("values files");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(files.len() > 10, "{files:?}");
    files
}

/// The objects of a text, but for the Namespace, which Helm makes by itself.
fn parsed(text: &str) -> BTreeMap<ObjectKey, Value> {
    let documents: Vec<Value> = serde_yaml::from_multiple(text).expect("YAML");
    let mut parsed = BTreeMap::new();
    for mut object in
        documents.into_iter().filter(|object| !object.is_null() && object["kind"] != "Namespace")
    {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        let key = [
            text(&object["apiVersion"]),
            text(&object["kind"]),
            text(&meta["namespace"]),
            text(&meta["name"]),
        ];
        if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
            labels.retain(|name, _| !OWN_LABELS.contains(&name.as_str()));
            if labels.is_empty() {
                object["metadata"].as_object_mut().expect("a map").remove("labels");
            }
        }
        sort_sets(&mut object);
        let twice = parsed.insert(key.clone(), object);
        assert!(twice.is_none(), "{key:?} twice");
    }
    parsed
}

fn sort_sets(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                sort_sets(value);
                if let Value::Array(list) = value
                    && SETS.contains(&name.as_str())
                {
                    list.sort_by_key(Value::to_string);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(sort_sets),
        _ => {}
    }
}

/// Notes where two values differ.
fn compare(place: &str, built: &Value, rendered: &Value, differences: &mut Vec<String>) {
    match (built, rendered) {
        (Value::Object(one), Value::Object(two)) => {
            for name in one.keys().chain(two.keys()).collect::<BTreeSet<_>>() {
                let place = format!("{place}.{name}");
                compare(&place, &built[name], &rendered[name], differences);
            }
        }
        (Value::Array(one), Value::Array(two)) if one.len() == two.len() => {
            for (index, (one, two)) in one.iter().zip(two).enumerate() {
                compare(&format!("{place}[{index}]"), one, two, differences);
            }
        }
        (one, two) if one == two => {}
        (one, two) => differences.push(format!("{place}: kustomize {one}, Helm {two}")),
    }
}
