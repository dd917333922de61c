//! The context that all reconcilers share.

use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use leasehold_coordinator_core::event::Event;
use leasehold_driver::port::Handle;
use leasehold_platform_kube::Settings;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::Pods;
use leasehold_platform_kube::webhook::Injector;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use crate::applier::Applier;
use crate::events::EventRecorder;
use crate::nodes::Nodes;

/// The context that all reconcilers share; cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// The client of the API server.
    pub(crate) client: Client,
    /// Writes objects.
    pub(crate) applier: Applier,
    /// The handle of the driver, which knows whether this replica leads.
    pub(crate) handle: Handle,
    /// The custom resources as last seen.
    pub(crate) objects: watch::Receiver<Arc<Objects>>,
    /// Facts for the core.
    pub(crate) facts: mpsc::Sender<Event>,
    /// The nodes that are cordoned, about to go or in a zone.
    pub(crate) nodes: Nodes,
    /// The pods that are workers.
    pub(crate) pods: Pods,
    /// Records events.
    pub(crate) events: EventRecorder,
    /// The sidecar settings of opted-in pods.
    pub(crate) injector: Injector,
    /// How this replica runs.
    pub(crate) settings: Arc<Settings>,
}

impl Context {
    /// The API of a kind, in each namespace that is served.
    pub(crate) fn apis<K>(&self) -> Vec<Api<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned,
    {
        match self.settings.watched.as_slice() {
            [] => vec![Api::all(self.client.clone())],
            names => {
                let api = |name: &String| Api::namespaced(self.client.clone(), name);
                names.iter().map(api).collect()
            }
        }
    }
}
