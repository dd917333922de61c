//! The three kinds of objects that pipelines have, and of each the fields that are compared. Other
//! fields belong to other clients and stay as they are.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject};
use kube::core::ObjectMeta;
use leasehold_kube_api::names::{
    FIELD_MANAGER, MANAGED_BY_LABEL, PIPELINE_LABEL, SERVICE_NAME_LABEL, SLICE_MANAGED_BY_LABEL,
};
use leasehold_kube_api::resources::{Pipeline, PipelineBinding};
use leasehold_manifest::manifest::API_VERSION;
use leasehold_types::PipelineName;
use serde_json::{Map, Value, json};

/// A kind of objects that the operator manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ManagedKind {
    /// The address of a binding.
    Service,
    /// The pods of a binding.
    EndpointSlice,
    /// A node of a pipeline as it runs.
    Binding,
}

impl ManagedKind {
    /// All of them, in the order of their deletion: EndpointSlices first, so that no traffic goes
    /// to workers without a Service.
    pub(super) const ALL: [Self; 3] = [Self::EndpointSlice, Self::Service, Self::Binding];

    /// As the API server knows it.
    pub(super) fn resource(self) -> ApiResource {
        match self {
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::EndpointSlice => ApiResource::erase::<EndpointSlice>(&()),
            Self::Binding => ApiResource::erase::<PipelineBinding>(&()),
        }
    }

    /// The kind's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Binding => PipelineBinding::KIND,
        }
    }

    /// The fields that are compared with the desired object, without empty ones.
    pub(super) fn compared_fields(self, object: &DynamicObject) -> Value {
        let data = &object.data;
        let mut compared_fields = match self {
            Self::Service => json!({
                "type": data["spec"]["type"],
                "selector": data["spec"]["selector"],
                "headless": is_headless(data),
                "ports": each(&data["spec"]["ports"], |port| {
                    pick(port, &["name", "port", "protocol", "targetPort"])
                }),
            }),
            Self::EndpointSlice => json!({
                "addressType": data["addressType"],
                "ports": each(&data["ports"], |port| pick(port, &["name", "port", "protocol"])),
                "endpoints": each(&data["endpoints"], endpoint),
            }),
            Self::Binding => {
                let fields = ["pipeline", "node", "class", "documentsPerSecond", "next"];
                json!({ "spec": pick(&data["spec"], &fields) })
            }
        };
        let labels = object.metadata.labels.as_ref();
        let label = |name| labels.and_then(|labels| labels.get(name));
        let ours = [MANAGED_BY_LABEL, PIPELINE_LABEL, SERVICE_NAME_LABEL, SLICE_MANAGED_BY_LABEL];
        compared_fields["labels"] =
            ours.into_iter().map(|name| (name.to_owned(), json!(label(name)))).collect();
        compared_fields["owners"] = json!(object.metadata.owner_references);
        without_empty(compared_fields)
    }

    /// Immutable fields: the API server rejects a change, so the object is deleted and created.
    pub(super) fn immutable_fields(self, object: &DynamicObject) -> String {
        match self {
            Self::Service => format!("headless: {}", is_headless(&object.data)),
            Self::EndpointSlice => object.data["addressType"].to_string(),
            Self::Binding => String::new(),
        }
    }

    /// A merge patch of the desired object for what other clients added and a server-side apply
    /// leaves.
    pub(super) fn removal_patch(self, desired: &DynamicObject) -> Value {
        let labels = json!(desired.metadata.labels);
        let owners = json!(desired.metadata.owner_references);
        let metadata = json!({ "labels": labels, "ownerReferences": owners });
        match self {
            Self::Service => json!({
                "metadata": metadata,
                "spec": { "selector": null, "ports": desired.data["spec"]["ports"] },
            }),
            Self::EndpointSlice => json!({ "metadata": metadata }),
            Self::Binding => json!({ "metadata": metadata, "spec": desired.data["spec"] }),
        }
    }
}

/// The name and UID of the Pipeline that controls an object; none if another kind controls it.
pub(super) fn controller(metadata: &ObjectMeta) -> Option<(&str, &str)> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let is_pipeline = owner.kind == Pipeline::KIND && owner.api_version == API_VERSION;
    is_pipeline.then_some((&owner.name, &owner.uid))
}

/// Whether an object belongs to the Pipeline with this UID. One with our labels and no owner has
/// lost its owner; one that another object controls belongs to that one.
pub(super) fn belongs_to(metadata: &ObjectMeta, pipeline: &PipelineName, uid: &str) -> bool {
    match controller(metadata) {
        Some((_, owner)) => owner == uid,
        None => {
            let mut owners = metadata.owner_references.iter().flatten();
            let is_controlled = owners.any(|owner| owner.controller == Some(true));
            let label = |name: &str| metadata.labels.as_ref().and_then(|labels| labels.get(name));
            !is_controlled
                && label(MANAGED_BY_LABEL).is_some_and(|manager| manager == FIELD_MANAGER)
                && label(PIPELINE_LABEL).is_some_and(|owner| owner == pipeline.parts().1)
        }
    }
}

/// The pipeline that an object belongs to: its controller, or else the one that its label names.
pub(super) fn owning_pipeline(metadata: &ObjectMeta) -> Option<PipelineName> {
    let labelled = || metadata.labels.as_ref()?.get(PIPELINE_LABEL).map(String::as_str);
    let name = controller(metadata).map(|(name, _)| name).or_else(labelled)?;
    PipelineName::in_namespace(metadata.namespace.as_deref()?, name).ok()
}

fn is_headless(data: &Value) -> bool {
    data["spec"]["clusterIP"] == "None"
}

fn endpoint(endpoint: &Value) -> Value {
    let mut compared = pick(endpoint, &["addresses", "nodeName", "zone"]);
    compared["conditions"] = pick(&endpoint["conditions"], &["ready", "serving", "terminating"]);
    compared["targetRef"] = pick(&endpoint["targetRef"], &["kind", "namespace", "name", "uid"]);
    compared
}

fn pick(value: &Value, fields: &[&str]) -> Value {
    fields.iter().map(|field| ((*field).to_owned(), value[*field].clone())).collect()
}

fn each(list: &Value, look: impl Fn(&Value) -> Value) -> Value {
    list.as_array().into_iter().flatten().map(look).collect()
}

fn without_empty(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().map(|(name, value)| (name, without_empty(value)));
            Value::Object(kept.filter(|(_, value)| !is_empty(value)).collect::<Map<_, _>>())
        }
        Value::Array(list) => list.into_iter().map(without_empty).collect(),
        value => value,
    }
}
