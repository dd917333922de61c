//! The chart: its README has a row for each value of its schema, whose defaults are those of
//! `values.yaml`, and its version is the workspace's.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::toolbox;

use super::read;

const CHART: &str = "deploy/helm/leasehold";
const SCHEMA: &str = "values.schema.json";
/// Helm gives it to every chart.
const LEFT_OUT: &str = "global";

fn chart_file(name: &str) -> String {
    read(&format!("{CHART}/{name}"))
}

fn schema() -> Value {
    serde_json::from_str(&chart_file(SCHEMA)).expect("JSON")
}

fn values() -> Value {
    serde_yaml::from_str(&chart_file("values.yaml")).expect("YAML")
}

/// What is wrong with the table of the chart in this folder.
fn table_problem(chart: &Path) -> Option<String> {
    let mut command = Command::new("python3");
    command.arg(toolbox::root().join("tests/tools/chart_readme")).arg("--check").arg(chart);
    let output = command.output().expect("Python starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(said)
}

/// Notes where the defaults of the schema are not the values.
fn compare(path: &str, schema: &Value, values: &Value, differences: &mut Vec<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        let default = &schema["default"];
        if default != values {
            differences.push(format!("{path}: {values} in values.yaml, {default} in {SCHEMA}"));
        }
        return;
    };
    for (name, property) in properties {
        if name != LEFT_OUT {
            compare(&format!("{path}.{name}"), property, &values[name], differences);
        }
    }
    for (name, _) in values.as_object().into_iter().flatten() {
        if !properties.contains_key(name) {
            differences.push(format!("{path}.{name} is not in {SCHEMA}"));
        }
    }
}

#[test]
fn the_table_of_values_is_that_of_the_schema() {
    assert_eq!(table_problem(&toolbox::root().join(CHART)), None);
}

#[test]
fn a_table_that_is_out_of_date_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("it is written");
    };
    let fresh = chart_file(SCHEMA);
    write("README.md", &chart_file("README.md"));
    write(SCHEMA, &fresh);
    assert_eq!(table_problem(folder.path()), None);
    let changed = fresh.replacen("\"default\": 3", "\"default\": 2", 1);
    assert_ne!(changed, fresh);
    write(SCHEMA, &changed);
    let said = table_problem(folder.path()).expect("it is found");
    assert!(said.contains("make generate"), "{said}");
}

#[test]
fn the_defaults_of_the_schema_are_the_values() {
    let mut differences = Vec::new();
    compare("", &schema(), &values(), &mut differences);
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn a_value_that_differs_from_its_default_or_is_in_one_file_only_is_found() {
    let (schema, mut values) = (schema(), values());
    values["replicas"] = 2.into();
    values["image"]["name"] = "x".into();
    let logs = values.as_object_mut().expect("a map").remove("logLevel");
    assert!(logs.is_some());
    let mut differences = Vec::new();
    compare("", &schema, &values, &mut differences);
    assert_eq!(differences.len(), 3, "{differences:#?}");
}

#[test]
fn the_chart_and_the_base_have_the_workspaces_version() {
    let version = env!("CARGO_PKG_VERSION");
    let chart: Value = serde_yaml::from_str(&chart_file("Chart.yaml")).expect("YAML");
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], version, "{field} in Chart.yaml");
    }
    let base: Value = serde_yaml::from_str(&read("deploy/base/kustomization.yaml")).expect("YAML");
    assert_eq!(base["images"][0]["newTag"], version, "the image's tag in deploy/base");
}
