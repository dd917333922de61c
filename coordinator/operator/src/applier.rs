//! Writes objects to the API server, for every reconciler: server-side apply, patches, creation
//! and deletion. It classifies the errors of calls. Each call is safe to repeat.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::api::{PartialObjectMeta, Preconditions};
use kube::core::Status;
use kube::core::response::StatusSummary;
use kube::{Client, Resource};
use leasehold_kube_api::names::FIELD_MANAGER;
use leasehold_platform_kube::api_call::{ApiError, CALL_TIMEOUT, call};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

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

impl From<ApiError> for ApplyError {
    fn from(error: ApiError) -> Self {
        let why = error.to_string();
        match error {
            _ if error.is_not_found() => Self::Gone(why),
            _ if error.is_conflict() => Self::Conflict(why),
            ApiError::Status { code: TOO_MANY_REQUESTS, .. } => Self::Retry(why),
            ApiError::Status { code: 400..500, .. } => Self::Refused(why),
            ApiError::Status { code: INTERNAL, .. } => Self::Internal(why),
            ApiError::Status { .. } | ApiError::Transport(_) | ApiError::Timeout(_) => {
                Self::Retry(why)
            }
        }
    }
}

/// Makes one call, with its error as reconcilers decide by it.
pub(crate) async fn answer<T>(
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApplyError> {
    Ok(call(CALL_TIMEOUT, request).await?)
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
            let (reason, message) = ("R".to_owned(), "m".to_owned());
            ApplyError::from(ApiError::Status { code, reason, message })
        };
        assert_eq!(classify(404), ApplyError::Gone("m (404 R)".into()));
        assert_eq!(classify(409), ApplyError::Conflict("m (409 R)".into()));
        for code in [400, 403, 422] {
            assert_eq!(classify(code), ApplyError::Refused(format!("m ({code} R)")));
        }
        assert_eq!(classify(500), ApplyError::Internal("m (500 R)".into()));
        for code in [429, 502, 503] {
            assert_eq!(classify(code), ApplyError::Retry(format!("m ({code} R)")));
        }
    }

    #[test]
    fn a_call_without_an_answer_is_retried() {
        for error in [ApiError::Transport("cut off".into()), ApiError::Timeout(CALL_TIMEOUT)] {
            let why = error.to_string();
            assert_eq!(ApplyError::from(error), ApplyError::Retry(why));
        }
    }
}
