//! Writes one object of a pipeline: it creates a missing object, reverts other clients' changes of
//! our fields, and never touches another owner's object.

use kube::ResourceExt;
use kube::api::{Api, DynamicObject};
use leasehold_platform_kube::api_call::{ApiError, CALL_TIMEOUT, call_together};
use leasehold_types::PipelineName;
use serde_json::{Value, json};

use super::managed_kind::{ManagedKind, belongs_to, controller, owning_pipeline};
use super::managed_objects::{ManagedObject, ManagedObjects};
use crate::applier::{Applier, ApplyError};
use crate::digest::digest;

/// Why an object is not as desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObjectError {
    /// An object of this name belongs to another owner.
    NameTaken,
    /// The API server refuses it.
    Rejected(String),
    /// The API server has failed on it: each time, as where a webhook of others is down, or only
    /// now.
    Internal(String),
    /// It is retried: the API server is away, or the object is in a state that passes.
    Retry(String),
}

impl From<ApplyError> for ObjectError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Refused(why) => Self::Rejected(why),
            ApplyError::Internal(why) => Self::Internal(why),
            // The next watch event shows how the object is.
            ApplyError::Gone(why) | ApplyError::Conflict(why) | ApplyError::Retry(why) => {
                Self::Retry(why)
            }
        }
    }
}

impl From<ApiError> for ObjectError {
    fn from(error: ApiError) -> Self {
        ApplyError::from(error).into()
    }
}

impl ObjectError {
    fn retry(why: &str) -> Self {
        Self::Retry(why.to_owned())
    }
}

/// Names an object of a pipeline; without a kind it is the Pipeline itself.
pub(super) type ObjectId = (Option<ManagedKind>, String);

/// Writes the objects of pipelines; cheap to clone.
#[derive(Clone)]
pub(super) struct ObjectWriter {
    applier: Applier,
    managed_objects: ManagedObjects,
}

impl ObjectWriter {
    pub(super) fn new(applier: Applier, managed_objects: ManagedObjects) -> Self {
        Self { applier, managed_objects }
    }

    /// Writes other objects.
    pub(super) fn applier(&self) -> &Applier {
        &self.applier
    }

    /// Makes the object as desired, for the Pipeline with this UID; returns whether it was written.
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
                    Some(there) => ManagedObject::new(kind, &there)
                        .filter(|_| is_known_to(pipeline, &there))
                        .ok_or(ObjectError::NameTaken)?,
                },
            };
            self.update(pipeline, uid, kind, desired, &known).await
        };
        call_together(CALL_TIMEOUT, bring).await.map(|()| true)
    }

    /// Writes the status of an existing object.
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
        call_together(CALL_TIMEOUT, async {
            let api = self.api(kind, namespace);
            let shown = self.applier.apply_status(&api, name, &body).await?;
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
        call_together(CALL_TIMEOUT, self.delete(pipeline, kind, name, managed)).await
    }

    /// Creates an object; returns the one that already has its name.
    async fn create(
        &self,
        kind: ManagedKind,
        desired: &DynamicObject,
    ) -> Result<Option<DynamicObject>, ObjectError> {
        let api = self.api(kind, &desired.namespace().unwrap_or_default());
        match self.applier.create(&api, desired).await {
            Ok(created) => {
                self.managed_objects.store_written(kind, &created);
                Ok(None)
            }
            Err(ApplyError::Conflict(_)) => {
                Ok(Some(self.applier.get(&api, &desired.name_any()).await?))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Updates an existing object, if it is ours.
    async fn update(
        &self,
        pipeline: &PipelineName,
        uid: &str,
        kind: ManagedKind,
        desired: &DynamicObject,
        known: &ManagedObject,
    ) -> Result<(), ObjectError> {
        let name = desired.name_any();
        if known.is_deleting {
            return Err(ObjectError::retry(
                "an earlier object of this name is still being deleted",
            ));
        }
        if !known.belongs_to(uid) {
            // It belongs to an earlier Pipeline of this name.
            self.delete(pipeline, kind, &name, known).await?;
            return Err(ObjectError::retry(
                "an earlier object of this name is still being deleted",
            ));
        }
        if known.immutable_fields != kind.immutable_fields(desired) {
            self.delete(pipeline, kind, &name, known).await?;
            return match self.create(kind, desired).await? {
                None => Ok(()),
                Some(_) => {
                    Err(ObjectError::retry("an earlier object of this name is still being deleted"))
                }
            };
        }
        let api = self.api(kind, &desired.namespace().unwrap_or_default());
        let mut body = desired.clone();
        // The UID keeps the patch from any other object of this name.
        body.metadata.uid = Some(known.uid.clone());
        let mut removal_patch = kind.removal_patch(desired);
        removal_patch["metadata"]["uid"] = json!(known.uid);
        let mut there = match self.applier.apply(&api, &name, &body).await {
            // An apply leaves what was there when the object was created, which may exclude what is
            // desired: a Service has no two ports of one name.
            Err(ApplyError::Refused(_)) => self.applier.merge(&api, &name, &removal_patch).await?,
            applied => applied?,
        };
        if kind.compared_fields(&there) != kind.compared_fields(desired) {
            there = self.applier.merge(&api, &name, &removal_patch).await?;
        }
        self.managed_objects.store_written(kind, &there);
        if kind.compared_fields(&there) == kind.compared_fields(desired) {
            Ok(())
        } else {
            Err(ObjectError::retry("another client keeps changing it"))
        }
    }

    async fn delete(
        &self,
        pipeline: &PipelineName,
        kind: ManagedKind,
        name: &str,
        managed: &ManagedObject,
    ) -> Result<(), ObjectError> {
        let api = self.api(kind, pipeline.parts().0.unwrap_or_default());
        match self.applier.delete(&api, name, &managed.uid).await {
            // It is gone, or another one has its name.
            Ok(()) | Err(ApplyError::Gone(_) | ApplyError::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
        self.managed_objects.forget(pipeline, kind, name);
        Ok(())
    }

    fn api(&self, kind: ManagedKind, namespace: &str) -> Api<DynamicObject> {
        self.applier.dynamic_api(namespace, &kind.resource())
    }
}

/// Whether an object belongs to a Pipeline of this name. One that has lost its label is recognized
/// by its controller.
fn is_known_to(pipeline: &PipelineName, object: &DynamicObject) -> bool {
    let metadata = &object.metadata;
    let is_controlled = controller(metadata).is_some();
    owning_pipeline(metadata).as_ref() == Some(pipeline)
        && (is_controlled || belongs_to(metadata, pipeline, ""))
}
