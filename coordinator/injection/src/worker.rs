//! The changes of the worker's container: variables with the address of the worker API, the agent's
//! program, and a preStop hook that waits for the drain.

use serde_json::{Value, json};

use crate::annotations::PodSettings;
use crate::container::{ports, variable_from, variable_of};
use crate::draft::{Draft, below, keys, list_at, map_at, named, text_at};
use crate::edit::{EditOperation, Place, Step};
use crate::names::CONFIG;
use crate::probes::GRACE;
use crate::refusal::Refusal;
use crate::status::{Hook, Status};
use crate::travis;
use crate::volumes::{BIN_PATH, PROGRAM, worker_mount};

/// The worker's variables for its namespace and, with that, its WorkerCluster or WorkerClass.
const NAMESPACE: &str = "LEASEHOLD_NAMESPACE";
const CLUSTER: &str = "LEASEHOLD_CLUSTER";
/// kubectl's annotation for the default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// The hook: it drains and waits until the last job has ended or the deadline has passed.
pub(crate) const HOOK: [&str; 3] = [PROGRAM, "drain", "--wait"];
/// Arguments between the hook and the command that it runs after the drain.
pub(crate) const THEN: [&str; 2] = ["--then", "--"];

/// The probes by which a kubelet finds that a container hangs, and restarts it.
const PROBES: [&str; 2] = ["livenessProbe", "startupProbe"];

/// The worker's container.
pub(crate) struct Worker {
    /// Its path in the pod.
    pub(crate) path: Vec<Step>,
    /// Its name.
    pub(crate) name: String,
}

impl Worker {
    /// The container that an annotation names, or the first.
    pub(crate) fn find(pod: &Value, config: &PodSettings) -> Result<Self, Refusal> {
        let path = keys(&["spec", "containers"]);
        let containers = list_at(pod, &path)?;
        if containers.is_empty() {
            return Err(Refusal::NoContainers);
        }
        let annotations = keys(&["metadata", "annotations"]);
        let default = text_at(pod, &below(&annotations, DEFAULT_CONTAINER))?;
        let ours = config.container.as_deref().map(|name| (format!("{CONFIG}container"), name));
        let wanted = ours.or(default.map(|name| (DEFAULT_CONTAINER.to_owned(), name)));
        let index = match wanted {
            None => 0,
            Some((by, name)) => named(containers, name).ok_or_else(|| {
                let known =
                    containers.iter().filter_map(|container| container.get("name")?.as_str());
                let known = known.collect::<Vec<_>>().join(", ");
                Refusal::NoSuchContainer { by, name: name.into(), known }
            })?,
        };
        let path = below(&path, index);
        map_at(pod, &path)?.ok_or(Refusal::shape(&path, "a container"))?;
        match text_at(pod, &below(&path, "name"))? {
            Some(name) => Ok(Self { name: name.into(), path }),
            None => Err(Refusal::shape(&below(&path, "name"), "set: a container needs a name")),
        }
    }

    /// Its own variables.
    pub(crate) fn own<'a>(&self, pod: &'a Value) -> Result<&'a [Value], Refusal> {
        list_at(pod, &self.field("env"))
    }

    fn field(&self, name: &str) -> Vec<Step> {
        below(&self.path, name)
    }

    /// Missing variables are inserted before its own, so that its own can reference them.
    pub(crate) fn environment(
        &self,
        draft: &mut Draft,
        status: &mut Status,
        config: &PodSettings,
        cluster: &str,
        warnings: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let path = self.field("env");
        let own = list_at(draft.pod(), &path)?;
        let address = config.flags.get("listen").map_or("127.0.0.1:7411", String::as_str);
        let address = address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
        let wanted = [
            variable_of("LEASEHOLD_ADDR", &format!("http://{address}")),
            variable_from(NAMESPACE, "metadata.namespace"),
            variable_of(CLUSTER, &format!("$({NAMESPACE})/{cluster}")),
            variable_from("LEASEHOLD_WORKER", "metadata.name"),
        ];
        let wanted = wanted.into_iter().chain(travis::worker_variables(config));
        let name = |variable: &Value| variable["name"].as_str().unwrap_or_default().to_owned();
        let lacks = |variable: &Value| named(own, &name(variable)).is_none();
        let wanted: Vec<Value> = wanted.filter(lacks).collect();
        // A variable that references one of the container's own is inserted right after it, since a
        // reference works only for earlier variables.
        let own_namespace = named(own, NAMESPACE);
        if !wanted.is_empty() {
            draft.want_list(&path)?;
        }
        let mut first = 0;
        for variable in wanted {
            let after = own_namespace.filter(|_| variable["name"] == CLUSTER);
            status.env.push(name(&variable));
            status.digest.add(&variable);
            draft.insert(below(&path, after.map_or(first, |own| first + own + 1)), variable);
            first += usize::from(after.is_none());
        }
        travis::start_with_none(draft, status, config, &path, warnings)
    }

    /// The agent's program, for the hook: it runs in any image, even in an empty one.
    pub(crate) fn mount(&self, draft: &mut Draft, status: &mut Status) -> Result<(), Refusal> {
        let path = self.field("volumeMounts");
        let own = list_at(draft.pod(), &path)?;
        if let Some(index) = own.iter().position(|mount| mount["mountPath"] == BIN_PATH) {
            return Err(Refusal::Taken {
                field: Place(&below(&path, index)).to_string(),
                why: "the agent's program is mounted at /leasehold",
            });
        }
        draft.want_list(&path)?;
        let mount = worker_mount();
        status.digest.add(&mount);
        draft.push(&path, mount);
        Ok(())
    }

    /// Bounds the hook where a probe has found that the worker hangs: its jobs will not end.
    /// Without that the restart would wait for them as long as the pod may take to end.
    pub(crate) fn probes(
        &self,
        draft: &mut Draft,
        status: &mut Status,
        grace: Option<u64>,
    ) -> Result<(), Refusal> {
        let Some(seconds) = grace else { return Ok(()) };
        for name in PROBES {
            let path = self.field(name);
            let Some(probe) = map_at(draft.pod(), &path)? else { continue };
            if probe.contains_key(GRACE) {
                continue;
            }
            draft.insert(below(&path, GRACE), seconds.into());
            status.digest.add(&name.into());
            status.probes.push((name.into(), seconds));
        }
        Ok(())
    }

    /// The hook. The container's own exec hook runs after the drain.
    pub(crate) fn hook(
        &self,
        draft: &mut Draft,
        status: &mut Status,
        warnings: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let lifecycle = self.field("lifecycle");
        map_at(draft.pod(), &lifecycle)?;
        let hook = below(&lifecycle, "preStop");
        let handler = map_at(draft.pod(), &hook)?;
        let command = below(&below(&hook, "exec"), "command");
        status.hook = match handler {
            None => {
                draft.want_map(&lifecycle)?;
                let value = json!({ "exec": { "command": HOOK } });
                match draft.at(&hook) {
                    None => {
                        draft.insert(hook, value);
                        Hook::Added
                    }
                    Some(_) => {
                        draft.change(hook, EditOperation::Replace(value));
                        Hook::InsteadOfNull
                    }
                }
            }
            Some(handler) if handler.contains_key("exec") => {
                if list_at(draft.pod(), &command)?.is_empty() {
                    return Err(Refusal::shape(&command, "a command: its preStop runs nothing"));
                }
                for (index, word) in HOOK.iter().chain(&THEN).enumerate() {
                    draft.insert(below(&command, index), (*word).into());
                }
                Hook::Wrapped
            }
            Some(handler) => {
                let kinds: Vec<&str> = handler.keys().map(String::as_str).collect();
                warnings.push(format!(
                    "{} is of the kind {} and is not changed: the kubelet ends the worker when it \
                     is over, without waiting for running jobs. Where it takes shorter than the \
                     jobs, make it an exec hook, which then runs when they have ended",
                    Place(&hook),
                    kinds.join(", ")
                ));
                Hook::Kept
            }
        };
        status.digest.add(&json!(status.hook));
        Ok(())
    }
}

/// Warns about containers that use the agent's ports, which all containers of a pod share.
pub(crate) fn ports_taken(pod: &Value, config: &PodSettings, warnings: &mut Vec<String>) {
    let ours = ports(config);
    for field in ["initContainers", "containers"] {
        let path = keys(&["spec", field]);
        for (index, container) in list_at(pod, &path).unwrap_or_default().iter().enumerate() {
            let ports = container.get("ports").and_then(Value::as_array);
            let taken =
                ports.into_iter().flatten().filter_map(|port| port["containerPort"].as_u64());
            for port in taken.filter(|port| ours.iter().any(|our| u64::from(*our) == *port)) {
                warnings.push(format!(
                    "{} listens on port {port}, as the agent does: set the annotation \
                     {CONFIG}listen or {CONFIG}health-listen to another",
                    Place(&below(&path, index))
                ));
            }
        }
    }
}
