//! Who bears a token, as the API server says, and what follows from that; pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use leasehold_driver::access::Denied;
use leasehold_types::WorkerKey;
use serde::Deserialize;

use super::super::pods::{PodFacts, PodLookupError, PodName};

/// What the names of service accounts begin with.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// Where the API server says which pod a token is bound to.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// Who bears a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) username: String,
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BoundPod {
    pub(super) name: PodName,
    pub(super) uid: String,
}

/// What the API server makes of a token.
///
/// # Errors
/// What it says against it.
pub(super) fn identity_of(status: TokenReviewStatus, audience: &str) -> Result<Identity, String> {
    if status.authenticated != Some(true) {
        let error = status.error.filter(|error| !error.is_empty());
        let error = error.unwrap_or_else(|| "it is not valid".into());
        return Err(format!("the API server rejects the token: {error}"));
    }
    // An authenticator that knows no audiences names none: its tokens are good for everything.
    if !status.audiences.iter().flatten().any(|it| it == audience) {
        return Err(format!(
            "the token has no audience {audience:?}: request it for that audience"
        ));
    }
    let user = status.user.unwrap_or_default();
    Ok(Identity {
        username: user.username.unwrap_or_default(),
        uid: user.uid,
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    })
}

impl Identity {
    /// The pod for which this identity may speak as worker `key`, by its token.
    ///
    /// # Errors
    /// Why it may speak for none, or not for this one.
    pub(super) fn pod_for(&self, key: &WorkerKey) -> Result<BoundPod, Denied> {
        let account = self.username.strip_prefix(SERVICE_ACCOUNT);
        let Some((namespace, _)) = account.and_then(|account| account.split_once(':')) else {
            return Err(Denied::Forbidden(format!(
                "the token belongs to {:?}, not to a service account: an agent must use the \
                 projected token of its pod",
                self.username
            )));
        };
        let (Some(name), Some(uid)) = (self.extra(POD_NAME), self.extra(POD_UID)) else {
            return Err(Denied::Forbidden(format!(
                "the token of {} is not bound to a pod: project it into the pod \
                 (serviceAccountToken), or request it for the pod",
                self.username
            )));
        };
        let Some(wanted) = PodName::of(key) else {
            return Err(Denied::Forbidden(format!(
                "cluster {:?} has no namespace: on Kubernetes it is NAMESPACE/NAME, here {}",
                key.cluster.as_str(),
                format_args!("{namespace}/{}", key.cluster.as_str()),
            )));
        };
        let bound = PodName { namespace: namespace.to_owned(), name: name.to_owned() };
        if bound.namespace != wanted.namespace {
            return Err(Denied::Forbidden(format!(
                "the token belongs to namespace {:?}, the cluster to {:?}",
                bound.namespace, wanted.namespace
            )));
        }
        if bound != wanted {
            return Err(Denied::Forbidden(format!(
                "the token belongs to pod {:?}, which cannot speak for {:?}",
                bound.name, wanted.name
            )));
        }
        Ok(BoundPod { name: bound, uid: uid.to_owned() })
    }

    fn extra(&self, key: &str) -> Option<&str> {
        self.extra.get(key)?.first().map(String::as_str)
    }
}

/// Whether the pod that proved itself may speak as worker `key`.
///
/// # Errors
/// Why not.
pub(super) fn check_pod(
    found: Result<&PodFacts, PodLookupError>,
    bound: &BoundPod,
    key: &WorkerKey,
) -> Result<(), Denied> {
    let BoundPod { name: PodName { namespace, name }, uid } = bound;
    let (_, cluster) = key.cluster.parts();
    let facts = found.map_err(|why| match why {
        PodLookupError::NotFound => Denied::Forbidden(format!(
            "pod {namespace}/{name} is not known as a worker: it needs the label \
             leasehold.dev/cluster={cluster}, in a namespace that the coordinator watches"
        )),
        PodLookupError::Deleted => Denied::Forbidden(format!(
            "pod {namespace}/{name} was deleted, or has lost its label leasehold.dev/cluster"
        )),
        PodLookupError::UidMismatch => Denied::Forbidden(format!(
            "the token belongs to an earlier pod {namespace}/{name} (UID {uid}), which was deleted"
        )),
        PodLookupError::PredecessorMayRun => Denied::Unavailable(format!(
            "an earlier pod {namespace}/{name} was deleted by force, and its agent is not \
             silent yet: try again"
        )),
    })?;
    if facts.over {
        return Err(Denied::Forbidden(format!(
            "pod {namespace}/{name} has ended: it failed or succeeded, and holds nothing"
        )));
    }
    match &facts.cluster {
        Some(label) if *label == key.cluster => Ok(()),
        Some(label) => Err(Denied::Forbidden(format!(
            "pod {namespace}/{name} has the label leasehold.dev/cluster={}, and cannot be a worker \
             of {cluster}",
            label.parts().1
        ))),
        None => Err(Denied::Forbidden(format!(
            "pod {namespace}/{name} needs the label leasehold.dev/cluster={cluster}"
        ))),
    }
}

/// When a token ends by what it says of itself, in seconds since 1970; none where it says nothing.
/// Only valid for a token that the API server has accepted.
pub(super) fn expiry_of(token: &str) -> Option<i64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: i64,
    }
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Claims>(&payload).ok().map(|claims| claims.exp)
}
