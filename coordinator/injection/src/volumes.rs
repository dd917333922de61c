//! The volumes that the sidecar brings, and where they are mounted.

use serde_json::{Value, json};

use crate::sidecar::Sidecar;

/// Where the agent's journal is, in the sidecar.
pub(crate) const STATE_PATH: &str = "/var/lib/leasehold";
/// Where the agent's program is, in the sidecar and in the worker's container.
pub(crate) const BIN_PATH: &str = "/leasehold";
/// The program, for the worker's hook.
pub(crate) const PROGRAM: &str = "/leasehold/leasehold-agent";
/// The token that proves which pod this is.
pub(crate) const TOKEN_FILE: &str = "/var/run/secrets/leasehold.dev/token";
/// The certificate that the coordinators' are signed with.
pub(crate) const CA_FILE: &str = "/var/run/secrets/leasehold.dev/ca.crt";

const IDENTITY_PATH: &str = "/var/run/secrets/leasehold.dev";
/// The volumes' names, in the order in which they are added.
pub(crate) const NAMES: [&str; 3] = ["leasehold-state", "leasehold-identity", "leasehold-bin"];
/// Those that are on the node's disk. A successor of the pod needs nothing of them.
pub(crate) const LOCAL: [&str; 2] = [NAMES[0], NAMES[2]];
/// How long a token is good for, in seconds; the kubelet renews it long before. A coordinator has
/// the API server review each token that was issued for more than an hour.
pub const TOKEN_SECONDS: u64 = 3600;
/// The agent's program is some 10 MB; a debug build is several times that.
const BIN_SIZE_MAX: &str = "256Mi";

/// The volumes. The journal and the program live as long as the pod.
pub(crate) fn volumes(with: &Sidecar) -> [Value; 3] {
    let [state, identity, bin] = NAMES;
    [
        json!({ "name": state, "emptyDir": {} }),
        json!({ "name": identity, "projected": { "sources": [
            { "serviceAccountToken": {
                "audience": with.audience,
                "expirationSeconds": TOKEN_SECONDS,
                "path": "token",
            } },
            { "configMap": {
                "name": with.authority,
                "items": [{ "key": "ca.crt", "path": "ca.crt" }],
                // A pod starts without the coordinator; the kubelet brings the file later.
                "optional": true,
            } },
        ] } }),
        json!({ "name": bin, "emptyDir": { "sizeLimit": BIN_SIZE_MAX } }),
    ]
}

/// The sidecar's mounts.
pub(crate) fn sidecar_mounts() -> [Value; 3] {
    let [state, identity, bin] = NAMES;
    [
        json!({ "name": state, "mountPath": STATE_PATH }),
        json!({ "name": identity, "mountPath": IDENTITY_PATH, "readOnly": true }),
        json!({ "name": bin, "mountPath": BIN_PATH }),
    ]
}

/// The worker's mount.
pub(crate) fn worker_mount() -> Value {
    let [_, _, bin] = NAMES;
    json!({ "name": bin, "mountPath": BIN_PATH, "readOnly": true })
}
