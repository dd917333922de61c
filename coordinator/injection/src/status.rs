//! What was injected, as one line of JSON in an annotation of the pod: all that it takes to take
//! it out again, and to know whether it would be injected differently now.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::draft::{Before, Draft, below, keys, text_at};
use crate::edit::Step;
use crate::names::STATUS;
use crate::refusal::Refusal;

/// The form of the annotation: a reader refuses a later one.
const VERSION: u32 = 1;

/// What became of the worker's preStop hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Hook {
    /// It had none.
    #[default]
    Added,
    /// It had a null.
    InsteadOfNull,
    /// Its command runs after the drain.
    Wrapped,
    /// It is of another kind, and is as it was.
    Kept,
}

/// What was added to the annotation of volumes that do not keep a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LocalVolumes {
    /// Those of the agent's volumes that it did not have.
    pub(crate) added: Vec<String>,
    /// There was no such annotation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_new: bool,
}

impl LocalVolumes {
    fn is_empty(&self) -> bool {
        self.added.is_empty()
    }
}

/// What was injected.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    version: u32,
    /// The agent's image.
    pub(crate) image: String,
    /// What two equal injections have in common.
    #[serde(rename = "digest")]
    digest_text: String,
    /// The worker's container.
    pub(crate) container: String,
    /// The variables that it got.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) env: Vec<String>,
    /// Its variables whose value was replaced: the name, and the value that there was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) replaced: Vec<(String, String)>,
    /// Its hook.
    pub(crate) hook: Hook,
    /// Its probes that got a time for the end of the container, and that time in seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) probes: Vec<(String, u64)>,
    /// Whether the cluster's label was added.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) label: bool,
    /// The pull secrets that the pod got.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pull_secrets: Vec<String>,
    /// The annotation of volumes that do not keep a node.
    #[serde(default, skip_serializing_if = "LocalVolumes::is_empty")]
    pub(crate) local_volumes: LocalVolumes,
    /// What works, and may surprise the user. The answer of the admission often reaches only a
    /// controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    /// Maps and lists that were made, in the worker's container those that begin with `worker.`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    made: Vec<String>,
    /// Those of them that had been there as null.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    null: Vec<String>,
    /// Taken in while injecting.
    #[serde(skip)]
    pub(crate) digest: Digest,
}

impl Status {
    pub(crate) fn new(image: &str, container: &str) -> Self {
        let mut digest = Digest::default();
        digest.add(&VERSION.into());
        digest.add(&container.into());
        Self {
            version: VERSION,
            image: image.into(),
            digest_text: String::new(),
            container: container.into(),
            env: Vec::new(),
            replaced: Vec::new(),
            hook: Hook::Added,
            probes: Vec::new(),
            label: false,
            pull_secrets: Vec::new(),
            local_volumes: LocalVolumes::default(),
            warnings: Vec::new(),
            made: Vec::new(),
            null: Vec::new(),
            digest,
        }
    }

    /// Reads a pod's annotation.
    pub(crate) fn of(pod: &Value) -> Result<Option<Self>, Refusal> {
        let path = below(&keys(&["metadata", "annotations"]), STATUS);
        let Some(text) = text_at(pod, &path)? else { return Ok(None) };
        let status: Self =
            serde_json::from_str(text).map_err(|error| Refusal::Status(error.to_string()))?;
        match status.version {
            VERSION => Ok(Some(status)),
            other => Err(Refusal::Status(format!("its form is {other}, and this is {VERSION}"))),
        }
    }

    /// Whether another injection puts in just the same.
    pub(crate) fn same_as(&self, digest: Digest) -> bool {
        self.digest_text == digest.text_of()
    }

    /// The digest that identifies the injection.
    pub(crate) fn digest_text(&self) -> &str {
        &self.digest_text
    }

    /// The annotation's value, when all else is in the draft.
    pub(crate) fn write(mut self, draft: &Draft, worker: &[Step]) -> String {
        self.digest_text = self.digest.text_of();
        for (path, before) in draft.made() {
            let name = name_of(path, worker);
            if *before == Before::Null {
                self.null.push(name.clone());
            }
            self.made.push(name);
        }
        serde_json::to_string(&self).expect("texts and lists are JSON")
    }

    /// Created maps and lists: their paths and previous values, the innermost first.
    pub(crate) fn made(&self, worker: Option<&[Step]>) -> Vec<(Vec<Step>, Before)> {
        let place = |name: &String| {
            let before = if self.null.contains(name) { Before::Null } else { Before::Nothing };
            let path = match name.strip_prefix("worker.") {
                Some(field) => below(worker?, field),
                None => keys(&name.split('.').collect::<Vec<_>>()),
            };
            Some((path, before))
        };
        self.made.iter().rev().filter_map(place).collect()
    }
}

fn name_of(path: &[Step], worker: &[Step]) -> String {
    match path.strip_prefix(worker) {
        Some(rest) => format!("worker.{}", crate::edit::Place(rest)),
        None => crate::edit::Place(path).to_string(),
    }
}
