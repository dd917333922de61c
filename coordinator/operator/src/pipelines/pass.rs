//! One pass over a pipeline: what it is to have is brought about, binding by binding, in the order
//! in which others may rely on it: the Service, its addresses, the binding, and at last the
//! pipeline's own status. What goes wrong with one object keeps the pass from no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use leasehold_coordinator_core::view::{PipelinePhase, PipelineView};
use leasehold_driver::clock;
use leasehold_kube_api::names::FIELD_MANAGER;
use leasehold_kube_api::resources::Pipeline;
use leasehold_kube_api::status::{PipelineBindingStatus, PipelineStatus};
use leasehold_manifest::manifest::API_VERSION;
use leasehold_platform_kube::desired::CachedObject;
use leasehold_platform_kube::pods::{PodFacts, PodName, version};
use leasehold_types::PipelineName;
use serde_json::json;

use super::hand::{Hand, Trouble, within};
use super::kinds::Kind;
use super::made::Made;
use super::page::{Page, Shown};
use super::places::Scene;
use super::setbacks::Object;
use super::status::{self, PipelineFacts};
use super::tell::{self, Tell};
use super::wanted::{self, Places, WantedBinding};
use crate::conditions::Why;

/// Bindings of one pipeline that are written at a time.
const BINDINGS_AT_ONCE: usize = 4;

/// What passes work with; cheap to clone.
#[derive(Clone)]
pub(super) struct Tools {
    pub(super) hand: Hand,
    pub(super) made: Made,
    pub(super) tell: Tell,
}

/// A pass.
pub(super) struct Pass {
    pub(super) tools: Tools,
    /// Where things are looked up.
    pub(super) scene: Scene,
    pub(super) name: PipelineName,
    /// The object; none where it is gone, or going.
    pub(super) object: Option<CachedObject<Pipeline>>,
    /// What the core says; none where it does not know the pipeline.
    pub(super) view: Option<PipelineView>,
    /// The states that it has gone through since it was shown.
    pub(super) steps: Vec<PipelinePhase>,
    pub(super) page: Page,
}

/// What became of an object; whether it was written where that is well.
type Came = (Object, Result<bool, Trouble>);

impl Pass {
    /// Does it; returns what is to be remembered of it.
    pub(super) async fn run(mut self) -> (PipelineName, Page) {
        let start = clock::now();
        let object = self.object.clone();
        let uid = object.as_ref().and_then(|seen| seen.object.uid()).unwrap_or_default();
        let wanted = match (&object, &self.view) {
            (Some(seen), Some(view)) => wanted::wanted(&seen.object, view, &self.scene),
            (Some(_) | None, _) => Vec::new(),
        };
        self.page.pods = self.pods();
        let this = &self;
        let bindings = wanted.iter().map(|it| this.binding(it, &uid));
        let bindings = stream::iter(bindings.collect::<Vec<_>>());
        let mut came: Vec<Came> = Vec::new();
        let mut bindings = bindings.buffer_unordered(BINDINGS_AT_ONCE);
        while let Some(some) = bindings.next().await {
            came.extend(some);
        }
        drop(bindings);
        self.note(came);
        let taken = self.taken(&wanted);
        let swept = self.sweep(&wanted, &taken).await;
        self.note(swept);
        if let Some(seen) = &object {
            let came = self.show(seen, &uid, &wanted).await;
            self.note(came);
        }
        let own = |(kind, name): &Object| match kind {
            None => object.is_some(),
            Some(kind) => {
                self.tools.made.find(&self.name, *kind, name).is_some()
                    || is_wanted(&wanted, *kind, name)
            }
        };
        self.page.setbacks.retain(start, own);
        (self.name, self.page)
    }

    /// The pods that the pipeline's endpoints rest on.
    fn pods(&self) -> BTreeMap<PodName, Option<Arc<PodFacts>>> {
        let namespace = self.name.parts().0.unwrap_or_default();
        let names = self.view.as_ref().map(wanted::pods).unwrap_or_default();
        let pod = |name: String| {
            let pod = self.scene.pod(&name);
            (PodName { namespace: namespace.to_owned(), name }, pod)
        };
        names.into_iter().map(pod).collect()
    }

    /// Brings about what one binding is to have.
    async fn binding(&self, it: &WantedBinding, uid: &str) -> Vec<Came> {
        let mut came = Vec::new();
        let service = self.keep(Kind::Service, &it.service, uid, &mut came).await;
        let mut trouble =
            service.as_ref().and_then(|it_is| tell::why(Kind::Service, &it.name, it_is));
        // Addresses under a Service of somebody else's would become that one's.
        if service != Some(Trouble::Taken) {
            for slice in &it.slices {
                let kept = self.keep(Kind::EndpointSlice, slice, uid, &mut came).await;
                let why =
                    kept.and_then(|it| tell::why(Kind::EndpointSlice, &slice.name_any(), &it));
                trouble = trouble.or(why);
            }
        }
        if self.keep(Kind::Binding, &it.binding, uid, &mut came).await.is_none() {
            let shown = self.show_binding(it, trouble.as_ref()).await;
            if let Some(Err(trouble)) = shown {
                // Of a binding whose status cannot be written nothing has come.
                came.retain(|((kind, _), _)| *kind != Some(Kind::Binding));
                came.push(((Some(Kind::Binding), it.name.clone()), Err(trouble)));
            } else if shown.is_some() {
                came.push(((Some(Kind::Binding), it.name.clone()), Ok(true)));
            }
        }
        came
    }

    /// The bindings whose Service is somebody else's, as was found now or before.
    fn taken<'a>(&self, wanted: &'a [WantedBinding]) -> BTreeSet<&'a str> {
        let is_taken = |it: &&WantedBinding| {
            let service = (Some(Kind::Service), it.name.clone());
            self.page.setbacks.trouble(&service) == Some(&Trouble::Taken)
        };
        wanted.iter().filter(is_taken).map(|it| it.name.as_str()).collect()
    }

    /// Has an object as it is wanted, if it is its time; returns what keeps it from being so.
    async fn keep(
        &self,
        kind: Kind,
        wanted: &DynamicObject,
        uid: &str,
        came: &mut Vec<Came>,
    ) -> Option<Trouble> {
        let object = (Some(kind), wanted.name_any());
        if !self.page.setbacks.allows(&object, clock::now()) {
            return self.page.setbacks.trouble(&object).cloned();
        }
        let result = self.tools.hand.keep(&self.name, uid, kind, wanted).await;
        let trouble = result.as_ref().err().cloned();
        came.push((object, result));
        trouble
    }

    /// Writes a binding's status, where it is another.
    async fn show_binding(
        &self,
        it: &WantedBinding,
        trouble: Option<&Why>,
    ) -> Option<Result<bool, Trouble>> {
        let mark = self.tools.made.find(&self.name, Kind::Binding, &it.name)?;
        let before = mark.status.as_deref().cloned().unwrap_or_default();
        let now = Timestamp::now();
        let wants: PipelineBindingStatus =
            status::of_binding(&it.view, mark.generation, trouble, &before, now);
        if wants == before {
            return None;
        }
        let namespace = self.name.parts().0.unwrap_or_default();
        let (hand, wants) = (&self.tools.hand, json!(wants));
        let shown = hand.show(Kind::Binding, namespace, &it.name, &mark.uid, &wants).await;
        Some(shown.map(|()| true))
    }

    /// Deletes what is there and not wanted.
    async fn sweep(&self, wanted: &[WantedBinding], taken: &BTreeSet<&str>) -> Vec<Came> {
        let mut came = Vec::new();
        for ((kind, name), mark) in self.tools.made.all(&self.name) {
            let object = (Some(kind), name.clone());
            let of_taken = kind == Kind::EndpointSlice
                && taken.iter().any(|service| {
                    name.strip_prefix(service).is_some_and(|rest| rest.starts_with("-ipv"))
                });
            let is_wanted = is_wanted(wanted, kind, &name) && !of_taken;
            if is_wanted || mark.goes || !self.page.setbacks.allows(&object, clock::now()) {
                continue;
            }
            let removed = self.tools.hand.remove(&self.name, kind, &name, &mark).await;
            came.push((object, removed.map(|()| true)));
        }
        came
    }

    /// Keeps in mind what became of objects, and tells people what they should know.
    fn note(&mut self, came: Vec<Came>) {
        let now = clock::now();
        for ((kind, name), result) in came {
            self.page.wrote |= matches!(result, Ok(true));
            let trouble = result.as_ref().err().cloned();
            let object = (kind, name.clone());
            let is_news = self.page.setbacks.note(object, result.map(|_| ()), now);
            let Some(trouble) = trouble.filter(|_| is_news) else { continue };
            let pipeline = &self.name;
            tracing::warn!(%pipeline, ?kind, name, ?trouble, "not done; it is tried again");
            let why = kind.and_then(|kind| tell::why(kind, &name, &trouble));
            let (Some(why), Some(seen)) = (why, &self.object) else { continue };
            let binding = self.tools.made.find(&self.name, Kind::Binding, &name);
            let binding =
                binding.map(|mark| tell::binding(seen.object.namespace(), &name, &mark.uid));
            self.tools.tell.trouble(&seen.object, binding, &why, trouble == Trouble::Taken);
        }
    }

    /// Writes the pipeline's status: each state that it went through, and the one that it is in.
    async fn show(
        &mut self,
        seen: &CachedObject<Pipeline>,
        uid: &str,
        wanted: &[WantedBinding],
    ) -> Vec<Came> {
        let object: Object = (None, self.name.parts().1.to_owned());
        if !self.page.setbacks.allows(&object, clock::now()) {
            return Vec::new();
        }
        let problem = seen.problem();
        let is_newest = seen.object.metadata.generation == Some(seen.generation);
        let mut facts = PipelineFacts {
            generation: seen.object.metadata.generation,
            in_force: (problem.is_none() || !is_newest).then_some(seen.generation),
            problem,
            view: self.view.clone(),
            blocked: self.blocked(wanted),
        };
        let mut before = self.page.status(&seen.object);
        let last = self.view.as_ref().map(|view| view.phase);
        let mut came = Vec::new();
        for phase in self.steps.iter().copied().map(Some).chain([last]) {
            if let (Some(view), Some(phase)) = (&mut facts.view, phase) {
                if Some(phase) != last {
                    // What it waited for then, nobody knows any more.
                    (view.phase, view.reason, view.waits) = (phase, String::new(), Vec::new());
                } else if let Some(is) = &self.view {
                    view.clone_from(is);
                }
            }
            let wants = status::of_pipeline(&facts, &before, Timestamp::now());
            if wants == before {
                continue;
            }
            let written = within(self.write(&seen.object, uid, &wants)).await;
            match written {
                Ok(shown) => {
                    before = shown.status.clone();
                    self.page.shown = Some(shown);
                    came.push((object.clone(), Ok(true)));
                }
                Err(trouble) => {
                    came.push((object.clone(), Err(trouble)));
                    return came;
                }
            }
        }
        came
    }

    /// What keeps an object of the pipeline from being as it should be.
    fn blocked(&self, wanted: &[WantedBinding]) -> Option<Why> {
        let objects = wanted.iter().flat_map(|it| {
            let slices = it.slices.iter().map(|slice| (Kind::EndpointSlice, slice.name_any()));
            let own = [(Kind::Service, it.name.clone()), (Kind::Binding, it.name.clone())];
            own.into_iter().chain(slices)
        });
        objects.into_iter().find_map(|(kind, name)| {
            let trouble = self.page.setbacks.trouble(&(Some(kind), name.clone()))?;
            tell::why(kind, &name, trouble)
        })
    }

    async fn write(
        &self,
        object: &Arc<Pipeline>,
        uid: &str,
        status: &PipelineStatus,
    ) -> Result<Shown, super::hand::Failure> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let api: Api<Pipeline> = Api::namespaced(self.tools.hand.client(), &namespace);
        let body = json!({
            "apiVersion": API_VERSION,
            "kind": Pipeline::KIND,
            "metadata": { "name": name, "namespace": namespace, "uid": uid },
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written = api.patch_status(&name, &params, &Patch::Apply(body)).await?;
        Ok(Shown {
            uid: uid.to_owned(),
            version: version(written.metadata.resource_version.as_deref()),
            status: written.status.unwrap_or_default(),
        })
    }
}

fn is_wanted(wanted: &[WantedBinding], kind: Kind, name: &str) -> bool {
    wanted.iter().any(|it| match kind {
        Kind::Service | Kind::Binding => it.name == name,
        Kind::EndpointSlice => it.slices.iter().any(|slice| slice.name_any() == name),
    })
}
