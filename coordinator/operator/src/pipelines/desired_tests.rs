//! The desired objects of a binding, from shares and pods in short notation.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::ResourceExt;
use kube::core::ObjectMeta;
use leasehold_coordinator_core::view::{BindingPhase, PipelinePhase, ShareView};
use leasehold_types::{Load, NodeName, PipelineName, WorkerName};

use super::*;
use crate::fleets::fixtures;

/// Pods by name, in words: addresses, and then `unready`, `going`, `over`, `on=NODE` or `other`,
/// which is of another class.
struct FakePods {
    pods: BTreeMap<String, Arc<PodFacts>>,
    port: Option<u16>,
}

impl FakePods {
    fn new(pods: &[(&str, &str)]) -> Self {
        let pods = pods.iter().map(|(name, words)| ((*name).to_owned(), pod(name, words)));
        Self { pods: pods.collect(), port: Some(9_000) }
    }
}

impl Lookup for FakePods {
    fn port(&self, _: &ClusterName) -> Option<u16> {
        self.port
    }

    fn pod(&self, name: &str) -> Option<Arc<PodFacts>> {
        self.pods.get(name).cloned()
    }

    fn zone(&self, node: &str) -> Option<String> {
        node.strip_prefix("node-").map(|zone| format!("zone-{zone}"))
    }
}

fn pod(name: &str, words: &str) -> Arc<PodFacts> {
    let mut facts = PodFacts::clone(&fixtures::pod(name).pod);
    facts.cluster = Some(class());
    for word in words.split_whitespace() {
        match word {
            "unready" => facts.ready = false,
            "going" => facts.deleted_at = facts.created_at,
            "over" => facts.over = true,
            "other" => facts.cluster = None,
            word => match word.strip_prefix("on=") {
                Some(node) => facts.node = Some(node.to_owned()),
                None => facts.addresses.push(word.parse::<IpAddr>().expect("an address")),
            },
        }
    }
    Arc::new(facts)
}

fn class() -> ClusterName {
    ClusterName::in_namespace("ns", "blue").expect("a name")
}

fn pipeline() -> Pipeline {
    let metadata = ObjectMeta {
        name: Some("first".into()),
        namespace: Some("ns".into()),
        uid: Some("uid-of-first".into()),
        ..ObjectMeta::default()
    };
    let spec = json!({ "documentsPerSecond": 10, "workers": { "in": { "class": "blue" } } });
    Pipeline { metadata, spec: serde_json::from_value(spec).expect("a spec"), status: None }
}

/// A share in words: `INDEX WORKER` and then `applied` or `draining`.
fn share(words: &str) -> ShareView {
    let mut words = words.split_whitespace();
    let index = words.next().expect("an index").parse().expect("a number");
    let worker = WorkerName::new(words.next().expect("a worker")).expect("a name");
    let rest: Vec<_> = words.collect();
    ShareView {
        index,
        worker,
        load: Load::per_second(10).expect("a load"),
        token: None,
        applied: rest.contains(&"applied"),
        address: None,
        draining: rest.contains(&"draining"),
    }
}

fn view(shares: &[&str]) -> PipelineView {
    let node = |name| NodeName::new(name).expect("a name");
    PipelineView {
        name: PipelineName::in_namespace("ns", "first").expect("a name"),
        load: Load::per_second(10).expect("a load"),
        phase: PipelinePhase::Ready,
        reason: String::new(),
        waits: Vec::new(),
        bindings: vec![BindingView {
            node: node("in"),
            class: class(),
            next: vec![node("out")],
            phase: BindingPhase::Ready,
            shares: shares.iter().map(|words| share(words)).collect(),
        }],
    }
}

/// The one binding of these shares.
fn binding_of(pods: &FakePods, shares: &[&str]) -> DesiredBinding {
    let mut all = desired(&pipeline(), &view(shares), pods);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// Each slice with its endpoints in words: address, then the conditions that hold.
fn shown(binding: &DesiredBinding) -> Vec<String> {
    let endpoint = |endpoint: &Value| {
        let mut words = vec![endpoint["addresses"][0].as_str().expect("an address").to_owned()];
        for condition in ["ready", "serving", "terminating"] {
            if endpoint["conditions"][condition] == true {
                words.push(condition.into());
            }
        }
        words.join(" ")
    };
    let slice = |slice: &DynamicObject| {
        let endpoints = slice.data["endpoints"].as_array().expect("endpoints");
        let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
        format!("{}: {}", slice.name_any(), endpoints.join(", "))
    };
    binding.slices.iter().map(slice).collect()
}

#[test]
fn lists_an_applied_share_and_drains_it_until_release() {
    let pods = FakePods::new(&[
        ("a", "10.0.0.1"),
        ("b", "10.0.0.2"),
        ("c", "10.0.0.3 going"),
        ("d", "10.0.0.4 unready"),
        ("e", "10.0.0.5 over"),
        ("f", "10.0.0.6 other"),
    ]);
    let shares = [
        "0 a applied draining",
        "0 b",
        "1 c applied",
        "2 d applied",
        "3 e applied",
        "4 f applied",
        "5 unseen applied",
    ];
    assert_eq!(
        shown(&binding_of(&pods, &shares)),
        ["first-in-ipv4-0: 10.0.0.1 serving terminating, 10.0.0.3 serving terminating, 10.0.0.4 "
            .trim_end()]
    );
    let shares = ["0 b applied"];
    assert_eq!(shown(&binding_of(&pods, &shares)), ["first-in-ipv4-0: 10.0.0.2 ready serving"]);
    assert_eq!(shown(&binding_of(&pods, &["0 b"])), [""; 0]);
}

#[test]
fn a_pod_with_two_shares_is_listed_once_and_drains_only_with_both() {
    let pods = FakePods::new(&[("a", "10.0.0.1")]);
    let shares = ["0 a applied draining", "1 a applied"];
    assert_eq!(shown(&binding_of(&pods, &shares)), ["first-in-ipv4-0: 10.0.0.1 ready serving"]);
}

#[test]
fn each_family_of_addresses_has_slices_of_its_own() {
    let pods = FakePods::new(&[("a", "10.0.0.1 fd00::1 on=node-x"), ("b", "fd00::2 on=bare")]);
    let binding = binding_of(&pods, &["0 a applied", "1 b applied"]);
    assert_eq!(
        shown(&binding),
        [
            "first-in-ipv4-0: 10.0.0.1 ready serving",
            "first-in-ipv6-0: fd00::1 ready serving, fd00::2 ready serving"
        ]
    );
    let [v4, v6] = &binding.slices[..] else { panic!("two slices") };
    assert_eq!(
        (&v4.data["addressType"], &v6.data["addressType"]),
        (&json!("IPv4"), &json!("IPv6"))
    );
    let endpoint = &v4.data["endpoints"][0];
    assert_eq!((&endpoint["nodeName"], &endpoint["zone"]), (&json!("node-x"), &json!("zone-x")));
    assert_eq!(endpoint["targetRef"]["uid"], "uid-of-a");
    assert_eq!(v6.data["endpoints"][1].get("zone"), None);
}

#[test]
fn slices_hold_a_hundred_at_most_and_a_worker_stays_in_its_own() {
    let names: Vec<_> = (0..300).map(|number| format!("w{number:03}")).collect();
    let addresses: Vec<_> =
        (0..300).map(|number| format!("10.0.{}.{}", number / 250, number % 250)).collect();
    let pods: Vec<_> =
        names.iter().zip(&addresses).map(|(name, at)| (name.as_str(), at.as_str())).collect();
    let pods = FakePods::new(&pods);
    let shares: Vec<_> =
        names.iter().enumerate().map(|(index, name)| format!("{index} {name} applied")).collect();
    let words: Vec<_> = shares.iter().map(String::as_str).collect();
    let whole = binding_of(&pods, &words);
    let sizes = |binding: &DesiredBinding| -> Vec<_> {
        let size = |slice: &DynamicObject| slice.data["endpoints"].as_array().map_or(0, Vec::len);
        binding.slices.iter().map(size).collect()
    };
    assert_eq!(sizes(&whole), [50; 6]);
    let fewer = binding_of(&pods, &words[1..]);
    assert_eq!(fewer.slices[1..], whole.slices[1..], "only the first is another");
    // All with one index, as nothing but a fault would have it.
    let piled: Vec<_> = names.iter().map(|name| format!("0 {name} applied")).collect();
    let words: Vec<_> = piled.iter().map(String::as_str).collect();
    assert_eq!(sizes(&binding_of(&pods, &words)), [100; 3]);
}

#[test]
fn everything_is_labelled_owned_and_named_after_its_binding() {
    let pods = FakePods::new(&[("a", "10.0.0.1")]);
    let binding = binding_of(&pods, &["0 a applied"]);
    assert_eq!(binding.name, "first-in");
    for object in [&binding.service, &binding.slices[0], &binding.binding] {
        assert_eq!(object.labels()[PIPELINE_LABEL], "first");
        assert_eq!(object.labels()[MANAGED_BY_LABEL], "leasehold");
        let owner = &object.owner_references()[0];
        assert_eq!((&*owner.kind, &*owner.uid), ("Pipeline", "uid-of-first"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), None));
        let pipeline =
            super::super::managed_kind::owning_pipeline(&object.metadata).expect("a home");
        assert_eq!(pipeline, view(&[]).name);
    }
    assert_eq!(binding.slices[0].labels()[SERVICE_NAME_LABEL], "first-in");
    assert_eq!(binding.slices[0].labels()[SLICE_MANAGED_BY_LABEL], "leasehold");
    assert_eq!(binding.slices[0].data["ports"][0]["port"], 9_000);
    assert_eq!(binding.service.data["spec"]["ports"][0]["name"], "documents");
    assert_eq!(binding.service.data["spec"].get("selector"), None);
    let spec = json!({
        "pipeline": "first", "node": "in", "class": "blue", "documentsPerSecond": 10,
        "next": ["first-out"],
    });
    assert_eq!(binding.binding.data["spec"], spec);
}

#[test]
fn without_a_port_the_service_is_headless() {
    let pods = FakePods { port: None, ..FakePods::new(&[("a", "10.0.0.1")]) };
    let binding = binding_of(&pods, &["0 a applied"]);
    assert_eq!(binding.service.data["spec"]["clusterIP"], "None");
    assert_eq!(binding.service.data["spec"].get("ports"), None);
    assert_eq!(binding.slices[0].data["ports"], json!([]));
    let with = binding_of(&FakePods::new(&[]), &[]);
    assert_ne!(
        ManagedKind::Service.immutable_fields(&binding.service),
        ManagedKind::Service.immutable_fields(&with.service)
    );
}

#[test]
fn ignores_defaults_of_the_api_server_and_detects_changes_by_users() {
    let desired = binding_of(&FakePods::new(&[]), &[]).service;
    let mut there = desired.clone();
    there.data["spec"]["clusterIP"] = json!("10.96.0.7");
    there.data["spec"]["ports"][0]["nodePort"] = json!(0);
    there.data["spec"]["sessionAffinity"] = json!("None");
    there.data["status"] = json!({ "loadBalancer": {} });
    there.labels_mut().insert("theirs".into(), "stays".into());
    assert_eq!(
        ManagedKind::Service.compared_fields(&there),
        ManagedKind::Service.compared_fields(&desired)
    );
    let changes: [fn(&mut DynamicObject); 5] = [
        |object| object.data["spec"]["selector"] = json!({ "app": "theirs" }),
        |object| object.data["spec"]["type"] = json!("LoadBalancer"),
        |object| object.data["spec"]["ports"][0]["port"] = json!(1),
        |object| drop(object.labels_mut().remove(PIPELINE_LABEL)),
        |object| object.metadata.owner_references = None,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut other = there.clone();
        change(&mut other);
        assert_ne!(
            ManagedKind::Service.compared_fields(&other),
            ManagedKind::Service.compared_fields(&desired),
            "{number}"
        );
    }
}
