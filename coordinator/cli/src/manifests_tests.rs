//! Random pods in random handwriting: what is injected and taken out again is what there was, to
//! the byte but for space in brackets, and the injected text says what the webhook would make.

use std::collections::BTreeMap;

use leasehold_injection::{AgentUser, Resources, Sidecar, apply, inject, uninject};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

/// Writes values in a handwriting that a run of bytes decides.
struct YamlWriter<'a> {
    choices: std::iter::Cycle<std::slice::Iter<'a, u8>>,
    line_end: &'static str,
}

impl YamlWriter<'_> {
    fn choice(&mut self, of: u8) -> u8 {
        self.choices.next().map_or(0, |choice| choice % of)
    }

    fn scalar(&mut self, value: &Value, flow: bool) -> String {
        match value {
            Value::Null => ["~", "null"][usize::from(self.choice(2))].into(),
            Value::String(text) => {
                let plain = !text.is_empty()
                    && text.bytes().all(|b| b.is_ascii_alphabetic() || b"/-._".contains(&b))
                    && text.starts_with(|c: char| c.is_ascii_alphabetic())
                    && !["null", "true", "false"].contains(&text.as_str());
                match self.choice(3) {
                    0 if plain && !flow => text.clone(),
                    1 if !text.contains('\n') => format!("'{}'", text.replace('\'', "''")),
                    _ => serde_json::to_string(text).expect("JSON"),
                }
            }
            other => other.to_string(),
        }
    }

    fn flow(&mut self, value: &Value) -> String {
        let space = ["", " "][usize::from(self.choice(2))];
        let comma = ["", ",", " , "][usize::from(self.choice(3))];
        let between = [", ", ",", ",\n          # so\n          "][usize::from(self.choice(3))];
        match value {
            Value::Array(items) if !items.is_empty() => {
                let items: Vec<String> = items.iter().map(|item| self.flow(item)).collect();
                format!("[{space}{}{comma}{space}]", items.join(between))
            }
            Value::Object(map) if !map.is_empty() => {
                let entry = |(key, value)| {
                    format!("{}: {}", serde_json::to_string(key).expect("JSON"), self.flow(value))
                };
                let entries: Vec<String> = map.iter().map(entry).collect();
                format!("{{{space}{}{comma}{space}}}", entries.join(between))
            }
            Value::Array(_) => "[]".into(),
            Value::Object(_) => "{}".into(),
            other => self.scalar(other, true),
        }
    }

    fn gap(&mut self, indent: usize, out: &mut String) {
        match self.choice(8) {
            // An empty line may be part of a text.
            _ if out.ends_with("\n\n") => {}
            0 => out.push('\n'),
            1 => out.push_str(&format!("{}# a comment: - x\n", " ".repeat(indent))),
            2 => out.push_str("  \n#at the left\n"),
            _ => {}
        }
    }

    /// What comes after a colon or a dash, with the line's end.
    fn after(&mut self, value: &Value, indent: usize, out: &mut String) {
        let remark = ["", "", "  # why", " #"][usize::from(self.choice(4))];
        match value {
            Value::Null if self.choice(2) == 0 => out.push_str(&format!("{remark}\n")),
            Value::String(text) if text.ends_with('\n') && !text.starts_with(['\n', ' ']) => {
                let ends = text.len() - text.trim_end_matches('\n').len();
                let body = text
                    .trim_end_matches('\n')
                    .replace('\n', &format!("\n{}", " ".repeat(indent + 2)));
                let mark = if ends > 1 { "|+" } else { "|" };
                let rest = "\n".repeat(ends - 1);
                let lead = " ".repeat(indent + 2);
                out.push_str(&format!(" {mark}{remark}\n{lead}{body}\n{rest}"));
            }
            Value::Array(items) if !items.is_empty() && self.choice(4) > 0 => {
                out.push_str(&format!("{remark}\n"));
                self.block_list(items, indent, out);
            }
            Value::Object(map) if !map.is_empty() && self.choice(4) > 0 => {
                out.push_str(&format!("{remark}\n"));
                let more = [1, 2, 3, 4][usize::from(self.choice(4))];
                self.block_map(map, indent + more, out);
            }
            other => out.push_str(&format!(" {}{remark}\n", self.flow(other))),
        }
    }

    fn block_list(&mut self, items: &[Value], indent: usize, out: &mut String) {
        let indent = indent + [0, 1, 2, 4][usize::from(self.choice(4))];
        for item in items {
            self.gap(indent, out);
            out.push_str(&format!("{}-", " ".repeat(indent)));
            match item {
                Value::Object(map) if !map.is_empty() && self.choice(2) == 0 => {
                    let wide = [1, 3][usize::from(self.choice(2))];
                    let mut inner = String::new();
                    self.block_map(map, indent + 1 + wide, &mut inner);
                    if inner.starts_with(&" ".repeat(indent + 1 + wide)) {
                        out.push_str(&inner[indent + 1..]);
                    } else {
                        out.push_str(&format!("\n{inner}"));
                    }
                }
                item => self.after(item, indent + 1, out),
            }
        }
    }

    fn block_map(&mut self, map: &Map<String, Value>, indent: usize, out: &mut String) {
        for (key, value) in map {
            self.gap(indent, out);
            let key = self.scalar(&key.as_str().into(), false);
            out.push_str(&format!("{}{key}:", " ".repeat(indent)));
            self.after(value, indent, out);
        }
    }

    fn document(&mut self, value: &Value) -> String {
        let mut out = String::new();
        match value {
            Value::Object(map) if self.choice(6) > 0 => self.block_map(map, 0, &mut out),
            other => out.push_str(&format!("{}\n", self.flow(other))),
        }
        out.replace('\n', self.line_end)
    }
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[a-z]{1,4}",
        "[a-z :#'\"-]{0,6}",
        Just("no".to_owned()),
        Just("1.10".to_owned()),
        Just("a: b\n# c\n\nd\n".to_owned()),
        Just("kept\n\n\n".to_owned()),
    ]
    .prop_map(Value::from)
}

fn maybe(some: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    prop_oneof![1 => Just(None), 1 => Just(Some(Value::Null)), 4 => some.prop_map(Some)]
}

fn items(names: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let item =
        |name: &'static str| text().prop_map(move |text| json!({ "name": name, "value": text }));
    proptest::sample::subsequence(names, 0..=names.len())
        .prop_flat_map(move |names| names.into_iter().map(item).collect::<Vec<_>>())
        .prop_map(Value::Array)
}

fn map(fields: Vec<(&str, Option<Value>)>) -> Value {
    let there = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    there.collect::<Map<_, _>>().into()
}

fn container(name: &'static str) -> impl Strategy<Value = Value> {
    let words = proptest::collection::vec(text(), 1..3);
    let hook = words.prop_map(|words| json!({ "exec": { "command": words } }));
    let lifecycle = maybe(hook).prop_map(|hook| map(vec![("preStop", hook)]));
    let parts = (
        maybe(items(&["A", "LEASEHOLD_ADDR", "Z"])),
        maybe(items(&["x"])),
        maybe(lifecycle),
        text(),
    );
    parts.prop_map(move |(env, mounts, lifecycle, image)| {
        map(vec![
            ("env", env),
            ("image", Some(image)),
            ("lifecycle", lifecycle),
            ("name", Some(name.into())),
            ("volumeMounts", mounts),
        ])
    })
}

fn deployment() -> impl Strategy<Value = Value> {
    let texts =
        || proptest::collection::btree_map("[a-z]{1,3}", text(), 0..3).prop_map(|map| json!(map));
    let metadata = (maybe(texts()), maybe(texts()))
        .prop_map(|(one, two)| map(vec![("annotations", one), ("labels", two)]));
    let containers = (container("worker"), proptest::option::of(container("other")));
    let parts = (maybe(metadata), containers, maybe(items(&["init"])), maybe(items(&["data"])));
    parts.prop_map(|(metadata, (first, second), inits, volumes)| {
        let containers: Vec<Value> = std::iter::once(first).chain(second).collect();
        let spec = map(vec![
            ("containers", Some(containers.into())),
            ("initContainers", inits),
            ("volumes", volumes),
        ]);
        let template = map(vec![("metadata", metadata), ("spec", Some(spec))]);
        json!({ "kind": "Deployment", "spec": { "template": template, "zz": "last" } })
    })
}

fn sidecar(image: &str) -> Sidecar {
    Sidecar {
        image: image.into(),
        coordinator: "c:7400".into(),
        server_name: "c".into(),
        audience: "a".into(),
        authority: "ca".into(),
        cluster: Some("builds".into()),
        drain_deadline: None,
        flags: BTreeMap::new(),
        resources: Resources::standard(),
        user: AgentUser::STANDARD,
        pull_secrets: Vec::new(),
    }
}

fn rewritten(text: &str, edit: &mut PodEditor<'_>) -> String {
    let sources = [Source { name: "test".into(), text: text.into() }];
    let documents = parse(&sources).unwrap_or_else(|error| panic!("{error:#}\n{text}"));
    let done = rewrite(&documents, edit).unwrap_or_else(|error| panic!("{error:#}\n{text}"));
    assert_eq!(done.warnings, Vec::<String>::new(), "{text}");
    done.text
}

fn injected(text: &str, image: &str) -> String {
    rewritten(text, &mut |_, pod| Ok(inject(pod.value, &sidecar(image))?.edits))
}

fn uninjected(text: &str) -> String {
    rewritten(text, &mut |_, pod| uninject(pod.value))
}

fn said(text: &str) -> Vec<Value> {
    serde_yaml::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A text without the space and the comma before closing brackets: they go with the last item of a
/// list in brackets.
fn without_space_in_brackets(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if [']', '}'].contains(&c) {
            out.truncate(out.trim_end_matches([' ', ',']).len());
        }
        out.push(c);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn keeps_the_layout_of_any_document(
        object in deployment(),
        choices in proptest::collection::vec(any::<u8>(), 1..200),
        windows in any::<bool>(),
    ) {
        let line_end = if windows { "\r\n" } else { "\n" };
        let mut writer = YamlWriter { choices: choices.iter().cycle(), line_end };
        let text = writer.document(&object);
        prop_assert_eq!(said(&text), vec![object.clone()], "the writer writes wrong:\n{}", text);

        let once = injected(&text, "one");
        let mut wanted = object.clone();
        let pod = wanted.pointer_mut("/spec/template").expect("a template");
        let edits = inject(pod, &sidecar("one")).expect("a good pod").edits;
        apply(&edits, pod);
        prop_assert_eq!(said(&once), vec![wanted]);
        prop_assert_eq!(&injected(&once, "one"), &once);

        let twice = injected(&once, "two");
        for text_then in [&once, &twice] {
            let back = uninjected(text_then);
            prop_assert_eq!(said(&back), vec![object.clone()]);
            // A null may be written in another way.
            if !object.to_string().contains("null") {
                let [back, text] = [&back, &text].map(|text| without_space_in_brackets(text));
                prop_assert_eq!(back, text, "to the byte, from\n{}", text_then);
            }
            let comments = |text: &str| text.matches('#').count();
            let stay = comments(&back) + 2 >= comments(&text);
            prop_assert!(stay, "comments stay:\n{}\n{}", text, back);
        }
    }
}
