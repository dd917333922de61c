//! The sidecar's container: a native sidecar, which starts before the worker and ends after it.
//! Its preStop hook must not begin a drain: a kubelet that replaces only the sidecar runs it too.

use serde_json::{Map, Value, json};

use crate::annotations::PodSettings;
use crate::flags::{listening_port, variable};
use crate::names::CONTAINER;
use crate::probes::GRACE;
use crate::sidecar::{AgentUser, Resources, Sidecar};
use crate::volumes;

/// The agent's program in its image.
const AGENT: &str = "/leasehold-agent";
/// The default address of the worker API.
const LISTEN: &str = "127.0.0.1:7411";
/// The default address of the health checks.
const HEALTH_LISTEN: &str = ":7412";
/// The failed startup probes, one a second, after which the kubelet restarts the agent.
const START_TRIES: u32 = 120;

/// A variable with a value.
pub(crate) fn variable_of(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

/// A variable with something that the pod knows about itself.
pub(crate) fn variable_from(name: &str, field: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": field } } })
}

/// The container. `grace` is how long a restart after a failed probe waits for its end, in seconds,
/// and `more` are variables of its adapter.
pub(crate) fn sidecar(
    config: &PodSettings,
    with: &Sidecar,
    cluster: &str,
    grace: Option<u64>,
    more: Vec<Value>,
) -> Value {
    let mut env = environment(config, with, cluster);
    env.extend(more);
    let health = listening_port(health_listen(config)).unwrap_or_default();
    let probe = |mut times: Value| {
        if let Some(seconds) = grace {
            times[GRACE] = seconds.into();
        }
        config.probes.probe(AGENT, health, &times)
    };
    json!({
        "name": CONTAINER,
        "image": config.image,
        "restartPolicy": "Always",
        "args": ["run"],
        // Otherwise a SIGTERM that arrives while the agent starts would be lost.
        "lifecycle": { "preStop": { "exec": { "command": [AGENT, "pre-stop"] } } },
        "env": env,
        "startupProbe": probe(json!({ "periodSeconds": 1, "failureThreshold": START_TRIES })),
        "livenessProbe":
            probe(json!({ "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3 })),
        "resources": resources(&config.resources),
        "securityContext": security_context(config.user),
        "volumeMounts": volumes::sidecar_mounts(),
    })
}

/// As pod security `restricted` and, without fixed ids, OpenShift's `restricted-v2` admit it.
fn security_context(user: AgentUser) -> Value {
    let mut context = json!({
        "runAsNonRoot": true,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    match user {
        AgentUser::Ids { user, group } => {
            context["runAsUser"] = user.into();
            context["runAsGroup"] = group.into();
        }
        AgentUser::Unset => {}
    }
    context
}

fn environment(config: &PodSettings, with: &Sidecar, cluster: &str) -> Vec<Value> {
    let mut all = vec![
        variable_from("POD_NAMESPACE", "metadata.namespace"),
        variable_of("LEASEHOLD_COORDINATOR", &with.coordinator),
        variable_of("LEASEHOLD_CLUSTER", &format!("$(POD_NAMESPACE)/{cluster}")),
        variable_from("LEASEHOLD_WORKER", "metadata.name"),
        // Upstream workers of a pipeline use this address; a WorkerCluster's worker needs none.
        variable_from("LEASEHOLD_WORKER_ADDRESS", "status.podIP"),
        variable_from("LEASEHOLD_GENERATION", "metadata.annotations['leasehold.dev/generation']"),
        variable_of("LEASEHOLD_STATE_DIR", volumes::STATE_PATH),
        variable_of("LEASEHOLD_SIDECAR", "true"),
        variable_of("LEASEHOLD_SHARE_DIR", volumes::BIN_PATH),
        variable_of("LEASEHOLD_TOKEN_FILE", volumes::TOKEN_FILE),
        variable_of("LEASEHOLD_TLS_CA", volumes::CA_FILE),
        variable_of("LEASEHOLD_TLS_SERVER_NAME", &with.server_name),
        variable_of("LEASEHOLD_HEALTH_LISTEN", health_listen(config)),
    ];
    let others = config.flags.iter().filter(|(flag, _)| *flag != "health-listen");
    // A kubelet expands $(NAME), and $$ to $: doubling each $ keeps the configured value.
    all.extend(others.map(|(flag, value)| variable_of(&variable(flag), &value.replace('$', "$$"))));
    all
}

fn resources(resources: &Resources) -> Value {
    let (storage_request, storage_limit) =
        (&resources.ephemeral_storage_request, &resources.ephemeral_storage_limit);
    let mut all = Map::new();
    for (kind, cpu, memory, storage) in [
        ("requests", &resources.cpu_request, &resources.memory_request, storage_request),
        ("limits", &resources.cpu_limit, &resources.memory_limit, storage_limit),
    ] {
        let given = [("cpu", cpu), ("memory", memory), ("ephemeral-storage", storage)];
        let given =
            given.into_iter().filter_map(|(name, quantity)| Some((name, quantity.as_ref()?)));
        let map: Map<_, _> =
            given.map(|(name, quantity)| (name.into(), quantity.as_str().into())).collect();
        if !map.is_empty() {
            all.insert(kind.into(), map.into());
        }
    }
    all.into()
}

fn health_listen(config: &PodSettings) -> &str {
    config.flags.get("health-listen").map_or(HEALTH_LISTEN, String::as_str)
}

/// The ports that the agent listens on: the worker's, and the kubelet's.
pub(crate) fn ports(config: &PodSettings) -> [u16; 2] {
    let listen = config.flags.get("listen").map_or(LISTEN, String::as_str);
    [listen, health_listen(config)].map(|address| listening_port(address).unwrap_or_default())
}
