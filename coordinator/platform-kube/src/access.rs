//! Decides access: agents authenticate by the tokens of their pods, people by their own tokens, and
//! the cluster's RBAC roles authorize them. A request without proof is denied.

mod identity;
#[cfg(test)]
mod identity_tests;
mod token_cache;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use leasehold_driver::access::{ACCESS_MAX, AccessRequest, Denied, Subject, Wants};
use leasehold_driver::clock;
use leasehold_kube_api::names::GROUP;
use leasehold_types::WorkerKey;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use self::identity::{Identity, check_pod, expiry_of, identity_of};
use self::token_cache::{CachedReview, TokenCache, TokenHash};
use super::pods::Pods;

/// How long the watch may take to show an authenticated pod.
const POD_WITHIN: Duration = Duration::from_secs(2);
/// The timeout of one call to the API server.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The most reviews in flight, which protects the API server from a flood of tokens.
const REQUESTS_MAX: usize = 32;
/// The most bytes of a token.
const TOKEN_BYTES_MAX: usize = 12 * 1024;
/// How long a review of a person's token is reused. It is short, since these tokens can be revoked.
const PERSON_FRESH_FOR: Duration = Duration::from_secs(30);
/// How long a review of an agent's token is reused. The agent's pod is checked each time.
const AGENT_FRESH_FOR: Duration = Duration::from_secs(300);

const CLUSTERS: &str = "workerclusters";
const SETS: &str = "streamsets";
const PIPELINES: &str = "pipelines";

/// Decides access.
#[derive(Clone)]
pub(crate) struct AccessReviewer(Arc<Shared>);

struct Shared {
    client: Client,
    audience: String,
    pods: Pods,
    token_cache: Mutex<TokenCache>,
    permits: Semaphore,
}

impl fmt::Debug for AccessReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessReviewer").field("audience", &self.0.audience).finish_non_exhaustive()
    }
}

impl AccessReviewer {
    /// A reviewer that accepts tokens for `audience`.
    pub(crate) fn new(client: Client, audience: String, pods: Pods) -> Self {
        let permits = Semaphore::new(REQUESTS_MAX);
        Self(Arc::new(Shared { client, audience, pods, token_cache: Mutex::default(), permits }))
    }

    /// Answers on the current runtime the requests that are sent to the returned channel.
    pub(crate) fn start(self) -> mpsc::Sender<AccessRequest> {
        let (requests, mut waiting) = mpsc::channel::<AccessRequest>(ACCESS_MAX);
        tokio::spawn(async move {
            while let Some(request) = waiting.recv().await {
                let reviewer = self.clone();
                tokio::spawn(async move { reviewer.answer(request).await });
            }
        });
        requests
    }

    async fn answer(&self, request: AccessRequest) {
        let AccessRequest { token, peer, wants, mut answer } = request;
        let decided = tokio::select! {
            decided = self.decide(token.as_deref(), &wants) => decided,
            () = answer.closed() => return,
        };
        match &decided {
            Ok(()) => {}
            Err(why @ (Denied::Unproven(_) | Denied::Forbidden(_))) => {
                tracing::info!(?peer, ?wants, %why, "access denied");
            }
            Err(why @ Denied::Unavailable(_)) => {
                tracing::warn!(?peer, ?wants, %why, "access cannot be decided");
            }
        }
        // The caller may have gone.
        let _ = answer.send(decided);
    }

    async fn decide(&self, token: Option<&str>, wants: &Wants) -> Result<(), Denied> {
        let Some(token) = token else {
            return Err(Denied::Unproven(format!(
                "no token: send \"authorization: Bearer TOKEN\", with a token for audience {:?}",
                self.0.audience
            )));
        };
        if token.len() > TOKEN_BYTES_MAX {
            let why = format!("the token is longer than {TOKEN_BYTES_MAX} bytes");
            return Err(Denied::Unproven(why));
        }
        match wants {
            Wants::Speak(key) => self.authorize_agent(token, key).await,
            Wants::Read(subject) => self.authorize_person(token, Verb::Read, subject).await,
            Wants::Change(subject) => self.authorize_person(token, Verb::Change, subject).await,
        }
    }

    async fn authorize_agent(&self, token: &str, key: &WorkerKey) -> Result<(), Denied> {
        let identity = self.identify(token, AGENT_FRESH_FOR).await?;
        let bound = identity.pod_for(key)?;
        let found = self.0.pods.await_uid(&bound.name, &bound.uid, POD_WITHIN).await;
        if found.is_err() && !self.0.pods.is_synced() {
            let why = "the coordinator has not listed all pods yet: try again".into();
            return Err(Denied::Unavailable(why));
        }
        check_pod(found.as_deref().map_err(|why| *why), &bound, key)
    }

    async fn authorize_person(
        &self,
        token: &str,
        verb: Verb,
        subject: &Subject,
    ) -> Result<(), Denied> {
        let identity = self.identify(token, PERSON_FRESH_FOR).await?;
        for attributes in verb.on(subject)? {
            self.authorize(&identity, attributes).await?;
        }
        Ok(())
    }

    /// The token's identity, from the cache or from the API server.
    async fn identify(&self, token: &str, fresh_for: Duration) -> Result<Identity, Denied> {
        let hash = TokenHash::of(token);
        let stale = match self.token_cache().get(&hash, fresh_for, clock::now()) {
            CachedReview::Accepted(identity) => return Ok(identity),
            CachedReview::Rejected(why) => return Err(Denied::Unproven(why)),
            CachedReview::Stale(identity) => Some(identity),
            CachedReview::Unknown => None,
        };
        let status = match self.review(token).await {
            Ok(status) => status,
            Err(why) => {
                return stale.ok_or_else(|| {
                    Denied::Unavailable(format!("cannot review the token, try again: {why}"))
                });
            }
        };
        let now = clock::now();
        match identity_of(status, &self.0.audience) {
            Ok(identity) => {
                let today = clock::time_of_day().as_secs();
                let end = expiry_of(token).map(|end| u64::try_from(end).unwrap_or(0));
                let left = end.map(|end| Duration::from_secs(end.saturating_sub(today)));
                let expires_at = left.map(|left| now + left);
                self.token_cache().accept(hash, identity.clone(), expires_at, now);
                Ok(identity)
            }
            Err(why) => {
                self.token_cache().reject(hash, why.clone(), now);
                Err(Denied::Unproven(why))
            }
        }
    }

    async fn review(&self, token: &str) -> Result<TokenReviewStatus, String> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![self.0.audience.clone()]),
                token: token.to_owned(),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.0.client.clone());
        let answer = self.call_api(api.create(&PostParams::default(), &review)).await?;
        answer.status.ok_or_else(|| "the API server's TokenReview has no status".into())
    }

    async fn authorize(
        &self,
        identity: &Identity,
        attributes: ResourceAttributes,
    ) -> Result<(), Denied> {
        let what = describe_permission(&attributes);
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(identity.username.clone()),
                uid: identity.uid.clone(),
                groups: Some(identity.groups.clone()),
                extra: Some(identity.extra.clone()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.0.client.clone());
        let answer = self.call_api(api.create(&PostParams::default(), &review)).await;
        let answer = answer.map_err(|why| {
            Denied::Unavailable(format!("cannot check the permission to {what}: {why}"))
        })?;
        match answer.status.is_some_and(|status| status.allowed) {
            true => Ok(()),
            false => Err(Denied::Forbidden(format!(
                "{} may not {what}: grant it by a Role or a ClusterRole",
                identity.username
            ))),
        }
    }

    async fn call_api<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, String> {
        let _permit = self.0.permits.acquire().await.expect("never closed");
        match timeout(ANSWER_WITHIN, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the API server did not answer within {ANSWER_WITHIN:?}")),
        }
    }

    fn token_cache(&self) -> MutexGuard<'_, TokenCache> {
        self.0.token_cache.lock().expect("the lock is not poisoned")
    }
}

/// The operation that a person asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Read,
    Change,
}

impl Verb {
    /// The permissions that a person needs for this operation on `subject`; all of them.
    fn on(self, subject: &Subject) -> Result<Vec<ResourceAttributes>, Denied> {
        let (resource, (namespace, name)) = match subject {
            Subject::All => {
                let everywhere = [CLUSTERS, SETS, PIPELINES].map(|it| self.attributes(it, None));
                return Ok(everywhere.into());
            }
            Subject::Cluster(cluster) => (CLUSTERS, cluster.parts()),
            // The set of a namespace's shares belongs to all pipelines of the namespace.
            Subject::Set(set) if set.is_shares() => (PIPELINES, (set.namespace(), "")),
            Subject::Set(set) => (SETS, set.parts()),
            Subject::Pipeline(pipeline) => (PIPELINES, pipeline.parts()),
        };
        let Some(namespace) = namespace else {
            return Err(Denied::Forbidden(format!(
                "{name:?} has no namespace: on Kubernetes a name is NAMESPACE/NAME"
            )));
        };
        Ok(vec![self.attributes(resource, Some((namespace, name)))])
    }

    fn attributes(self, resource: &str, object: Option<(&str, &str)>) -> ResourceAttributes {
        let (verb, subresource) = match self {
            Self::Read => ("get", None),
            Self::Change => ("create", Some("drain".to_owned())),
        };
        ResourceAttributes {
            group: Some(GROUP.into()),
            resource: Some(resource.into()),
            subresource,
            verb: Some(verb.into()),
            namespace: object.map(|(namespace, _)| namespace.to_owned()),
            name: object.map(|(_, name)| name.to_owned()).filter(|name| !name.is_empty()),
            ..ResourceAttributes::default()
        }
    }
}

/// The permission in the words of a role.
fn describe_permission(attributes: &ResourceAttributes) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let mut resource = text(&attributes.resource);
    if let Some(subresource) = &attributes.subresource {
        resource = format!("{resource}/{subresource}");
    }
    let what = format!("{} {resource}.{}", text(&attributes.verb), text(&attributes.group));
    match (&attributes.namespace, &attributes.name) {
        (Some(namespace), Some(name)) => format!("{what} {name:?} in namespace {namespace:?}"),
        _ => format!("{what} in all namespaces"),
    }
}
