//! Decides access: agents authenticate by the tokens of their pods, people by their own tokens, and
//! the cluster's RBAC roles authorize them. Replicas and autoscalers, which have no such token,
//! authenticate by their certificates. A request without proof is denied.
//!
//! **Invariant**: the API server reviews every token, but for an agent's that its keys have signed:
//! the pod of that one is looked up each time.

mod identity;
#[cfg(test)]
mod identity_tests;
mod issuer_keys;
mod key_set;
#[cfg(test)]
mod key_set_tests;
mod review_lanes;
mod rights;
mod shared_reviews;
mod token_cache;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use leasehold_driver::access::certificate::{AUTOSCALER, CertificateNames};
use leasehold_driver::access::{
    ACCESS_MAX, AccessRequest, Caller, Credentials, Denied, Permission, Subject,
};
use leasehold_driver::clock;
use leasehold_driver::log_limit::PeerLogLimit;
use leasehold_driver::metrics::TokenCheck;
use leasehold_driver::port::Handle;
use leasehold_types::{ClusterName, WorkerKey};
use tokio::sync::{mpsc, watch};

use self::identity::{BoundPod, Identity, TokenClaims, check_pod, identity_of, outlives_deletion};
use self::issuer_keys::IssuerKeys;
use self::review_lanes::{Lane, ReviewLanes};
use self::rights::{CLASSES, Verb, describe_permission};
use self::shared_reviews::{ReviewError, Reviewed, SharedReviews};
use self::token_cache::{CachedReview, TokenCache, TokenHash};
use super::desired::Objects;
use super::pods::{PodFacts, PodName, Pods};

/// How long the watch may take to show an authenticated pod.
const POD_WITHIN: Duration = Duration::from_secs(2);
/// The most bytes of a token.
const TOKEN_BYTES_MAX: usize = 12 * 1024;
/// How long a review of a person's token is reused. It is short, since these tokens can be revoked.
const PERSON_FRESH_FOR: Duration = Duration::from_secs(30);
/// How long a review of an agent's token is reused. The agent's pod is checked each time.
const AGENT_FRESH_FOR: Duration = Duration::from_secs(300);

/// Decides access.
#[derive(Clone)]
pub(crate) struct AccessReviewer(Arc<Shared>);

struct Shared {
    client: Client,
    audience: String,
    /// The name in the replicas' certificates.
    server_name: String,
    pods: Pods,
    /// The custom resources, which say whether workers are of a cluster or of a class.
    objects: watch::Receiver<Arc<Objects>>,
    keys: IssuerKeys,
    token_cache: Mutex<TokenCache>,
    reviews: SharedReviews,
    lanes: ReviewLanes,
    /// Who was denied and logged of late.
    logged: PeerLogLimit,
    /// The driver's handle, once it runs: counts are there.
    handle: watch::Receiver<Option<Handle>>,
}

impl fmt::Debug for AccessReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessReviewer").field("audience", &self.0.audience).finish_non_exhaustive()
    }
}

impl AccessReviewer {
    /// A reviewer that accepts tokens for `audience`, and replicas with certificates for
    /// `server_name`. It reads the API server's keys on the current runtime.
    pub(crate) fn new(
        client: Client,
        audience: String,
        server_name: String,
        pods: Pods,
        objects: watch::Receiver<Arc<Objects>>,
        handle: watch::Receiver<Option<Handle>>,
    ) -> Self {
        Self(Arc::new(Shared {
            keys: IssuerKeys::start(client.clone()),
            client,
            audience,
            server_name,
            pods,
            objects,
            token_cache: Mutex::default(),
            reviews: SharedReviews::default(),
            lanes: ReviewLanes::default(),
            logged: PeerLogLimit::default(),
            handle,
        }))
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
        let AccessRequest { shown, permission, mut answer } = request;
        let decided = tokio::select! {
            decided = self.decide(&shown, &permission) => decided,
            () = answer.closed() => return,
        };
        if let Err(why) = &decided {
            self.log_denial(shown.peer, &permission, why);
        }
        // The caller may have gone.
        let _ = answer.send(decided);
    }

    fn log_denial(&self, peer: Option<SocketAddr>, permission: &Permission, why: &Denied) {
        let is_logged = self.0.logged.allows(peer.map(|peer| peer.ip()));
        match why {
            _ if !is_logged => tracing::debug!(?peer, ?permission, %why, "no access"),
            Denied::Unauthenticated(_) | Denied::Forbidden(_) => {
                tracing::info!(?peer, ?permission, %why, "access denied");
            }
            Denied::Unavailable(_) => {
                tracing::warn!(?peer, ?permission, %why, "access cannot be decided");
            }
        }
    }

    async fn decide(&self, shown: &Credentials, permission: &Permission) -> Result<Caller, Denied> {
        let certificate = shown.certificate.as_deref();
        let identity = match permission {
            // Decided without the API server: standbys follow the leader while it is away.
            Permission::Follow => return self.authorize_replica(certificate),
            Permission::ActAsAgent(key) => self.agent(shown, permission, key).await?,
            Permission::Read(subject) => {
                let identity = self.identify(shown, permission, PERSON_FRESH_FOR).await?;
                self.authorize_person(&identity, Verb::Read, subject).await?;
                identity
            }
            Permission::Change(subject) => {
                let identity = self.identify(shown, permission, PERSON_FRESH_FOR).await?;
                self.authorize_person(&identity, Verb::Change, subject).await?;
                identity
            }
            Permission::Demand(class) => {
                if let Some(caller) = autoscaler(certificate, class) {
                    return Ok(caller);
                }
                if shown.token.is_none() {
                    return Err(no_autoscaler(certificate, class));
                }
                let identity = self.identify(shown, permission, PERSON_FRESH_FOR).await?;
                self.authorize_scaler(&identity, class).await?;
                identity
            }
        };
        Ok(Caller::User(identity.username))
    }

    /// The identity of worker `key`'s agent: the API server's keys or a review prove it, and its
    /// pod may act as the worker.
    async fn agent(
        &self,
        shown: &Credentials,
        permission: &Permission,
        key: &WorkerKey,
    ) -> Result<Identity, Denied> {
        if let Some(identity) = self.verify(shown, key) {
            let found = self.authorize_agent(&identity, key).await;
            let now_secs = clock::time_of_day().as_secs();
            let is_overdue = found.as_ref().is_ok_and(|pod| outlives_deletion(pod, now_secs));
            // The review rejects the token of such a pod. This clock may be wrong, and must not.
            if !is_overdue {
                self.count(permission, TokenCheck::Keys);
                return found.map(|_| identity);
            }
        }
        let identity = self.identify(shown, permission, AGENT_FRESH_FOR).await?;
        self.authorize_agent(&identity, key).await?;
        Ok(identity)
    }

    /// Checks that the pod of this identity may act as worker `key`, and returns the pod.
    async fn authorize_agent(
        &self,
        identity: &Identity,
        key: &WorkerKey,
    ) -> Result<Arc<PodFacts>, Denied> {
        let bound = identity.pod_for(key)?;
        let found = self.0.pods.await_uid(&bound.name, &bound.uid, POD_WITHIN).await;
        let namespace = &bound.name.namespace;
        if found.is_err() && !self.0.pods.is_listed(namespace) {
            let why = format!(
                "the coordinator has not listed the pods of namespace {namespace} yet: try again"
            );
            return Err(Denied::Unavailable(why));
        }
        check_pod(found.as_deref().map_err(|why| *why), &bound, key)?;
        Ok(found.expect("the check accepts no pod that was not found"))
    }

    fn authorize_replica(&self, shown: Option<&CertificateNames>) -> Result<Caller, Denied> {
        let wanted = &self.0.server_name;
        match shown {
            Some(names) if names.hosts.contains(wanted) => Ok(names.caller(wanted)),
            Some(names) => Err(Denied::Forbidden(format!(
                "the certificate is for {names}, and may not follow a replica: that needs one for \
                 DNS:{wanted}, as the replicas have"
            ))),
            None => Err(Denied::Unauthenticated(format!(
                "no client certificate: only a replica with a certificate for DNS:{wanted} may \
                 follow another one"
            ))),
        }
    }

    async fn authorize_scaler(
        &self,
        identity: &Identity,
        class: &ClusterName,
    ) -> Result<(), Denied> {
        let (namespace, name) = class.parts();
        let object = namespace.map(|namespace| (namespace, name));
        self.authorize(identity, Verb::Read.attributes(CLASSES, object)).await
    }

    async fn authorize_person(
        &self,
        identity: &Identity,
        verb: Verb,
        subject: &Subject,
    ) -> Result<(), Denied> {
        let is_class = match subject {
            Subject::Cluster(name) => self.0.objects.borrow().is_class(name),
            Subject::All | Subject::Set(_) | Subject::Pipeline(_) => false,
        };
        for attributes in verb.on(subject, is_class)? {
            self.authorize(identity, attributes).await?;
        }
        Ok(())
    }

    /// The token's identity: from the cache, or by a review.
    async fn identify(
        &self,
        shown: &Credentials,
        permission: &Permission,
        fresh_for: Duration,
    ) -> Result<Identity, Denied> {
        let token = self.token(shown)?;
        let hash = TokenHash::of(token);
        if let Some(cached) = self.cached(&hash, fresh_for) {
            self.count(permission, TokenCheck::Cache);
            return cached;
        }
        self.count(permission, TokenCheck::Review);
        let review = self.review_once(token, hash, shown.peer, permission, fresh_for);
        self.0.reviews.share(hash, review).await.map_err(|error| match error {
            ReviewError::Rejected(why) => Denied::Unauthenticated(why),
            ReviewError::Unavailable(why) => {
                Denied::Unavailable(format!("cannot review the token, try again: {why}"))
            }
        })
    }

    /// The token that a peer shows.
    fn token<'a>(&self, shown: &'a Credentials) -> Result<&'a str, Denied> {
        let Some(token) = shown.token.as_deref() else {
            return Err(Denied::Unauthenticated(format!(
                "no token: send \"authorization: Bearer TOKEN\", with a token for audience {:?}",
                self.0.audience
            )));
        };
        if token.len() > TOKEN_BYTES_MAX {
            let why = format!("the token is longer than {TOKEN_BYTES_MAX} bytes");
            return Err(Denied::Unauthenticated(why));
        }
        Ok(token)
    }

    /// The result of an earlier review of a token, if that is fresh.
    fn cached(&self, hash: &TokenHash, fresh_for: Duration) -> Option<Result<Identity, Denied>> {
        match self.token_cache().get(hash, fresh_for, clock::now()) {
            CachedReview::Accepted(identity) => Some(Ok(identity)),
            CachedReview::Rejected(why) => Some(Err(Denied::Unauthenticated(why))),
            CachedReview::Stale(_) | CachedReview::Unknown => None,
        }
    }

    /// The identity that the token of worker `key`'s agent proves by the API server's keys; `None`
    /// also for one with a fresh review. It is not cached: what is cached was reviewed, and may be
    /// used for people too.
    fn verify(&self, shown: &Credentials, key: &WorkerKey) -> Option<Identity> {
        let token = self.token(shown).ok()?;
        if self.cached(&TokenHash::of(token), AGENT_FRESH_FOR).is_some() {
            return None;
        }
        // No signature of a stranger is verified: that takes CPU, and anybody can ask for it.
        let pod = TokenClaims::read(token)?.pod_of(key)?;
        if !self.may_exist(&pod) {
            return None;
        }
        let peer = shown.peer.map(|peer| peer.ip());
        let verified = self.0.keys.verify(token, &self.0.audience, peer);
        verified.inspect_err(|why| tracing::debug!(%why, "an agent's token is reviewed")).ok()
    }

    /// Whether the pod that a token names may exist: the watch has it, or has not listed its
    /// namespace yet.
    fn may_exist(&self, pod: &BoundPod) -> bool {
        let PodName { namespace, name } = &pod.name;
        let found = self.0.pods.find(namespace, name);
        found.is_some_and(|facts| facts.uid == pod.uid) || !self.0.pods.is_listed(namespace)
    }

    /// Counts how an agent's token is checked.
    fn count(&self, permission: &Permission, check: TokenCheck) {
        if let (Permission::ActAsAgent(_), Some(handle)) = (permission, &*self.0.handle.borrow()) {
            handle.metrics.token_checked(check);
        }
    }

    /// Reviews a token and caches the outcome, unless another request has just done so.
    async fn review_once(
        &self,
        token: &str,
        hash: TokenHash,
        peer: Option<SocketAddr>,
        permission: &Permission,
        fresh_for: Duration,
    ) -> Reviewed {
        let stale = match self.token_cache().get(&hash, fresh_for, clock::now()) {
            CachedReview::Accepted(identity) => return Ok(identity),
            CachedReview::Rejected(why) => return Err(ReviewError::Rejected(why)),
            CachedReview::Stale(identity) => Some(identity),
            CachedReview::Unknown => None,
        };
        let claims = TokenClaims::read(token);
        let (lane, caller) = self.lane(claims.as_ref(), stale.as_ref(), peer, permission);
        let status = match self.review(token, lane, &caller).await {
            Ok(status) => status,
            Err(why) => return stale.ok_or(ReviewError::Unavailable(why)),
        };
        let now = clock::now();
        match identity_of(status, &self.0.audience) {
            Ok(identity) => {
                let today = clock::time_of_day().as_secs();
                let end = claims.map(|claims| u64::try_from(claims.exp).unwrap_or(0));
                let left = end.map(|end| Duration::from_secs(end.saturating_sub(today)));
                let expires_at = left.map(|left| now + left);
                self.token_cache().accept(hash, identity.clone(), expires_at, now);
                Ok(identity)
            }
            Err(why) => {
                self.token_cache().reject(hash, why.clone(), now);
                Err(ReviewError::Rejected(why))
            }
        }
    }

    /// Which lane the review of a token takes, and as whose.
    fn lane(
        &self,
        claims: Option<&TokenClaims>,
        accepted_before: Option<&Identity>,
        peer: Option<SocketAddr>,
        permission: &Permission,
    ) -> (Lane, String) {
        let user = accepted_before.map(|identity| identity.username.clone());
        match (permission, user) {
            (Permission::ActAsAgent(key), user) => {
                let pod = claims.and_then(|claims| claims.pod_of(key));
                if let Some(pod) = pod.filter(|pod| user.is_some() || self.may_exist(pod)) {
                    return (Lane::Agent, pod.uid);
                }
            }
            (_, Some(user)) => return (Lane::Person, person(user)),
            (_, None) => {}
        }
        (Lane::Stranger, peer.map(|peer| peer.ip().to_string()).unwrap_or_default())
    }

    async fn review(
        &self,
        token: &str,
        lane: Lane,
        caller: &str,
    ) -> Result<TokenReviewStatus, String> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![self.0.audience.clone()]),
                token: token.to_owned(),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.0.client.clone());
        let parameters = PostParams::default();
        let answer = self.0.lanes.call(lane, caller, api.create(&parameters, &review)).await?;
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
        let (parameters, person) = (PostParams::default(), person(identity.username.clone()));
        let call = api.create(&parameters, &review);
        let answer = self.0.lanes.call(Lane::Person, &person, call).await;
        let answer = answer.map_err(|why| {
            Denied::Unavailable(format!("cannot check the permission to {what}: {why}"))
        })?;
        if answer.status.is_some_and(|status| status.allowed) {
            Ok(())
        } else {
            Err(Denied::Forbidden(format!(
                "{} may not {what}: grant it by a Role or a ClusterRole",
                identity.username
            )))
        }
    }

    fn token_cache(&self) -> MutexGuard<'_, TokenCache> {
        self.0.token_cache.lock().expect("the lock is not poisoned")
    }
}

/// As whose a person's reviews are made: service accounts of one namespace share their places.
fn person(username: String) -> String {
    Caller::User(username).tenant().unwrap_or_default()
}

/// The names in a certificate of an autoscaler that may know the load of `class`.
fn autoscaler_names(class: &ClusterName) -> Vec<String> {
    let of_namespace = class.parts().0.map(|namespace| format!("{AUTOSCALER}/{namespace}"));
    [AUTOSCALER.to_owned()].into_iter().chain(of_namespace).collect()
}

/// The autoscaler with this certificate, if it may know the load of `class`.
fn autoscaler(shown: Option<&CertificateNames>, class: &ClusterName) -> Option<Caller> {
    let names = shown?;
    let wanted = autoscaler_names(class);
    wanted.iter().find(|wanted| names.uris.contains(wanted)).map(|name| names.caller(name))
}

fn no_autoscaler(shown: Option<&CertificateNames>, class: &ClusterName) -> Denied {
    let wanted = autoscaler_names(class).join(" or URI:");
    let needed = format!(
        "an autoscaler needs a client certificate for URI:{wanted}, or a token that may get the \
         WorkerClass"
    );
    match shown {
        Some(names) => Denied::Forbidden(format!("the certificate is for {names}: {needed}")),
        None => Denied::Unauthenticated(format!("no client certificate and no token: {needed}")),
    }
}
