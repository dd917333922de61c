//! The identity of a token, from the API server's review or from the token's own claims, and which
//! worker it may act as; pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use leasehold_driver::access::Denied;
use leasehold_types::WorkerKey;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::pods::{PodFacts, PodLookupError, PodName};

/// The prefix of service accounts' usernames.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// The extra fields of a review that name the pod of a token.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// How long after its grace period the API server still accepts the tokens of a pod that exists, in
/// seconds: the leeway by which Kubernetes validates all claims.
const DELETION_LEEWAY_SECS: i64 = 60;

/// The user of a token.
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

/// The identity in the API server's review of a token.
///
/// # Errors
/// If the API server rejects the token, or the token has another audience.
pub(super) fn identity_of(status: TokenReviewStatus, audience: &str) -> Result<Identity, String> {
    if status.authenticated != Some(true) {
        let error = status.error.filter(|error| !error.is_empty());
        let error = error.unwrap_or_else(|| "it is not valid".into());
        return Err(format!("the API server rejects the token: {error}"));
    }
    // An authenticator without audiences returns none: its tokens are valid everywhere.
    if !status.audiences.iter().flatten().any(|given| given == audience) {
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
    /// The identity of a token of `account` that is bound to `pod`, both in `namespace`, as the
    /// review of that token has it in the fields that decide. The review may have more `extra`
    /// ones, such as the id of the token.
    pub(super) fn of_pod(namespace: &str, account: ClaimedObject, pod: ClaimedObject) -> Self {
        let groups = [
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ];
        let extra = [(POD_NAME, pod.name), (POD_UID, pod.uid)];
        Self {
            username: format!("{SERVICE_ACCOUNT}{namespace}:{}", account.name),
            uid: Some(account.uid),
            groups: groups.into(),
            extra: extra.map(|(field, value)| (field.to_owned(), vec![value])).into(),
        }
    }

    /// The pod of this identity's token, if it may act as worker `key`.
    ///
    /// # Errors
    /// If the token has no pod, or belongs to another one.
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
                "the token belongs to pod {:?}, which cannot act as worker {:?}",
                bound.name, wanted.name
            )));
        }
        Ok(BoundPod { name: bound, uid: uid.to_owned() })
    }

    fn extra(&self, key: &str) -> Option<&str> {
        self.extra.get(key)?.first().map(String::as_str)
    }
}

/// Checks that the authenticated pod may act as worker `key`.
///
/// # Errors
/// If the pod does not exist, has finished, or belongs to another cluster.
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
            "an earlier pod {namespace}/{name} was deleted by force, and its agent may still run: \
             try again"
        )),
    })?;
    if facts.over {
        return Err(Denied::Forbidden(format!(
            "pod {namespace}/{name} has ended (Failed or Succeeded): only a running pod can be a \
             worker"
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

/// Whether the API server rejects the tokens of this pod: it still exists at `now_secs`, in seconds
/// since 1970, although its grace period ended a while before.
pub(super) fn outlives_deletion(pod: &PodFacts, now_secs: u64) -> bool {
    let now_secs = i64::try_from(now_secs).unwrap_or(i64::MAX);
    pod.deleted_at.is_some_and(|due| due.as_second() + DELETION_LEEWAY_SECS < now_secs)
}

/// What a token says of itself. Only a token that the API server has accepted, or that one of its
/// keys has signed, can be trusted in this.
#[derive(Debug, Deserialize)]
pub(super) struct TokenClaims {
    /// When it expires, in seconds since 1970.
    pub(super) exp: i64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<KubernetesClaims>,
}

/// The claim `kubernetes.io` of a service account's token.
#[derive(Debug, Deserialize)]
pub(super) struct KubernetesClaims {
    pub(super) namespace: String,
    pub(super) serviceaccount: Option<ClaimedObject>,
    /// The pod that the token is bound to.
    pub(super) pod: Option<ClaimedObject>,
    /// The Secret that the token is bound to; no agent's token is.
    pub(super) secret: Option<IgnoredAny>,
}

/// An object that a token names.
#[derive(Debug, Deserialize)]
pub(super) struct ClaimedObject {
    pub(super) name: String,
    pub(super) uid: String,
}

impl TokenClaims {
    /// The claims of a JSON Web Token with an expiry; `None` for any other token.
    pub(super) fn read(token: &str) -> Option<Self> {
        let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        serde_json::from_slice(&payload).ok()
    }

    /// The pod that it says it is bound to, if that is the pod of worker `key`.
    pub(super) fn pod_of(&self, key: &WorkerKey) -> Option<BoundPod> {
        let kubernetes = self.kubernetes.as_ref()?;
        let pod = kubernetes.pod.as_ref()?;
        let name = PodName { namespace: kubernetes.namespace.clone(), name: pod.name.clone() };
        (PodName::of(key).as_ref() == Some(&name)).then(|| BoundPod { name, uid: pod.uid.clone() })
    }
}
