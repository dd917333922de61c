//! The hand that writes one object: it makes what is missing, undoes what others have changed of
//! what is ours, and never touches an object of somebody else's, whatever its name.

use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use leasehold_kube_api::names::FIELD_MANAGER;
use leasehold_types::PipelineName;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::kinds::{Kind, controller, home, is_of};
use super::made::{Made, Mark};
use crate::digest::digest;

/// How long the API server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// Why an object is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// An object of this name is there, and is not ours.
    Taken,
    /// The API server refuses it.
    Refused(String),
    /// The API server does not answer, or it is to be tried again for another reason.
    Later(String),
}

/// The way to the objects.
#[derive(Clone)]
pub(super) struct Hand {
    client: Client,
    made: Made,
}

impl Hand {
    pub(super) fn new(client: Client, made: Made) -> Self {
        Self { client, made }
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
    pub(super) async fn keep(
        &self,
        home: &PipelineName,
        uid: &str,
        kind: Kind,
        wanted: &DynamicObject,
    ) -> Result<bool, Trouble> {
        let known = self.made.find(home, kind, &wanted.name_any());
        let essence = digest(&kind.essence(wanted));
        let is_right = |mark: &Mark| !mark.goes && mark.is_of(uid) && mark.essence == essence;
        if known.as_ref().is_some_and(is_right) {
            return Ok(false);
        }
        let bring = async {
            let known = match known {
                Some(mark) => mark,
                None => match self.make(kind, wanted).await? {
                    None => return Ok(()),
                    Some(there) if is_known_to(home, &there) => Mark::new(kind, &there),
                    Some(_) => return Err(Failure::Trouble(Trouble::Taken)),
                },
            };
            self.mend(home, uid, kind, wanted, &known).await
        };
        within(bring).await.map(|()| true)
    }

    /// Writes the status of an object that is there.
    pub(super) async fn show(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        uid: &str,
        status: &Value,
    ) -> Result<(), Trouble> {
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
            self.made.wrote(kind, &shown);
            Ok(())
        })
        .await
    }

    /// Deletes an object that is ours.
    pub(super) async fn remove(
        &self,
        home: &PipelineName,
        kind: Kind,
        name: &str,
        mark: &Mark,
    ) -> Result<(), Trouble> {
        if mark.goes {
            return Ok(());
        }
        within(async { self.delete(home, kind, name, mark).await }).await
    }

    /// Makes an object; returns what is there already under its name.
    async fn make(
        &self,
        kind: Kind,
        wanted: &DynamicObject,
    ) -> Result<Option<DynamicObject>, Failure> {
        let api = self.api(kind, &wanted.namespace().unwrap_or_default());
        let field_manager = Some(FIELD_MANAGER.to_owned());
        let params = PostParams { field_manager, ..PostParams::default() };
        match api.create(&params, wanted).await {
            Ok(made) => {
                self.made.wrote(kind, &made);
                Ok(None)
            }
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {
                Ok(Some(api.get(&wanted.name_any()).await?))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Brings an object that is there to what is wanted, if it is ours.
    async fn mend(
        &self,
        home: &PipelineName,
        uid: &str,
        kind: Kind,
        wanted: &DynamicObject,
        known: &Mark,
    ) -> Result<(), Failure> {
        let name = wanted.name_any();
        if known.goes {
            return Err(Failure::later("the earlier one of its name is still going"));
        }
        if !known.is_of(uid) {
            // It was made for an earlier Pipeline of this name.
            self.delete(home, kind, &name, known).await?;
            return Err(Failure::later("the earlier one of its name is still going"));
        }
        if known.fixed != kind.fixed(wanted) {
            self.delete(home, kind, &name, known).await?;
            return match self.make(kind, wanted).await? {
                None => Ok(()),
                Some(_) => Err(Failure::later("the earlier one of its name is still going")),
            };
        }
        let api = self.api(kind, &wanted.namespace().unwrap_or_default());
        let mut body = wanted.clone();
        // It meets no other object of this name.
        body.metadata.uid = Some(known.uid.clone());
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let mut there = api.patch(&name, &params, &Patch::Apply(&body)).await?;
        if kind.essence(&there) != kind.essence(wanted) {
            let mut strikes = kind.strikes(wanted);
            strikes["metadata"]["uid"] = json!(known.uid);
            let field_manager = Some(FIELD_MANAGER.to_owned());
            let params = PatchParams { field_manager, ..PatchParams::default() };
            there = api.patch(&name, &params, &Patch::Merge(strikes)).await?;
        }
        self.made.wrote(kind, &there);
        match kind.essence(&there) == kind.essence(wanted) {
            true => Ok(()),
            false => Err(Failure::later("somebody else keeps changing it")),
        }
    }

    async fn delete(
        &self,
        home: &PipelineName,
        kind: Kind,
        name: &str,
        mark: &Mark,
    ) -> Result<(), Failure> {
        let api = self.api(kind, home.parts().0.unwrap_or_default());
        let this = Preconditions { uid: Some(mark.uid.clone()), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
        match api.delete(name, &params).await {
            Ok(_) => {}
            // It is gone, or another one has its name.
            Err(kube::Error::Api(status)) if matches!(status.code, NOT_FOUND | CONFLICT) => {}
            Err(error) => return Err(error.into()),
        }
        self.made.forget(home, kind, name);
        Ok(())
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind.resource())
    }
}

/// Whether an object was made for a Pipeline of this name. One that has lost its label is known by
/// its controller.
fn is_known_to(pipeline: &PipelineName, object: &DynamicObject) -> bool {
    let metadata = &object.metadata;
    let is_controlled = controller(metadata).is_some();
    home(metadata).as_ref() == Some(pipeline) && (is_controlled || is_of(metadata, pipeline, ""))
}

/// Why a call did not do what it was to do.
pub(super) enum Failure {
    Trouble(Trouble),
    Api(kube::Error),
}

impl Failure {
    fn later(why: &str) -> Self {
        Self::Trouble(Trouble::Later(why.to_owned()))
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

pub(super) async fn within<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Trouble> {
    match timeout(ANSWER_WITHIN, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(Failure::Trouble(trouble))) => Err(trouble),
        Ok(Err(Failure::Api(error))) => Err(error.into()),
        Err(_) => Err(Trouble::Later(format!("no answer within {ANSWER_WITHIN:?}"))),
    }
}

impl From<kube::Error> for Trouble {
    fn from(error: kube::Error) -> Self {
        match error {
            // What is seen next tells.
            kube::Error::Api(status) if matches!(status.code, NOT_FOUND | CONFLICT | 429) => {
                Self::Later(status.message.clone())
            }
            kube::Error::Api(status) if (400..500).contains(&status.code) => {
                Self::Refused(status.message.clone())
            }
            error => Self::Later(error.to_string()),
        }
    }
}
