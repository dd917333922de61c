//! The desired form of a created workload, as the body of a server-side apply: only fields that the
//! fleet's spec decides. The generation of its template grows when pods must be replaced, and not
//! when the workload scales.

use leasehold_kube_api::names::{
    CLUSTER_LABEL, FIELD_MANAGER, GENERATION_ANNOTATION, MANAGED_BY_LABEL, TEMPLATE_DIGEST,
};
use leasehold_manifest::manifest::{WorkloadKind, WorkloadSpec};
use leasehold_types::limits::GRACE_BEYOND_DRAIN;
use serde_json::{Map, Value, json};

use super::fleet::Fleet;
use super::workload::WorkloadFacts;
use crate::digest::digest;

/// The workload with `replicas` that the operator creates for `fleet`.
///
/// # Errors
/// If a field of the template is not an object.
pub(super) fn body(
    fleet: &Fleet,
    existing: Option<&WorkloadFacts>,
    replicas: u32,
) -> Result<Value, String> {
    let name = fleet.name();
    let workload = fleet.workload().cloned().unwrap_or_default();
    let mut template = pod_template(fleet)?;
    let digest = digest(&template);
    let generation = generation(fleet, existing, &digest);
    let annotations = object(object(&mut template, "metadata")?, "annotations")?;
    annotations.insert(GENERATION_ANNOTATION.into(), generation.to_string().into());
    let mut spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": { CLUSTER_LABEL: name } },
        "template": template,
    });
    match workload.kind {
        WorkloadKind::Deployment => spec["strategy"] = strategy(&workload),
        WorkloadKind::StatefulSet => {
            let policy = workload.pod_management_policy.unwrap_or_default();
            spec["podManagementPolicy"] = format!("{policy:?}").into();
            spec["updateStrategy"] = json!({ "type": "RollingUpdate" });
            if let Some(service) = &workload.service_name {
                spec["serviceName"] = service.as_str().into();
            }
        }
    }
    Ok(json!({
        "apiVersion": "apps/v1",
        "kind": format!("{:?}", workload.kind),
        "metadata": {
            "name": name,
            "namespace": fleet.namespace(),
            "labels": { CLUSTER_LABEL: name, MANAGED_BY_LABEL: FIELD_MANAGER },
            "annotations": { TEMPLATE_DIGEST: digest },
            "ownerReferences": [fleet.owner()],
        },
        "spec": spec,
    }))
}

/// The pods: as the fleet's template says, with the label that makes them its workers and a
/// grace period that a whole drain fits into.
fn pod_template(fleet: &Fleet) -> Result<Map<String, Value>, String> {
    let mut template = fleet.template().cloned().map(|template| template.0).unwrap_or_default();
    let labels = object(object(&mut template, "metadata")?, "labels")?;
    labels.insert(CLUSTER_LABEL.into(), fleet.name().into());
    let grace = fleet.drain_deadline().saturating_add(GRACE_BEYOND_DRAIN).as_secs();
    let spec = object(&mut template, "spec")?;
    spec.entry("terminationGracePeriodSeconds").or_insert(grace.into());
    Ok(template)
}

/// The generation of the template: the last one if the template is unchanged, else a higher one.
fn generation(fleet: &Fleet, existing: Option<&WorkloadFacts>, digest: &str) -> u64 {
    let own = fleet
        .metadata()
        .generation
        .and_then(|generation| u64::try_from(generation).ok())
        .unwrap_or(1);
    match existing {
        Some(present)
            if present.digest.as_deref() == Some(digest) && present.template_generation > 0 =>
        {
            present.template_generation
        }
        Some(present) => own.max(present.template_generation.saturating_add(1)),
        None => own,
    }
}

fn strategy(workload: &WorkloadSpec) -> Value {
    let mut rolling = Map::new();
    for (field, amount) in
        [("maxSurge", workload.max_surge), ("maxUnavailable", workload.max_unavailable)]
    {
        if let Some(amount) = amount {
            rolling.insert(field.into(), json!(amount));
        }
    }
    if rolling.is_empty() {
        json!({ "type": "RollingUpdate" })
    } else {
        json!({ "type": "RollingUpdate", "rollingUpdate": rolling })
    }
}

fn object<'a>(
    within: &'a mut Map<String, Value>,
    field: &str,
) -> Result<&'a mut Map<String, Value>, String> {
    let value = within.entry(field).or_insert_with(|| json!({}));
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().ok_or_else(|| format!("spec.template: {field} must be an object"))
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
