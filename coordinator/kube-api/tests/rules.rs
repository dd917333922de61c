//! The rules of the definitions (CEL) and the checks of manifests: one table of cases, which a
//! test with a real API server reads too (`tests/tests/kubernetes/crds/rules.rs`).

#[path = "../testdata/rules/cases.rs"]
mod cases;

use leasehold_manifest::collection::{Collection, document};
use serde_json::Value;

use self::cases::{Case, cases};

/// The fields that the check of manifests refuses.
fn refused_fields(case: &Case) -> Vec<String> {
    let name = case.object["metadata"]["name"].as_str().expect("a name");
    let Some(id) = Collection::id(&case.kind, "ci", name) else {
        return vec!["metadata.name".to_owned()];
    };
    let mut problems = Vec::new();
    document(&id, case.object["spec"].clone(), &mut problems);
    problems.into_iter().map(|problem| problem.field).collect()
}

#[test]
fn the_check_of_manifests_gives_the_verdict_of_the_table() {
    let mut wrong = Vec::new();
    // Users do not write PipelineBindings.
    for case in cases().iter().filter(|case| case.kind != "PipelineBinding") {
        let fields = refused_fields(case);
        let is_blamed = |field: &String| {
            let rest = field.strip_prefix(&case.field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let as_expected = if case.accepted || case.api_only {
            fields.is_empty()
        } else {
            fields.iter().any(is_blamed)
        };
        if !as_expected {
            let expected = if case.accepted { "accepted" } else { "refused" };
            wrong.push(format!(
                "{} {:?}: expected {expected} at {:?}, refused fields: {fields:?}: {}",
                case.kind, case.rule, case.field, case.object
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The rules below a schema, with their paths.
fn rules(path: &str, schema: &Value, found: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        found.push((path.to_owned(), rule["message"].as_str().expect("a message").to_owned()));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        rules(&path, field, found);
        rules(&format!("{path}[]"), &field["items"], found);
        rules(&format!("{path}{{}}"), &field["additionalProperties"], found);
    }
}

#[test]
fn every_rule_of_the_definitions_has_cases_and_every_case_has_a_rule() {
    let cases = cases();
    let mut used = vec![false; cases.len()];
    let mut without_cases = Vec::new();
    let text = leasehold_kube_api::crd::yaml().unwrap();
    for document in text.split("---\n").filter(|document| !document.is_empty()) {
        let definition: Value = serde_yaml::from_str(document).unwrap();
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let version = &definition["spec"]["versions"][0];
        let mut found = Vec::new();
        rules("", &version["schema"]["openAPIV3Schema"], &mut found);
        assert!(!found.is_empty(), "{kind} has no rules");
        for (path, message) in found {
            let mut has_case = false;
            for (case, used) in cases.iter().zip(&mut used) {
                if case.kind == kind && case.path == path && message.starts_with(&case.rule) {
                    (*used, has_case) = (true, true);
                }
            }
            if !has_case {
                without_cases.push(format!("{kind} {path}: {message}"));
            }
        }
    }
    assert!(without_cases.is_empty(), "rules without cases:\n{}", without_cases.join("\n"));
    for (case, used) in cases.iter().zip(used) {
        assert!(used, "no rule of {} at {:?} begins with {:?}", case.kind, case.path, case.rule);
    }
}
