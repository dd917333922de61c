//! The beginning of each call that goes on: its caller, one of the places, and what is watched.

use std::sync::Arc;

use leasehold_driver::access::Wants;
use leasehold_proto::map;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Status};

use super::error::AdminError;
use super::viewer::Viewer;
use super::{Admin, WATCHERS_MAX};
use crate::connections::Peer;
use crate::grpc::credentials::credentials;

impl Admin {
    /// Counts the open watches of each kind.
    pub fn watches(&self) -> impl Fn() -> [(&'static str, usize); 2] + Send + Sync + 'static {
        let places = [
            ("changes", Arc::clone(&self.change_watchers)),
            ("fleet", Arc::clone(&self.fleet_watchers)),
        ];
        move || {
            let open = |places: &Semaphore| WATCHERS_MAX - places.available_permits();
            places.each_ref().map(|(kind, places)| (*kind, open(places)))
        }
    }

    /// The viewer of a cluster, or of everything if `cluster` is empty, with one of the places.
    pub(super) async fn watcher<T>(
        &self,
        request: &Request<T>,
        cluster: &str,
        places: &Arc<Semaphore>,
    ) -> Result<(Viewer, OwnedSemaphorePermit), AdminError> {
        let cluster = match cluster {
            "" => None,
            cluster => Some(map::cluster_name("cluster", cluster)?),
        };
        self.allow(request, Wants::Read(Viewer::subject(cluster.as_ref()))).await?;
        let shown = credentials(request.metadata(), Peer::of(request.extensions()));
        let permit = Arc::clone(places).try_acquire_owned();
        let permit = permit.map_err(|_| AdminError::TooMany("watchers", WATCHERS_MAX))?;
        Ok((Viewer::new(self.access.clone(), shown, cluster), permit))
    }

    /// Checks that this replica leads, and that a manifest defines the cluster that is watched.
    pub(super) async fn check_watched(
        &self,
        call: &'static str,
        viewer: &Viewer,
    ) -> Result<(), Status> {
        let cluster = viewer.cluster().cloned();
        self.ask(call, move |core, _| match cluster {
            Some(name) if !core.desired().clusters.contains_key(&name) => {
                Err(AdminError::cluster_not_found(core, &name))
            }
            Some(_) | None => Ok(()),
        })
        .await
        .map(|_| ())
    }
}
