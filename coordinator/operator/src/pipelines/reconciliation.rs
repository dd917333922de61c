//! One reconciliation of a pipeline, binding by binding, in the order in which others may rely on
//! it: the Service, its EndpointSlices, the PipelineBinding, and last the Pipeline's status. A
//! failure with one object does not stop the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::DynamicObject;
use leasehold_coordinator_core::view::{PipelinePhase, PipelineView};
use leasehold_driver::clock;
use leasehold_kube_api::resources::Pipeline;
use leasehold_kube_api::status::{PipelineBindingStatus, PipelineStatus};
use leasehold_manifest::manifest::API_VERSION;
use leasehold_platform_kube::desired::CachedObject;
use leasehold_platform_kube::pods::{PodFacts, PodName, version};
use leasehold_types::PipelineName;
use serde_json::json;

use super::desired::{self, CacheLookup, DesiredBinding, Lookup};
use super::events::{self, PipelineEvents};

use super::managed_kind::ManagedKind;
use super::managed_objects::ManagedObjects;
use super::object_writer::{ObjectError, ObjectId, ObjectWriter};
use super::state::{PipelineState, WrittenStatus};
use super::status::{self, PipelineFacts};
use crate::conditions::ConditionReason;
use crate::workqueue::REPEATED;

/// Bindings of one pipeline that are written at a time.
const CONCURRENT_BINDINGS_MAX: usize = 4;

/// What reconciliations share; cheap to clone.
#[derive(Clone)]
pub(super) struct Tools {
    pub(super) object_writer: ObjectWriter,
    pub(super) managed_objects: ManagedObjects,
    pub(super) events: PipelineEvents,
}

/// One reconciliation.
pub(super) struct Reconciliation {
    pub(super) tools: Tools,
    /// Looks up ports, pods and zones.
    pub(super) lookup: CacheLookup,
    pub(super) name: PipelineName,
    /// The object; none if it is deleted or being deleted.
    pub(super) object: Option<CachedObject<Pipeline>>,
    /// The core's view; `None` if it does not know the pipeline.
    pub(super) view: Option<PipelineView>,
    /// Why its objects cannot be managed: then only its status is written.
    pub(super) forbidden: Option<ConditionReason>,
    /// The phases that it has gone through since its status was written.
    pub(super) phases: Vec<PipelinePhase>,
    pub(super) state: PipelineState,
}

/// The result for an object; whether it was written.
type ObjectResult = (ObjectId, Result<bool, ObjectError>);

impl Reconciliation {
    /// Reconciles; returns what to remember.
    pub(super) async fn run(mut self) -> (PipelineName, PipelineState) {
        let start = clock::now();
        let object = self.object.clone();
        let uid = object.as_ref().and_then(|seen| seen.object.uid()).unwrap_or_default();
        let desired = match (&object, &self.view) {
            (Some(seen), Some(view)) if self.forbidden.is_none() => {
                desired::desired(&seen.object, view, &self.lookup)
            }
            (Some(_) | None, _) => Vec::new(),
        };
        self.state.pods = self.pods();
        let this = &self;
        let bindings = desired.iter().map(|binding| this.binding(binding, &uid));
        let bindings = stream::iter(bindings.collect::<Vec<_>>());
        let mut results: Vec<ObjectResult> = Vec::new();
        let mut bindings = bindings.buffer_unordered(CONCURRENT_BINDINGS_MAX);
        while let Some(some) = bindings.next().await {
            results.extend(some);
        }
        drop(bindings);
        self.record_results(results);
        let bindings_with_taken_name = self.bindings_with_taken_name(&desired);
        let swept = self.delete_unwanted(&desired, &bindings_with_taken_name).await;
        self.record_results(swept);
        if let Some(seen) = &object {
            let results = self.write_status(seen, &uid, &desired).await;
            self.record_results(results);
        }
        let own = |(kind, name): &ObjectId| match kind {
            None => object.is_some(),
            Some(kind) => {
                self.tools.managed_objects.find(&self.name, *kind, name).is_some()
                    || is_wanted(&desired, *kind, name)
            }
        };
        // A failure whose retry was due and did not happen belongs to an object that is no longer
        // desired.
        self.state.failures.retain(|object, retry_at| retry_at > start && own(object));
        (self.name, self.state)
    }

    /// The pods that the pipeline's endpoints rest on.
    fn pods(&self) -> BTreeMap<PodName, Option<Arc<PodFacts>>> {
        let namespace = self.name.parts().0.unwrap_or_default();
        let names = self.view.as_ref().map(desired::pods).unwrap_or_default();
        let pod = |name: String| {
            let pod = self.lookup.pod(&name);
            (PodName { namespace: namespace.to_owned(), name }, pod)
        };
        names.into_iter().map(pod).collect()
    }

    /// Writes the objects of one binding.
    async fn binding(&self, desired: &DesiredBinding, uid: &str) -> Vec<ObjectResult> {
        let mut results = Vec::new();
        let service = self.ensure(ManagedKind::Service, &desired.service, uid, &mut results).await;
        let mut error =
            service.as_ref().and_then(|error| self.why(ManagedKind::Service, &desired.name, error));
        // EndpointSlices under another owner's Service would route its traffic to our pods.
        if service != Some(ObjectError::NameTaken) {
            for slice in &desired.slices {
                let kept = self.ensure(ManagedKind::EndpointSlice, slice, uid, &mut results).await;
                let why = kept.and_then(|error| {
                    self.why(ManagedKind::EndpointSlice, &slice.name_any(), &error)
                });
                error = error.or(why);
            }
        }
        if self.ensure(ManagedKind::Binding, &desired.binding, uid, &mut results).await.is_none() {
            let shown = self.write_binding_status(desired, error.as_ref()).await;
            if let Some(Err(error)) = shown {
                // A binding whose status cannot be written counts as failed.
                results.retain(|((kind, _), _)| *kind != Some(ManagedKind::Binding));
                results.push(((Some(ManagedKind::Binding), desired.name.clone()), Err(error)));
            } else if shown.is_some() {
                results.push(((Some(ManagedKind::Binding), desired.name.clone()), Ok(true)));
            }
        }
        results
    }

    /// The reason of a condition for an object that cannot be written.
    fn why(&self, kind: ManagedKind, name: &str, error: &ObjectError) -> Option<ConditionReason> {
        let times = self.state.failures.times(&(Some(kind), name.to_owned()));
        events::why(kind, name, error, times)
    }

    /// The bindings whose Service belongs to another owner.
    fn bindings_with_taken_name<'a>(&self, desired: &'a [DesiredBinding]) -> BTreeSet<&'a str> {
        let is_taken = |binding: &&DesiredBinding| {
            let service = (Some(ManagedKind::Service), binding.name.clone());
            self.state.failures.error(&service) == Some(&ObjectError::NameTaken)
        };
        desired.iter().filter(is_taken).map(|binding| binding.name.as_str()).collect()
    }

    /// Writes an object if it differs and is due; returns the error that keeps it from being as
    /// desired.
    async fn ensure(
        &self,
        kind: ManagedKind,
        desired: &DynamicObject,
        uid: &str,
        results: &mut Vec<ObjectResult>,
    ) -> Option<ObjectError> {
        let object = (Some(kind), desired.name_any());
        if !self.state.failures.is_due(&object, clock::now()) {
            return self.state.failures.error(&object).cloned();
        }
        let result = self.tools.object_writer.ensure(&self.name, uid, kind, desired).await;
        let error = result.as_ref().err().cloned();
        results.push((object, result));
        error
    }

    /// Writes a binding's status, where it is another.
    async fn write_binding_status(
        &self,
        desired: &DesiredBinding,
        error: Option<&ConditionReason>,
    ) -> Option<Result<bool, ObjectError>> {
        let managed =
            self.tools.managed_objects.find(&self.name, ManagedKind::Binding, &desired.name)?;
        let before = managed.status.as_deref().cloned().unwrap_or_default();
        let now = Timestamp::now();
        let wants: PipelineBindingStatus =
            status::of_binding(&desired.view, managed.generation, error, &before, now);
        if wants == before {
            return None;
        }
        let namespace = self.name.parts().0.unwrap_or_default();
        let (object_writer, wants) = (&self.tools.object_writer, json!(wants));
        let shown = object_writer
            .write_status(ManagedKind::Binding, namespace, &desired.name, &managed.uid, &wants)
            .await;
        Some(shown.map(|()| true))
    }

    /// Deletes objects that are not desired.
    async fn delete_unwanted(
        &self,
        desired: &[DesiredBinding],
        bindings_with_taken_name: &BTreeSet<&str>,
    ) -> Vec<ObjectResult> {
        let mut results = Vec::new();
        if self.forbidden.is_some() {
            return results;
        }
        for ((kind, name), managed) in self.tools.managed_objects.all(&self.name) {
            let object = (Some(kind), name.clone());
            let of_taken = kind == ManagedKind::EndpointSlice
                && bindings_with_taken_name.iter().any(|service| {
                    name.strip_prefix(service).is_some_and(|rest| rest.starts_with("-ipv"))
                });
            let is_wanted = is_wanted(desired, kind, &name) && !of_taken;
            if is_wanted
                || managed.is_deleting
                || !self.state.failures.is_due(&object, clock::now())
            {
                continue;
            }
            let removed = self.tools.object_writer.remove(&self.name, kind, &name, &managed).await;
            results.push((object, removed.map(|()| true)));
        }
        results
    }

    /// Remembers the results and records events of new errors.
    fn record_results(&mut self, results: Vec<ObjectResult>) {
        let now = clock::now();
        for ((kind, name), result) in results {
            self.state.wrote |= matches!(result, Ok(true));
            let object = (kind, name.clone());
            let Err(error) = result else {
                self.state.failures.succeeded(&object);
                continue;
            };
            let is_new = self.state.failures.failed(object.clone(), error.clone(), now);
            let pipeline = &self.name;
            if is_new {
                tracing::warn!(%pipeline, ?kind, name, ?error, "cannot write the object: retrying");
            }
            let is_told = match error {
                ObjectError::Internal(_) => self.state.failures.times(&object) == REPEATED,
                ObjectError::NameTaken | ObjectError::Rejected(_) | ObjectError::Retry(_) => is_new,
            };
            if !is_told {
                continue;
            }
            let why = kind.and_then(|kind| self.why(kind, &name, &error));
            let (Some(why), Some(seen)) = (why, &self.object) else { continue };
            let binding = self.tools.managed_objects.find(&self.name, ManagedKind::Binding, &name);
            let binding = binding
                .map(|managed| events::binding(seen.object.namespace(), &name, &managed.uid));
            self.tools.events.object_error(
                &seen.object,
                binding,
                &why,
                error == ObjectError::NameTaken,
            );
        }
    }

    /// Writes the pipeline's status: each phase that it went through, and the present one.
    async fn write_status(
        &mut self,
        seen: &CachedObject<Pipeline>,
        uid: &str,
        desired: &[DesiredBinding],
    ) -> Vec<ObjectResult> {
        let object: ObjectId = (None, self.name.parts().1.to_owned());
        if !self.state.failures.is_due(&object, clock::now()) {
            return Vec::new();
        }
        let problem = seen.problem();
        let is_newest = seen.object.metadata.generation == Some(seen.generation);
        let mut facts = PipelineFacts {
            generation: seen.object.metadata.generation,
            in_force: (problem.is_none() || !is_newest).then_some(seen.generation),
            problem,
            view: self.view.clone(),
            blocked: self.blocked(desired),
        };
        let mut before = self.state.status(&seen.object);
        let last = self.view.as_ref().map(|view| view.phase);
        let mut results = Vec::new();
        for phase in self.phases.iter().copied().map(Some).chain([last]) {
            if let (Some(view), Some(phase)) = (&mut facts.view, phase) {
                if Some(phase) != last {
                    // The reason of a past phase is not known.
                    (view.phase, view.reason, view.waits) = (phase, String::new(), Vec::new());
                } else if let Some(is) = &self.view {
                    view.clone_from(is);
                }
            }
            let wants = status::of_pipeline(&facts, &before, Timestamp::now());
            if wants == before {
                continue;
            }
            let written = self.write(&seen.object, uid, &wants).await;
            match written {
                Ok(shown) => {
                    before = shown.status.clone();
                    self.state.written = Some(shown);
                    results.push((object.clone(), Ok(true)));
                }
                Err(error) => {
                    results.push((object.clone(), Err(error)));
                    return results;
                }
            }
        }
        results
    }

    /// The error of an object of the pipeline, as a condition's reason.
    fn blocked(&self, desired: &[DesiredBinding]) -> Option<ConditionReason> {
        if self.forbidden.is_some() {
            return self.forbidden.clone();
        }
        let objects = desired.iter().flat_map(|binding| {
            let slices =
                binding.slices.iter().map(|slice| (ManagedKind::EndpointSlice, slice.name_any()));
            let own = [
                (ManagedKind::Service, binding.name.clone()),
                (ManagedKind::Binding, binding.name.clone()),
            ];
            own.into_iter().chain(slices)
        });
        objects.into_iter().find_map(|(kind, name)| {
            let error = self.state.failures.error(&(Some(kind), name.clone()))?;
            self.why(kind, &name, error)
        })
    }

    async fn write(
        &self,
        object: &Arc<Pipeline>,
        uid: &str,
        status: &PipelineStatus,
    ) -> Result<WrittenStatus, ObjectError> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let applier = self.tools.object_writer.applier();
        let api = applier.api::<Pipeline>(&namespace);
        let body = json!({
            "apiVersion": API_VERSION,
            "kind": Pipeline::KIND,
            "metadata": { "name": name, "namespace": namespace, "uid": uid },
            "status": status,
        });
        let written = applier.apply_status(&api, &name, &body).await?;
        Ok(WrittenStatus {
            uid: uid.to_owned(),
            version: version(written.metadata.resource_version.as_deref()),
            status: written.status.unwrap_or_default(),
        })
    }
}

fn is_wanted(desired: &[DesiredBinding], kind: ManagedKind, name: &str) -> bool {
    desired.iter().any(|binding| match kind {
        ManagedKind::Service | ManagedKind::Binding => binding.name == name,
        ManagedKind::EndpointSlice => binding.slices.iter().any(|slice| slice.name_any() == name),
    })
}
