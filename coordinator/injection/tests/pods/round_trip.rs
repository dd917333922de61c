//! Random pods: injecting twice is injecting once, and what is taken out leaves what there was.

use leasehold_injection::{inject, uninject};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::shared::{after, settings};

/// Nothing, null, or something.
fn maybe(some: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    prop_oneof![Just(None), Just(Some(Value::Null)), some.prop_map(Some)]
}

fn map(fields: Vec<(&'static str, Option<Value>)>) -> Value {
    let there = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    there.collect::<Map<_, _>>().into()
}

fn texts() -> impl Strategy<Value = Value> {
    let key = prop_oneof!["[a-z]{1,3}", Just("config.leasehold.dev/log-format".to_owned())];
    proptest::collection::btree_map(key, Just("json"), 0..3).prop_map(|map| json!(map))
}

fn named(names: &'static [&'static str]) -> impl Strategy<Value = Value> {
    proptest::sample::subsequence(names, 0..=names.len()).prop_map(|names| {
        json!(names.iter().map(|name| json!({ "name": name, "value": "x" })).collect::<Vec<_>>())
    })
}

fn lifecycle() -> impl Strategy<Value = Value> {
    let handler = prop_oneof![
        Just(json!({ "sleep": { "seconds": 1 } })),
        proptest::collection::vec("[a-z -]{1,5}", 1..3)
            .prop_map(|command| json!({ "exec": { "command": command } })),
    ];
    (maybe(handler.clone()), maybe(handler))
        .prop_map(|(start, stop)| map(vec![("postStart", start), ("preStop", stop)]))
}

fn container(name: &'static str) -> impl Strategy<Value = Value> {
    let env = named(&["A", "LEASEHOLD_ADDR", "LEASEHOLD_WORKER", "Z"]);
    let parts = (maybe(env), maybe(named(&["data", "logs"])), maybe(lifecycle()));
    parts.prop_map(move |(env, mounts, lifecycle)| {
        let name = Some(name.into());
        map(vec![("name", name), ("env", env), ("volumeMounts", mounts), ("lifecycle", lifecycle)])
    })
}

fn pod() -> impl Strategy<Value = Value> {
    let metadata = (maybe(texts()), maybe(texts())).prop_map(|(labels, annotations)| {
        let labels = labels.map(|labels| match labels {
            Value::Object(mut map) => {
                map.remove("config.leasehold.dev/log-format");
                map.into()
            }
            other => other,
        });
        map(vec![("labels", labels), ("annotations", annotations)])
    });
    let containers = (container("worker"), proptest::option::of(container("other")));
    let parts = (
        maybe(metadata),
        containers,
        maybe(named(&["istio-proxy", "init"])),
        maybe(named(&["data"])),
    );
    parts.prop_map(|(metadata, (first, second), inits, volumes)| {
        let containers = std::iter::once(first).chain(second).collect::<Vec<_>>();
        let spec = map(vec![
            ("initContainers", inits),
            ("containers", Some(containers.into())),
            ("volumes", volumes),
        ]);
        map(vec![("metadata", metadata), ("spec", Some(spec))])
    })
}

proptest! {
    #[test]
    fn uninject_restores_the_pod(pod in pod()) {
        let edits = inject(&pod, &settings()).expect("a good pod").edits;
        let once = after(&edits, &pod);
        prop_assert_ne!(&once, &pod);
        prop_assert_eq!(inject(&once, &settings()).expect("a good pod").edits, vec![]);
        prop_assert_eq!(after(&uninject(&once).expect("injected"), &once), pod.clone());
        let mut other = settings();
        other.image = "other".into();
        let anew = after(&inject(&once, &other).expect("a good pod").edits, &once);
        prop_assert_eq!(after(&uninject(&anew).expect("injected"), &anew), pod);
    }
}
