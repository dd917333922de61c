//! What a pod's own annotations say about its sidecar, on top of the settings it would have.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::draft::{keys, map_at};
use crate::flags::{FLAGS, RESERVED, check_flag, nearest};
use crate::names::CONFIG;
use crate::quantity;
use crate::refusal::Refusal;
use crate::sidecar::{Resources, Sidecar};

/// Annotations that are no flag of the agent.
const OTHERS: [&str; 6] =
    ["container", "cpu-limit", "cpu-request", "image", "memory-limit", "memory-request"];

/// The settings of one pod's sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The agent's image.
    pub(crate) image: String,
    /// The worker's container, where an annotation names it.
    pub(crate) container: Option<String>,
    /// The agent's flags.
    pub(crate) flags: BTreeMap<String, String>,
    /// What its container asks for.
    pub(crate) resources: Resources,
}

/// The settings, refined by the pod's annotations, and all checked.
pub(crate) fn read(pod: &Value, with: &Sidecar) -> Result<Config, Refusal> {
    let mut config = Config {
        image: with.image.clone(),
        container: None,
        flags: with.flags.clone(),
        resources: with.resources.clone(),
    };
    for (flag, value) in &config.flags {
        check_flag("the flag ", flag, value)?;
    }
    for (setting, quantity) in config.resources.all() {
        quantity_ok(setting, quantity)?;
    }
    let annotations = map_at(pod, &keys(&["metadata", "annotations"]))?;
    for (key, value) in annotations.into_iter().flatten() {
        let Some(name) = key.strip_prefix(CONFIG) else { continue };
        let Some(value) = value.as_str() else {
            let field = format!("metadata.annotations: {key}");
            return Err(Refusal::Shape { field, wanted: "a text: write it in quotes" });
        };
        take(&mut config, name, value)?;
    }
    image_ok(&config.image)?;
    Ok(config)
}

/// Takes one annotation's value.
fn take(config: &mut Config, name: &str, value: &str) -> Result<(), Refusal> {
    let key = || format!("{CONFIG}{name}");
    let resources = &mut config.resources;
    let quantity = match name {
        "image" => {
            config.image = value.into();
            return Ok(());
        }
        "container" => {
            config.container = Some(value.into());
            return Ok(());
        }
        "cpu-request" => &mut resources.cpu_request,
        "cpu-limit" => &mut resources.cpu_limit,
        "memory-request" => &mut resources.memory_request,
        "memory-limit" => &mut resources.memory_limit,
        flag => {
            let known = FLAGS.iter().any(|known| known.name == flag);
            if !known && RESERVED.iter().all(|(reserved, _)| *reserved != flag) {
                let all = FLAGS.iter().map(|flag| flag.name).chain(OTHERS);
                let near = nearest(flag, all).map(|near| format!("{CONFIG}{near}"));
                return Err(Refusal::Unknown { what: key(), nearest: near });
            }
            check_flag(CONFIG, flag, value)?;
            config.flags.insert(flag.into(), value.into());
            return Ok(());
        }
    };
    quantity_ok(&key(), value)?;
    *quantity = Some(value.into());
    Ok(())
}

fn quantity_ok(what: &str, value: &str) -> Result<(), Refusal> {
    quantity::check(value).map_err(|why| Refusal::Value {
        what: what.into(),
        value: value.into(),
        why,
    })
}

fn image_ok(image: &str) -> Result<(), Refusal> {
    let wrong =
        image.is_empty() || image.len() > 1024 || image.chars().any(|c| !c.is_ascii_graphic());
    match wrong {
        false => Ok(()),
        true => Err(Refusal::Value {
            what: format!("{CONFIG}image"),
            value: image.chars().take(64).collect(),
            why: "is no image".into(),
        }),
    }
}
