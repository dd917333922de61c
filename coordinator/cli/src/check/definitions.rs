//! The CustomResourceDefinitions: they exist, are established, and have the schema of this version.
//! Descriptions are not compared.

use serde_json::Value;

use super::api::ApiClient;
use super::expected::{self, list, text};
use super::installation::{APPLY_KINDS, OWN_VERSION};
use super::report::{Finding, Problem, Report};

/// The API path of definitions.
pub(super) const FOLDER: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// At most this many differences of one definition are listed.
const DIFFERENCES_MAX: usize = 3;

/// The end of the message about a field that only the cluster's definition has.
const UNKNOWN: &str = "is not in this version";

/// Checks all kinds.
pub(super) async fn look(api: &ApiClient, report: &mut Report) {
    let wanted = match expected::definitions() {
        Ok(wanted) => wanted,
        Err(error) => {
            let mut finding = Finding::new("kinds", "the program knows its kinds");
            finding.fail(Problem::new(error.to_string(), "report this as a bug"));
            report.add(finding);
            return;
        }
    };
    for definition in wanted {
        let kind = text(&definition["spec"]["names"]["kind"]);
        let id = match kind {
            "WorkerCluster" => "kind-worker-cluster",
            "StreamSet" => "kind-stream-set",
            "WorkerClass" => "kind-worker-class",
            "Pipeline" => "kind-pipeline",
            _ => "kind-pipeline-binding",
        };
        let check =
            format!("the CustomResourceDefinition of {kind} is that of version {}", OWN_VERSION);
        let mut finding = Finding::new(id, check);
        let name = text(&definition["metadata"]["name"]);
        match api.get(FOLDER, name).await {
            Ok(Some(there)) => compare(&mut finding, name, &definition, &there),
            Ok(None) => {
                let wrong = format!("there is no CustomResourceDefinition {name}");
                let fix = "apply the definitions";
                finding.fail(Problem::new(wrong, fix).run(APPLY_KINDS));
            }
            Err(error) => finding.skip(error.text()),
        }
        report.add(finding);
    }
}

fn compare(finding: &mut Finding, name: &str, wanted: &Value, there: &Value) {
    let differences = differences(wanted, there);
    if !differences.is_empty() {
        let shown = differences.iter().take(DIFFERENCES_MAX).cloned().collect::<Vec<_>>();
        let more = match differences.len().saturating_sub(DIFFERENCES_MAX) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let wrong = format!(
            "CustomResourceDefinition {name} is of another version: {}{more}",
            shown.join("; ")
        );
        // `apply` does not remove fields that others added: only `replace` does.
        let is_newer = differences.iter().any(|difference| difference.ends_with(UNKNOWN));
        finding.fail(if is_newer {
            let fix =
                "use the program of that version, or put the definitions of this version back";
            Problem::new(wrong, fix).run("kubectl replace --save-config -k deploy/crds")
        } else {
            let fix = "apply the definitions of this version";
            Problem::new(wrong, fix).run(APPLY_KINDS)
        });
    }
    for condition in ["Established", "NamesAccepted"] {
        let is = list(&there["status"]["conditions"]).find(|stored| stored["type"] == condition);
        if is.is_none_or(|stored| stored["status"] != "True") {
            let why = is.map_or("", |stored| text(&stored["message"]));
            let wrong = format!("CustomResourceDefinition {name} is not {condition}: {why}");
            let fix = "see what blocks it, for example another definition with the same names";
            finding.fail(Problem::new(wrong, fix).run(format!("kubectl describe crd {name}")));
        }
    }
}

/// How the definition in the cluster differs from that of this version, field by field.
pub(super) fn differences(wanted: &Value, there: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for version in list(&wanted["spec"]["versions"]) {
        let name = text(&version["name"]);
        let is = list(&there["spec"]["versions"]).find(|stored| stored["name"] == version["name"]);
        let Some(is) = is else {
            found.push(format!("version {name} is missing"));
            continue;
        };
        for flag in ["served", "storage"] {
            if is[flag] != version[flag] {
                found.push(format!("version {name}: {flag} is {}", is[flag]));
            }
        }
        if !is_same(&version["subresources"], &is["subresources"]) {
            found.push(format!("version {name}: its subresources differ"));
        }
        let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
        of_schema(&mut found, "", &schema(version), &schema(is));
    }
    found
}

/// Compares two schemas and names the outermost fields that differ.
fn of_schema(found: &mut Vec<String>, path: &str, wanted: &Value, there: &Value) {
    let fields = |schema: &Value| schema["properties"].as_object().cloned().unwrap_or_default();
    let (wanted_fields, there_fields) = (fields(wanted), fields(there));
    let shown = |name: &str| format!("{path}.{name}").trim_start_matches('.').to_owned();
    for (name, below) in &wanted_fields {
        match there_fields.get(name) {
            None => found.push(format!("the field {} is missing", shown(name))),
            Some(is) => of_schema(found, &shown(name), below, is),
        }
    }
    for name in there_fields.keys().filter(|name| !wanted_fields.contains_key(*name)) {
        found.push(format!("the field {} {UNKNOWN}", shown(name)));
    }
    if let (Some(below), Some(is)) = (wanted.get("items"), there.get("items")) {
        of_schema(found, &format!("{path}[]"), below, is);
    }
    let words =
        wanted.as_object().into_iter().chain(there.as_object()).flat_map(|object| object.keys());
    let mut words: Vec<&String> = words.collect();
    words.sort();
    words.dedup();
    for word in words {
        // Properties are compared above, and descriptions do not count.
        let is_other = matches!(word.as_str(), "properties" | "description")
            || word == "items" && wanted.get("items").is_some() && there.get("items").is_some();
        if !is_other && !is_same(&wanted[word], &there[word]) {
            let place = if path.is_empty() { "the object" } else { path };
            found.push(format!("{place}: its {word} differs"));
        }
    }
}

/// Whether two values are equal: 1 and 1.0 are, and descriptions do not count.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(one), Value::Object(other)) => {
            let keys = one.keys().chain(other.keys());
            let at = |map: &serde_json::Map<String, Value>, key: &str| {
                map.get(key).cloned().unwrap_or(Value::Null)
            };
            keys.clone().all(|key| key == "description" || is_same(&at(one, key), &at(other, key)))
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Value {
        expected::definitions().unwrap().remove(0)
    }

    #[test]
    fn compares_definitions_without_descriptions() {
        let mut other = cluster();
        assert_eq!(differences(&cluster(), &other), Vec::<String>::new());
        let schema = &mut other["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"]["description"] = "Something else.".into();
        assert_eq!(differences(&cluster(), &other), Vec::<String>::new());
    }

    #[test]
    fn names_the_field_that_differs() {
        type Change = fn(&mut Value);
        let changes: [(Change, &str); 5] = [
            (
                |spec| drop(spec["properties"].as_object_mut().unwrap().remove("drain")),
                "the field spec.drain is missing",
            ),
            (
                |spec| spec["properties"]["extra"] = serde_json::json!({ "type": "string" }),
                "the field spec.extra is not in this version",
            ),
            (
                |spec| spec["properties"]["maxJobs"]["maximum"] = 5.into(),
                "spec.maxJobs: its maximum differs",
            ),
            (
                |spec| spec["required"] = serde_json::json!(["maxJobs"]),
                "spec: its required differs",
            ),
            (
                |spec| {
                    let drain = &mut spec["properties"]["drain"]["properties"]["deadline"];
                    drain["default"] = "1h".into();
                },
                "spec.drain.deadline: its default differs",
            ),
        ];
        for (change, wanted) in changes {
            let mut other = cluster();
            let schema = &mut other["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            change(&mut schema["properties"]["spec"]);
            assert_eq!(differences(&cluster(), &other), [wanted]);
        }
    }
}
