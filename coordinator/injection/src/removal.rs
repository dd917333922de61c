//! Removes the sidecar from a pod, by the annotation that records the injection. Parts that others
//! have added or removed since do not prevent the removal.

use serde_json::Value;

use crate::draft::{Draft, below, keys, list_at, named, text_at};
use crate::edit::{Edit, EditOperation, Step};
use crate::names::{CLUSTER, CONTAINER, LOCAL_VOLUMES, STATUS};
use crate::probes::GRACE;
use crate::refusal::Refusal;
use crate::status::{Hook, LocalVolumes, Status};
use crate::volumes;
use crate::worker::{HOOK, THEN};

/// The injection of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The image that the sidecar has.
    pub image: String,
    /// Equal for two injections that add the same to a pod; `None` for a hand-written sidecar.
    pub digest: Option<String>,
}

/// The sidecar that a pod has, injected or written by hand.
#[must_use]
pub fn injected(pod: &Value) -> Option<Injected> {
    let containers = list_at(pod, &keys(&["spec", "initContainers"])).ok()?;
    let sidecar = &containers[named(containers, CONTAINER)?];
    let status = Status::of(pod).ok().flatten();
    Some(Injected {
        image: sidecar.get("image").and_then(Value::as_str).unwrap_or_default().into(),
        digest: status.map(|status| status.digest_text().into()),
    })
}

/// The warnings of a pod's injection, as the annotation [`STATUS`] has them; none if it cannot be
/// read.
#[must_use]
pub fn warnings(annotation: &str) -> Vec<String> {
    serde_json::from_str(annotation).map_or_else(|_| Vec::new(), |status: Status| status.warnings)
}

/// The edits that remove the injection from a pod; empty if nothing was injected.
///
/// # Errors
/// If the record of the injection cannot be read.
pub fn uninject(pod: &Value) -> Result<Vec<Edit>, Refusal> {
    let Some(status) = Status::of(pod)? else { return Ok(Vec::new()) };
    let mut draft = Draft::new(pod);
    take_named(&mut draft, &keys(&["spec", "initContainers"]), CONTAINER)?;
    for name in volumes::NAMES {
        take_named(&mut draft, &keys(&["spec", "volumes"]), name)?;
    }
    for name in &status.pull_secrets {
        take_named(&mut draft, &keys(&["spec", "imagePullSecrets"]), name)?;
    }
    let containers = keys(&["spec", "containers"]);
    let index = named(list_at(pod, &containers)?, &status.container);
    let worker = index.map(|index| below(&containers, index));
    if let Some(worker) = &worker {
        let env = below(worker, "env");
        for name in &status.env {
            take_named(&mut draft, &env, name)?;
        }
        for (name, value) in &status.replaced {
            put_back(&mut draft, &env, name, value)?;
        }
        let [.., bin] = volumes::NAMES;
        take_named(&mut draft, &below(worker, "volumeMounts"), bin)?;
        take_hook(&mut draft, worker, status.hook);
        for (probe, seconds) in &status.probes {
            let path = below(&below(worker, probe.as_str()), GRACE);
            if draft.at(&path).and_then(Value::as_u64) == Some(*seconds) {
                draft.remove(path);
            }
        }
    }
    if status.label {
        take_key(&mut draft, &keys(&["metadata", "labels"]), CLUSTER);
    }
    take_local_volumes(&mut draft, &status.local_volumes)?;
    take_key(&mut draft, &keys(&["metadata", "annotations"]), STATUS);
    for (path, before) in status.made(worker.as_deref()) {
        draft.unmake(&path, before);
    }
    Ok(draft.finish().1)
}

fn take_named(draft: &mut Draft, list: &[Step], name: &str) -> Result<(), Refusal> {
    if let Some(index) = named(list_at(draft.pod(), list)?, name) {
        draft.remove(below(list, index));
    }
    Ok(())
}

fn take_key(draft: &mut Draft, map: &[Step], key: &str) {
    let path = below(map, key);
    if draft.at(&path).is_some() {
        draft.remove(path);
    }
}

/// Takes the agent's volumes out of those that do not keep a node.
fn take_local_volumes(draft: &mut Draft, was: &LocalVolumes) -> Result<(), Refusal> {
    let path = below(&keys(&["metadata", "annotations"]), LOCAL_VOLUMES);
    let Some(listed) = text_at(draft.pod(), &path)? else { return Ok(()) };
    let is_other = |name: &&str| was.added.iter().all(|added| *added != name.trim());
    let others = listed.split(',').filter(is_other).collect::<Vec<_>>().join(",");
    if others == listed {
        return Ok(());
    }
    if others.is_empty() && was.is_new {
        draft.remove(path);
    } else {
        draft.change(path, EditOperation::Replace(others.into()));
    }
    Ok(())
}

fn put_back(draft: &mut Draft, env: &[Step], name: &str, value: &str) -> Result<(), Refusal> {
    if let Some(index) = named(list_at(draft.pod(), env)?, name) {
        let path = below(&below(env, index), "value");
        if draft.at(&path).is_some() {
            draft.change(path, EditOperation::Replace(value.into()));
        }
    }
    Ok(())
}

fn take_hook(draft: &mut Draft, worker: &[Step], hook: Hook) {
    let there = draft.at(worker).is_some_and(|worker| hook_there(worker, hook));
    let path = below(&below(worker, "lifecycle"), "preStop");
    match hook {
        _ if !there => {}
        Hook::Kept => {}
        Hook::Added => draft.remove(path),
        Hook::InsteadOfNull => draft.change(path, EditOperation::Replace(Value::Null)),
        Hook::Wrapped => {
            let command = below(&below(&path, "exec"), "command");
            for _ in HOOK.iter().chain(&THEN) {
                draft.remove(below(&command, 0));
            }
        }
    }
}

/// Whether a container's hook is unchanged since the injection.
pub(crate) fn hook_there(worker: &Value, hook: Hook) -> bool {
    let words = match hook {
        Hook::Kept => return true,
        Hook::Added | Hook::InsteadOfNull => HOOK.to_vec(),
        Hook::Wrapped => [HOOK.as_slice(), &THEN].concat(),
    };
    let command = worker.pointer("/lifecycle/preStop/exec/command").and_then(Value::as_array);
    let there = command.map(Vec::as_slice).unwrap_or_default();
    let same = |length: usize| {
        there.iter().take(length).map(Value::as_str).eq(words.iter().map(|word| Some(*word)))
    };
    match hook {
        Hook::Wrapped => there.len() > words.len() && same(words.len()),
        _ => same(usize::MAX),
    }
}
