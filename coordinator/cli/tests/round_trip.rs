//! `inject` and `uninject` on manifests of many kinds and YAML styles: `inject` adds what the
//! webhook would add, injecting twice equals injecting once, and `uninject` restores the manifest.

mod shared;

use std::collections::BTreeMap;

use leasehold_injection::names::STATUS;
use leasehold_injection::{Sidecar, apply, inject};
use serde_json::Value;
use serde_yaml::granit_parser::{Event, Parser, ScalarStyle, options};

use shared::{output, run, stderr, testdata};

const INJECT: [&str; 5] = ["inject", "-f", "-", "--cluster", "builds"];
const UNINJECT: [&str; 3] = ["uninject", "-f", "-"];
const TEMPLATE: &str = "/spec/template";

/// Every manifest: where its pods are, each by its document and the way to it.
fn manifests() -> BTreeMap<&'static str, Vec<(usize, &'static str)>> {
    BTreeMap::from([
        (
            "anchors.yaml",
            vec![
                (0, "/items/0/spec/template"),
                (0, "/items/1/spec/template"),
                (0, "/items/2/spec/template"),
                (0, "/items/3/spec/template"),
            ],
        ),
        ("chart.yaml", vec![(2, TEMPLATE)]),
        ("cronjob.yaml", vec![(0, "/spec/jobTemplate/spec/template")]),
        ("daemonset.yaml", vec![(0, TEMPLATE)]),
        ("deployment.json", vec![(0, TEMPLATE)]),
        ("deployment.yaml", vec![(0, TEMPLATE)]),
        ("empty.yaml", vec![(0, "")]),
        ("job.yaml", vec![(0, TEMPLATE)]),
        ("knative.yaml", vec![(0, TEMPLATE)]),
        ("list.yaml", vec![(0, "/items/1/spec/template"), (0, "/items/2/items/0")]),
        ("live.yaml", vec![(0, "/items/0/spec/template"), (0, "/items/1/spec/template")]),
        ("mark.yaml", vec![(0, "")]),
        ("operator.yaml", vec![(4, TEMPLATE)]),
        ("pod.yaml", vec![(0, "")]),
        ("podtemplate.yaml", vec![(0, "/template")]),
        ("replicaset.yaml", vec![(0, TEMPLATE)]),
        ("replicationcontroller.yaml", vec![(0, TEMPLATE)]),
        ("rollout.yaml", vec![(0, TEMPLATE)]),
        ("statefulset.yaml", vec![(1, TEMPLATE)]),
        ("stream.json", vec![(0, ""), (1, "")]),
        ("traps.yaml", vec![(0, TEMPLATE)]),
        ("unicode.yaml", vec![(0, TEMPLATE)]),
        ("windows.yaml", vec![(0, TEMPLATE)]),
        ("worker-class.yaml", vec![(0, TEMPLATE), (2, TEMPLATE)]),
        ("worker-cluster.yaml", vec![(0, TEMPLATE)]),
    ])
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(testdata().join(name)).expect(name)
}

/// What the documents say, to a reader that has nothing to do with the program. Empty documents say
/// nothing.
fn said(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).expect("UTF-8");
    if text.starts_with('{') {
        let all = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        if let Ok(all) = all.collect() {
            return all;
        }
    }
    let options = serde_yaml::options! {
        ignore_binary_tag_for_string: true,
        non_finite_float_policy: serde_yaml::NonFiniteFloatPolicy::PassThrough,
    };
    let text = text.trim_start_matches('\u{feff}');
    serde_yaml::from_multiple_with_options::<Value>(text, options).expect("YAML")
}

/// The order of all keys, and the text and quoting of every scalar; nulls are all alike.
fn written(text: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(text).expect("UTF-8");
    let mut options = options! {};
    options.set_emit_comments(false);
    let events = Parser::new_from_str_with_options(text, options).map(|event| {
        let (event, _) = event.expect("YAML");
        match event {
            Event::Scalar(text, style, ..) => match (style, &*text) {
                (ScalarStyle::Plain, "" | "~" | "null") => "null".into(),
                _ => format!("{style:?} {text}"),
            },
            Event::DocumentStart(..) => "document".into(),
            other => format!("{other:?}"),
        }
    });
    events.collect()
}

fn sidecar() -> Sidecar {
    Sidecar {
        cluster: Some("builds".into()),
        ..Sidecar::standard(concat!("registry.invalid/leasehold/agent:", env!("CARGO_PKG_VERSION")))
    }
}

/// What pods of this object get: a class says itself whose they are, and where they listen.
fn sidecar_of(object: &Value) -> Sidecar {
    let mut sidecar = sidecar();
    if object["kind"] == "WorkerClass" {
        sidecar.cluster = object["metadata"]["name"].as_str().map(str::to_owned);
        let port = object["spec"]["port"].as_u64();
        sidecar.flags.extend(port.map(|port| ("worker-port".to_owned(), port.to_string())));
    }
    sidecar
}

#[test]
fn every_manifest_is_listed() {
    let files = std::fs::read_dir(testdata()).expect("the folder");
    let names: Vec<String> =
        files.map(|file| file.expect("a file").file_name().into_string().expect("UTF-8")).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(sorted, manifests().into_keys().collect::<Vec<_>>());
    assert!(names.len() >= 20);
}

#[test]
fn inject_adds_what_the_webhook_adds_and_changes_nothing_else() {
    for (name, pods) in manifests() {
        let before = read(name);
        let mut wanted = said(&before);
        for (document, path) in pods.iter().copied() {
            let with = sidecar_of(&wanted[document]);
            let pod = wanted[document].pointer_mut(path).expect(path);
            let edits = inject(pod, &with).expect(name).edits;
            assert!(!edits.is_empty(), "{name}");
            apply(&edits, pod);
        }
        let mut injected = said(&output(&INJECT, &before));
        for (document, path) in pods {
            for documents in [&mut injected, &mut wanted] {
                drop_warnings(documents[document].pointer_mut(path).expect(path));
            }
        }
        assert_eq!(injected, wanted, "{name}");
    }
}

/// The command line warns by the drain's deadline in its flag and in the manifests, which only the
/// webhook's settings have here.
fn drop_warnings(pod: &mut Value) {
    let status = &mut pod["metadata"]["annotations"][STATUS];
    let mut fields: Value = serde_json::from_str(status.as_str().expect(STATUS)).expect(STATUS);
    fields.as_object_mut().expect("an object").remove("warnings");
    *status = fields.to_string().into();
}

#[test]
fn a_second_injection_changes_no_byte() {
    for name in manifests().into_keys() {
        let once = output(&INJECT, &read(name));
        let twice = output(&INJECT, &once);
        assert_eq!(String::from_utf8_lossy(&twice), String::from_utf8_lossy(&once), "{name}");
    }
}

#[test]
fn uninject_restores_the_input_of_inject() {
    for name in manifests().into_keys() {
        let before = read(name);
        compare(name, &before, &output(&UNINJECT, &output(&INJECT, &before)));
    }
}

/// A manifest that has come back, and what it was.
fn compare(name: &str, before: &[u8], back: &[u8]) {
    assert_eq!(said(back), said(before), "{name}");
    match name {
        // Aliases of what was changed, in braces and by merging, stay what they referred to.
        "anchors.yaml" => {}
        // A null may be written in another way.
        "empty.yaml" | "replicationcontroller.yaml" => {
            assert_eq!(written(back), written(before), "{name}");
        }
        _ => {
            // The last line has an end.
            let texts =
                [back, before].map(|text| String::from_utf8_lossy(text).trim_end().to_owned());
            assert_eq!(texts[0], texts[1], "{name}");
        }
    }
}

#[test]
fn other_settings_replace_what_was_injected() {
    let newer = ["inject", "-f", "-", "--cluster", "builds", "--image", "agent:2"];
    for name in manifests().into_keys() {
        let before = read(name);
        let anew = output(&newer, &output(&INJECT, &before));
        assert_eq!(said(&anew), said(&output(&newer, &before)), "{name}");
        compare(name, &before, &output(&UNINJECT, &anew));
    }
}

#[test]
fn uninject_leaves_other_documents_unchanged() {
    for name in manifests().into_keys() {
        assert_eq!(output(&UNINJECT, &read(name)), read(name), "{name}");
    }
}

#[test]
fn several_files_become_one_stream() {
    let folder = testdata();
    let file = |name: &str| folder.join(name).display().to_string();
    let names = ["empty.yaml", "mark.yaml", "operator.yaml", "cronjob.yaml", "windows.yaml"];
    let files = names.map(file);
    let mut args = vec!["inject", "--cluster", "builds"];
    files.iter().for_each(|file| args.extend(["-f", file]));
    let all = output(&args, b"");
    let each = names.map(|name| said(&output(&INJECT, &read(name)))).concat();
    assert_eq!(said(&all), each);
    assert_eq!(output(&INJECT, &all), all, "one stream is a fixed point too");
}

/// Ways to write that few people use: explicit keys, tags and anchors everywhere, lists that are
/// both of one thing and of another, comments where none are expected.
const ODD: [&str; 5] = [
    r##"? kind
: Deployment
? spec
: ? template
  : ? spec
    : ? containers
      : - ? name
          : w
          ? env
          : [ ]   # nothing
"##,
    r##"--- !!map &root
kind: Pod
&k metadata: &m !!map
  !!str name: "p"
spec: !!map {containers: !!seq [!!map {name: w, env: [ {name: a, value: b} # c
   ,
   ] # d
   }]}
"##,
    r##"kind: Pod
metadata: {name: "p", annotations: {a: b,
  # comment
  }}
spec:
  containers: &c
    - &w
      name: w
      command: [a]
      args:
        - |2-
            indented
           less
        - >+
          folded

          more

    -   name: x
        tty: true
  initContainers: *c
"##,
    r##"{kind: Pod, spec: {containers: [{name: a, lifecycle: {preStop: {exec: {command: [sh,
  "-c",
  bye]}}}, ? env : [{name: x}]}]}}
"##,
    r##"kind: Pod
spec: {containers: [name: a]}
---
kind: Pod
spec:
  containers:
  - name: a
    env:
    - name: x
      value: "multi
        line"
    - {name: y, value: 'it''s
        two'}
  volumes:
  - name: v
    configMap: {name: x}
# final comment
  # indented
...
# after
"##,
];

#[test]
fn unusual_layouts_keep_their_values() {
    for before in ODD {
        let once = output(&INJECT, before.as_bytes());
        assert!(said(&once) != said(before.as_bytes()), "{before}");
        let other = output(&["inject", "-f", "-", "--image", "x:2"], &once);
        for injected in [once, other] {
            assert_eq!(said(&output(&UNINJECT, &injected)), said(before.as_bytes()), "{before}");
        }
    }
    // A block of text that ends with its file has no line break at its end. (This test's reader
    // would give it one; kubectl's does not.)
    let unended = "kind: Pod\nspec:\n  containers:\n  - name: a\n    image: |\n      x";
    let injected = run(&INJECT, unended.as_bytes());
    assert!(stderr(&injected).contains("ends within a block of text"), "{}", stderr(&injected));
}

/// Aliases of what inject changes.
#[test]
fn aliases_that_a_change_touches_become_copies() {
    let before = "\
kind: List
items:
- kind: Deployment
  metadata: {name: a}
  spec:
    template:
      spec:
        terminationGracePeriodSeconds: 7201
        containers:
        - &one
          name: one
          env: &env
          - {name: A, value: b}
- kind: Deployment
  metadata: {name: b}
  spec:
    template:
      spec:
        terminationGracePeriodSeconds: 7201
        containers:
        - name: two
          env: *env   # as in the first
          image: x
        - name: three
          env: *env
- kind: Deployment
  metadata: {name: c}
  spec:
    template:
      spec:
        terminationGracePeriodSeconds: 7201
        containers:
        - *one
        - name: four
";
    for text in [before.to_owned(), before.replace('\n', "\r\n")] {
        let injected = run(&INJECT, text.as_bytes());
        let warning = "warning: stdin: document 1: the change touches an anchor or an alias";
        assert!(stderr(&injected).contains(warning), "{}", stderr(&injected));
        let once = injected.stdout;
        assert_eq!(output(&INJECT, &once), once, "once is twice");
        let other = output(&["inject", "-f", "-", "--image", "x:2", "--cluster", "c"], &once);
        for injected in [once, other] {
            let back = run(&UNINJECT, &injected);
            assert_eq!(stderr(&back), "", "no alias is left to lose");
            assert_eq!(said(&back.stdout), said(text.as_bytes()));
            let back = String::from_utf8(back.stdout).expect("UTF-8");
            assert!(back.contains("# as in the first"), "comments stay: {back}");
        }
    }
    for (from, to) in [
        ("- name: two\n          env: *env", "- {name: two, env: *env}\n        - name: x"),
        ("- *one\n", "- <<: *one\n          image: y\n"),
        ("- *one\n", "- <<: [*one, {image: y}]\n"),
        ("- *one\n", "- {<<: *one}\n"),
    ] {
        let text = before.replace(from, to);
        assert_ne!(text, before);
        let injected = run(&INJECT, text.as_bytes());
        assert!(stderr(&injected).contains("aliases of the document became copies"), "{to}");
        assert_eq!(said(&output(&UNINJECT, &injected.stdout)), said(text.as_bytes()), "{to}");
    }
}

/// Aliases that have nothing to do with what is injected.
#[test]
fn aliases_beside_the_change_stay() {
    let before = "\
kind: Deployment
metadata: {name: a, labels: &labels {app: a}}
spec:
  selector: {matchLabels: *labels}
  template:
    spec:
      terminationGracePeriodSeconds: 7201
      containers:
      - name: one
        resources: {limits: &most {cpu: 1}, requests: *most}
";
    let injected = run(&INJECT, before.as_bytes());
    assert_eq!(stderr(&injected), "");
    let text = String::from_utf8(injected.stdout).expect("UTF-8");
    assert!(text.contains("matchLabels: *labels") && text.contains("requests: *most"), "{text}");
    assert_eq!(String::from_utf8(output(&UNINJECT, text.as_bytes())).expect("UTF-8"), before);
}
