//! The settings of one pod's sidecar: the given settings, overridden by the pod's annotations.

use std::collections::BTreeMap;

use leasehold_types::quantity::InvalidQuantity;
use leasehold_types::{Quantity, nearest};
use serde_json::Value;

use crate::draft::{keys, map_at};
use crate::flags::{FLAGS, RESERVED, check_flag};
use crate::names::CONFIG;
use crate::probes::ProbeKind;
use crate::qos::is_guaranteed;
use crate::refusal::Refusal;
use crate::sidecar::{AgentUser, Resources, Sidecar, pull_secrets};

/// Annotations that are not flags of the agent.
const OTHERS: [&str; 11] = [
    "container",
    "cpu-limit",
    "cpu-request",
    "ephemeral-storage-limit",
    "ephemeral-storage-request",
    "image",
    "memory-limit",
    "memory-request",
    "probes",
    "pull-secrets",
    "user",
];

/// The settings of one pod's sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodSettings {
    /// The agent's image.
    pub(crate) image: String,
    /// The worker's container, if an annotation names it.
    pub(crate) container: Option<String>,
    /// The agent's flags.
    pub(crate) flags: BTreeMap<String, String>,
    /// The resources of its container.
    pub(crate) resources: Resources,
    /// The user and group of its container.
    pub(crate) user: AgentUser,
    /// The Secrets that its image is pulled with.
    pub(crate) pull_secrets: Vec<String>,
    /// How the kubelet probes it.
    pub(crate) probes: ProbeKind,
}

/// The settings, refined by the pod's annotations, and all checked.
pub(crate) fn read(pod: &Value, with: &Sidecar) -> Result<PodSettings, Refusal> {
    let mut config = PodSettings {
        image: with.image.clone(),
        container: None,
        flags: with.flags.clone(),
        resources: Resources::default(),
        user: with.user,
        pull_secrets: with.pull_secrets.clone(),
        probes: ProbeKind::of(pod)?,
    };
    for (flag, value) in &config.flags {
        check_flag("its cluster's or class's spec.agent.flags.", flag, value)?;
    }
    for (setting, quantity) in with.resources.all() {
        check_above_zero(setting, quantity)?;
    }
    let annotations = map_at(pod, &keys(&["metadata", "annotations"]))?;
    for (key, value) in annotations.into_iter().flatten() {
        let Some(name) = key.strip_prefix(CONFIG) else { continue };
        let Some(value) = value.as_str() else {
            let field = format!("metadata.annotations: {key}");
            return Err(Refusal::Shape { field, wanted: "a text: write it in quotes" });
        };
        config.take(CONFIG, name, value)?;
    }
    let given = std::mem::replace(&mut config.resources, with.resources.clone());
    config.resources.refine(&given);
    if is_guaranteed(pod)? {
        config.resources.guarantee();
    }
    check_image("the agent's ", &config.image)?;
    Ok(config)
}

impl PodSettings {
    /// Takes one setting's value. `prefix` comes before its name where it was written.
    fn take(&mut self, prefix: &str, name: &str, value: &str) -> Result<(), Refusal> {
        let key = || format!("{prefix}{name}");
        let wrong = |why: String| Refusal::Value { what: key(), why };
        let resources = &mut self.resources;
        let quantity = match name {
            "image" => {
                self.image = value.into();
                return check_image(prefix, value);
            }
            "container" => {
                self.container = Some(value.into());
                return Ok(());
            }
            "user" => {
                self.user = value.parse().map_err(wrong)?;
                return Ok(());
            }
            "probes" => {
                self.probes = value.parse().map_err(wrong)?;
                return Ok(());
            }
            "pull-secrets" => {
                self.pull_secrets = pull_secrets(value).map_err(wrong)?;
                return Ok(());
            }
            "cpu-request" => &mut resources.cpu_request,
            "cpu-limit" => &mut resources.cpu_limit,
            "memory-request" => &mut resources.memory_request,
            "memory-limit" => &mut resources.memory_limit,
            "ephemeral-storage-request" => &mut resources.ephemeral_storage_request,
            "ephemeral-storage-limit" => &mut resources.ephemeral_storage_limit,
            flag => {
                let known = FLAGS.iter().any(|known| known.name == flag);
                if !known && RESERVED.iter().all(|(reserved, _)| *reserved != flag) {
                    let all = FLAGS.iter().map(|flag| flag.name).chain(OTHERS);
                    let near = nearest(flag, all).map(|near| format!("{prefix}{near}"));
                    return Err(Refusal::Unknown { what: key(), nearest: near });
                }
                check_flag(prefix, flag, value)?;
                self.flags.insert(flag.into(), value.into());
                return Ok(());
            }
        };
        *quantity = Some(parse_quantity(&key(), value)?);
        Ok(())
    }
}

impl Sidecar {
    /// Sets what an annotation of a pod could set, under the same name. `prefix` comes before the
    /// name in a refusal, as in `--set `.
    ///
    /// # Errors
    /// An unknown name, one that may not be set here, or a value that cannot be right.
    pub fn set(&mut self, prefix: &str, name: &str, value: &str) -> Result<(), Refusal> {
        let of_pod = match name {
            "container" => {
                Some("containers have other names in every pod: it is an annotation of the pod")
            }
            "probes" => Some(
                "most pods show whether they are in a mesh: it is an annotation of one that does \
                 not",
            ),
            _ => None,
        };
        if let Some(why) = of_pod {
            return Err(Refusal::Reserved { what: format!("{prefix}{name}"), why });
        }
        let mut config = PodSettings {
            image: std::mem::take(&mut self.image),
            container: None,
            flags: std::mem::take(&mut self.flags),
            resources: std::mem::take(&mut self.resources),
            user: self.user,
            pull_secrets: std::mem::take(&mut self.pull_secrets),
            probes: ProbeKind::Http,
        };
        let taken = config.take(prefix, name, value);
        (self.image, self.flags, self.resources) = (config.image, config.flags, config.resources);
        (self.user, self.pull_secrets) = (config.user, config.pull_secrets);
        taken
    }
}

fn parse_quantity(what: &str, value: &str) -> Result<Quantity, Refusal> {
    let wrong =
        |error: InvalidQuantity| Refusal::Value { what: what.into(), why: error.to_string() };
    let quantity = value.parse().map_err(wrong)?;
    check_above_zero(what, &quantity)?;
    Ok(quantity)
}

fn check_above_zero(what: &str, quantity: &Quantity) -> Result<(), Refusal> {
    let why =
        || format!("invalid quantity \"{quantity}\": a container cannot run with 0, raise it");
    if quantity.is_zero() { Err(Refusal::Value { what: what.into(), why: why() }) } else { Ok(()) }
}

fn check_image(prefix: &str, image: &str) -> Result<(), Refusal> {
    let wrong =
        image.is_empty() || image.len() > 1024 || image.chars().any(|c| !c.is_ascii_graphic());
    if wrong {
        let image: String = image.chars().take(64).collect();
        let why = format!("invalid image {image:?}: use a name such as registry/agent:1.0");
        return Err(Refusal::Value { what: format!("{prefix}image"), why });
    }
    Ok(())
}
