//! Writes objects to the API server, for every reconciler: server-side apply, patches, creation
//! and deletion. It bounds the time of each call and classifies its errors. Each call is safe to
//! repeat.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::api::{PartialObjectMeta, Preconditions};
use kube::core::Status;
use kube::core::response::StatusSummary;
use kube::{Client, Resource};
use leasehold_kube_api::names::FIELD_MANAGER;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

/// How long the API server may take to answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
const TOO_MANY_REQUESTS: u16 = 429;
const INTERNAL: u16 = 500;

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApplyError {
    /// The object does not exist.
    Gone(String),
    /// The object has changed, has another UID, or exists already.
    Conflict(String),
    /// The API server rejects the request; a retry does not help.
    Refused(String),
    /// The API server has failed on the request: it may do so each time, as on an apply of a body
    /// that does not fit the kind, or only now.
    Internal(String),
    /// The API server cannot be reached, or asks for a retry.
    Retry(String),
}

impl From<kube::Error> for ApplyError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                NOT_FOUND => Self::Gone(status.message.clone()),
                CONFLICT => Self::Conflict(status.message.clone()),
                400..500 if status.code != TOO_MANY_REQUESTS => {
                    Self::Refused(status.message.clone())
                }
                INTERNAL => Self::Internal(status.message.clone()),
                _ => Self::Retry(status.message.clone()),
            },
            error => Self::Retry(error.to_string()),
        }
    }
}

/// Waits for an answer, or for several calls together, at most [`ANSWER_WITHIN`].
pub(crate) async fn answer<T, E>(calls: impl Future<Output = Result<T, E>>) -> Result<T, ApplyError>
where
    ApplyError: From<E>,
{
    match timeout(ANSWER_WITHIN, calls).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ApplyError::Retry(format!(
            "no answer from the API server within {ANSWER_WITHIN:?}: retrying"
        ))),
    }
}

/// Writes objects; cheap to clone.
#[derive(Clone)]
pub(crate) struct Applier {
    client: Client,
}

impl Applier {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// The objects of a kind in a namespace.
    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The objects of a kind that is known only at run time, in a namespace.
    pub(crate) fn dynamic_api(
        &self,
        namespace: &str,
        resource: &ApiResource,
    ) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// Reads an object.
    pub(crate) async fn get<K>(&self, api: &Api<K>, name: &str) -> Result<K, ApplyError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        answer(api.get(name)).await
    }

    /// Creates an object. If the name is taken, it returns [`ApplyError::Conflict`].
    pub(crate) async fn create<K>(&self, api: &Api<K>, object: &K) -> Result<K, ApplyError>
    where
        K: Clone + Debug + DeserializeOwned + Serialize,
    {
        let params = PostParams { field_manager: field_manager(), ..PostParams::default() };
        answer(api.create(&params, object)).await
    }

    /// Server-side apply. A UID or resource version in the body must match the object.
    pub(crate) async fn apply<K>(
        &self,
        api: &Api<K>,
        name: &str,
        body: &(impl Debug + Serialize),
    ) -> Result<K, ApplyError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        answer(api.patch(name, &apply_params(), &Patch::Apply(body))).await
    }

    /// Server-side apply of a status.
    pub(crate) async fn apply_status<K>(
        &self,
        api: &Api<K>,
        name: &str,
        body: &Value,
    ) -> Result<K, ApplyError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        answer(api.patch_status(name, &apply_params(), &Patch::Apply(body))).await
    }

    /// Merge patch, for fields that server-side apply cannot remove.
    pub(crate) async fn merge<K>(
        &self,
        api: &Api<K>,
        name: &str,
        body: &Value,
    ) -> Result<K, ApplyError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        answer(api.patch(name, &merge_params(), &Patch::Merge(body))).await
    }

    /// Merge patch of metadata.
    pub(crate) async fn merge_metadata<K>(
        &self,
        api: &Api<K>,
        name: &str,
        metadata: &Value,
    ) -> Result<PartialObjectMeta<K>, ApplyError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        let body = json!({ "metadata": metadata });
        answer(api.patch_metadata(name, &merge_params(), &Patch::Merge(body))).await
    }

    /// Deletes the object only if it has this UID.
    pub(crate) async fn delete<K>(
        &self,
        api: &Api<K>,
        name: &str,
        uid: &str,
    ) -> Result<(), ApplyError>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Default::default() };
        let params = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
        answer(api.delete(name, &params)).await.map(|_| ())
    }

    /// Evicts the pod only if it has this UID. A disruption budget that allows no eviction now is
    /// [`ApplyError::Retry`].
    pub(crate) async fn evict(
        &self,
        api: &Api<Pod>,
        name: &str,
        uid: &str,
    ) -> Result<(), ApplyError> {
        // `Api::evict` writes deleteOptions by another name, which the API server ignores.
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": name },
            "deleteOptions": { "preconditions": { "uid": uid } },
        });
        let params = PostParams::default();
        let status: Status =
            answer(api.create_subresource("eviction", name, &params, &eviction)).await?;
        match status.status {
            // Of a pod under two budgets, the API server reports the error in a response with 201.
            Some(StatusSummary::Failure) => Err(ApplyError::Retry(status.message)),
            Some(StatusSummary::Success) | None => Ok(()),
        }
    }
}

fn apply_params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

fn merge_params() -> PatchParams {
    PatchParams { field_manager: field_manager(), ..PatchParams::default() }
}

fn field_manager() -> Option<String> {
    Some(FIELD_MANAGER.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_errors_by_status_code() {
        let classify = |code: u16| {
            let status = kube::core::Status { code, message: "m".into(), ..Default::default() };
            ApplyError::from(kube::Error::Api(Box::new(status)))
        };
        assert_eq!(classify(404), ApplyError::Gone("m".into()));
        assert_eq!(classify(409), ApplyError::Conflict("m".into()));
        for code in [400, 403, 422] {
            assert_eq!(classify(code), ApplyError::Refused("m".into()));
        }
        assert_eq!(classify(500), ApplyError::Internal("m".into()));
        for code in [429, 502, 503] {
            assert_eq!(classify(code), ApplyError::Retry("m".into()));
        }
    }
}
