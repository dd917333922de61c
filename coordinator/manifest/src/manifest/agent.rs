//! What a WorkerCluster says of the agent that its opted-in pods get. Each setting refines the
//! installation's, and an annotation of a pod refines it in turn.

use std::collections::BTreeMap;

use leasehold_types::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::values::quantity_schema;

/// Flags that one WorkerCluster sets.
pub(super) const FLAGS_MAX: usize = 64;
/// Bytes of an image's name.
pub const IMAGE_BYTES_MAX: usize = 512;

/// What the agents of a cluster's opted-in pods are like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AgentSpec {
    /// Its image; the installation's unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = IMAGE_BYTES_MAX), regex(pattern = r"^[!-~]+$"))]
    #[schemars(extend("x-wanted" = "the name of an image"))]
    pub image: Option<String>,
    /// How workers learn of their leases, as the agent's flag --adapter says it: api unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Other flags of the agent by their names without dashes, as in file-path: /config/it.yml;
    /// each value is a text.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = FLAGS_MAX))]
    pub flags: BTreeMap<String, String>,
    /// What its container asks for and may use; 10m CPU and 16Mi memory, and 64Mi at most, unless
    /// given.
    #[serde(skip_serializing_if = "AgentResources::is_empty")]
    pub resources: AgentResources,
}

impl AgentResources {
    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }
}

impl AgentAmounts {
    fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none() && self.ephemeral_storage.is_none()
    }
}

/// What the agent's container asks for and may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AgentResources {
    /// What it asks for.
    #[serde(skip_serializing_if = "AgentAmounts::is_empty")]
    pub requests: AgentAmounts,
    /// The most that it may use.
    #[serde(skip_serializing_if = "AgentAmounts::is_empty")]
    pub limits: AgentAmounts,
}

/// CPU, memory and storage on the node's disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AgentAmounts {
    /// Processors, as in 100m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity_schema")]
    pub cpu: Option<Quantity>,
    /// Memory, as in 64Mi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity_schema")]
    pub memory: Option<Quantity>,
    /// Storage on the node's disk, as in 64Mi; none unless given.
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity_schema")]
    pub ephemeral_storage: Option<Quantity>,
}
