//! The hand that writes one object: it makes what is missing, undoes what others have changed of
//! what is ours, and never touches an object of somebody else's, whatever its name.

use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use leasehold_kube_api::names::FIELD_MANAGER;
use leasehold_types::PipelineName;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::managed_kind::{ManagedKind, belongs_to, controller, owning_pipeline};
use super::managed_objects::{ManagedObject, ManagedObjects};
use crate::digest::digest;

/// How long the API server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// Why an object is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObjectError {
    /// An object of this name is there, and is not ours.
    NameTaken,
    /// The API server refuses it.
    Rejected(String),
    /// The API server does not answer, or it is to be tried again for another reason.
    Retry(String),
}

/// The way to the objects.
#[derive(Clone)]
pub(super) struct ObjectWriter {
    client: Client,
    managed_objects: ManagedObjects,
}

impl ObjectWriter {
    pub(super) fn new(client: Client, managed_objects: ManagedObjects) -> Self {
        Self { client, managed_objects }
    }

    /// The way to the API server.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Has the object as it is wanted, for the Pipeline with this UID; returns whether it had to be
    /// written.
    ///
    /// # Errors
    /// Why it is not so.
    pub(super) async fn ensure(
        &self,
        pipeline: &PipelineName,
        uid: &str,
        kind: ManagedKind,
        desired: &DynamicObject,
    ) -> Result<bool, ObjectError> {
        let known = self.managed_objects.find(pipeline, kind, &desired.name_any());
        let compared_fields = digest(&kind.compared_fields(desired));
        let is_up_to_date = |managed: &ManagedObject| {
            !managed.is_deleting
                && managed.belongs_to(uid)
                && managed.compared_fields == compared_fields
        };
        if known.as_ref().is_some_and(is_up_to_date) {
            return Ok(false);
        }
        let bring = async {
            let known = match known {
                Some(managed) => managed,
                None => match self.create(kind, desired).await? {
                    None => return Ok(()),
                    Some(there) if is_known_to(pipeline, &there) => {
                        ManagedObject::new(kind, &there)
                    }
                    Some(_) => return Err(CallError::Object(ObjectError::NameTaken)),
                },
            };
            self.update(pipeline, uid, kind, desired, &known).await
        };
        within(bring).await.map(|()| true)
    }

    /// Writes the status of an object that is there.
    pub(super) async fn write_status(
        &self,
        kind: ManagedKind,
        namespace: &str,
        name: &str,
        uid: &str,
        status: &Value,
    ) -> Result<(), ObjectError> {
        let resource = kind.resource();
        let body = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": { "name": name, "namespace": namespace, "uid": uid },
            "status": status,
        });
        within(async {
            let (api, params) = (self.api(kind, namespace), PatchParams::apply(FIELD_MANAGER));
            let shown = api.patch_status(name, &params.force(), &Patch::Apply(body)).await?;
            self.managed_objects.store_written(kind, &shown);
            Ok(())
        })
        .await
    }

    /// Deletes an object that is ours.
    pub(super) async fn remove(
        &self,
        pipeline: &PipelineName,
        kind: ManagedKind,
        name: &str,
        managed: &ManagedObject,
    ) -> Result<(), ObjectError> {
        if managed.is_deleting {
            return Ok(());
        }
        within(async { self.delete_now(pipeline, kind, name, managed).await }).await
    }

    /// Makes an object; returns what is there already under its name.
    async fn create(
        &self,
        kind: ManagedKind,
        desired: &DynamicObject,
    ) -> Result<Option<DynamicObject>, CallError> {
        let api = self.api(kind, &desired.namespace().unwrap_or_default());
        let field_manager = Some(FIELD_MANAGER.to_owned());
        let params = PostParams { field_manager, ..PostParams::default() };
        match api.create(&params, desired).await {
            Ok(managed_objects) => {
                self.managed_objects.store_written(kind, &managed_objects);
                Ok(None)
            }
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {
                Ok(Some(api.get(&desired.name_any()).await?))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Brings an object that is there to what is wanted, if it is ours.
    async fn update(
        &self,
        pipeline: &PipelineName,
        uid: &str,
        kind: ManagedKind,
        desired: &DynamicObject,
        known: &ManagedObject,
    ) -> Result<(), CallError> {
        let name = desired.name_any();
        if known.is_deleting {
            return Err(CallError::retry("the earlier one of its name is still going"));
        }
        if !known.belongs_to(uid) {
            // It was made for an earlier Pipeline of this name.
            self.delete_now(pipeline, kind, &name, known).await?;
            return Err(CallError::retry("the earlier one of its name is still going"));
        }
        if known.immutable_fields != kind.immutable_fields(desired) {
            self.delete_now(pipeline, kind, &name, known).await?;
            return match self.create(kind, desired).await? {
                None => Ok(()),
                Some(_) => Err(CallError::retry("the earlier one of its name is still going")),
            };
        }
        let api = self.api(kind, &desired.namespace().unwrap_or_default());
        let mut body = desired.clone();
        // It meets no other object of this name.
        body.metadata.uid = Some(known.uid.clone());
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let mut there = api.patch(&name, &params, &Patch::Apply(&body)).await?;
        if kind.compared_fields(&there) != kind.compared_fields(desired) {
            let mut removal_patch = kind.removal_patch(desired);
            removal_patch["metadata"]["uid"] = json!(known.uid);
            let field_manager = Some(FIELD_MANAGER.to_owned());
            let params = PatchParams { field_manager, ..PatchParams::default() };
            there = api.patch(&name, &params, &Patch::Merge(removal_patch)).await?;
        }
        self.managed_objects.store_written(kind, &there);
        match kind.compared_fields(&there) == kind.compared_fields(desired) {
            true => Ok(()),
            false => Err(CallError::retry("somebody else keeps changing it")),
        }
    }

    async fn delete_now(
        &self,
        pipeline: &PipelineName,
        kind: ManagedKind,
        name: &str,
        managed: &ManagedObject,
    ) -> Result<(), CallError> {
        let api = self.api(kind, pipeline.parts().0.unwrap_or_default());
        let this = Preconditions { uid: Some(managed.uid.clone()), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
        match api.delete(name, &params).await {
            Ok(_) => {}
            // It is gone, or another one has its name.
            Err(kube::Error::Api(status)) if matches!(status.code, NOT_FOUND | CONFLICT) => {}
            Err(error) => return Err(error.into()),
        }
        self.managed_objects.forget(pipeline, kind, name);
        Ok(())
    }

    fn api(&self, kind: ManagedKind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind.resource())
    }
}

/// Whether an object was made for a Pipeline of this name. One that has lost its label is known by
/// its controller.
fn is_known_to(pipeline: &PipelineName, object: &DynamicObject) -> bool {
    let metadata = &object.metadata;
    let is_controlled = controller(metadata).is_some();
    owning_pipeline(metadata).as_ref() == Some(pipeline)
        && (is_controlled || belongs_to(metadata, pipeline, ""))
}

/// Why a call did not do what it was to do.
pub(super) enum CallError {
    Object(ObjectError),
    Api(kube::Error),
}

impl CallError {
    fn retry(why: &str) -> Self {
        Self::Object(ObjectError::Retry(why.to_owned()))
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

pub(super) async fn within<T>(
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, ObjectError> {
    match timeout(ANSWER_WITHIN, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(CallError::Object(error))) => Err(error),
        Ok(Err(CallError::Api(error))) => Err(error.into()),
        Err(_) => Err(ObjectError::Retry(format!("no answer within {ANSWER_WITHIN:?}"))),
    }
}

impl From<kube::Error> for ObjectError {
    fn from(error: kube::Error) -> Self {
        match error {
            // What is seen next tells.
            kube::Error::Api(status) if matches!(status.code, NOT_FOUND | CONFLICT | 429) => {
                Self::Retry(status.message.clone())
            }
            kube::Error::Api(status) if (400..500).contains(&status.code) => {
                Self::Rejected(status.message.clone())
            }
            error => Self::Retry(error.to_string()),
        }
    }
}
