//! The beginning of each call that goes on: its caller, one of the places, and what is watched.

use leasehold_driver::access::Permission;
use leasehold_proto::map;
use tonic::{Request, Status};

use super::Admin;
use super::caller_limits::{WatchLimits, WatchPermit};
use super::error::AdminError;
use super::viewer::Viewer;
use crate::connections::Peer;
use crate::grpc::credentials::credentials;

impl Admin {
    /// Counts the open watches of each kind.
    pub fn watches(&self) -> impl Fn() -> [(&'static str, usize); 2] + Send + Sync + 'static {
        let limits =
            [("changes", self.change_watchers.clone()), ("fleet", self.fleet_watchers.clone())];
        move || limits.each_ref().map(|(kind, limits)| (*kind, limits.open()))
    }

    /// The viewer of a cluster, or of everything if `cluster` is empty, with one of the places.
    pub(super) async fn watcher<T>(
        &self,
        request: &Request<T>,
        cluster: &str,
        limits: &WatchLimits,
    ) -> Result<(Viewer, WatchPermit), AdminError> {
        let cluster = match cluster {
            "" => None,
            cluster => Some(map::cluster_name("cluster", cluster)?),
        };
        let permission = Permission::Read(Viewer::subject(cluster.as_ref()));
        let allowed = self.allow(request, permission).await?;
        let shown = credentials(request.metadata(), Peer::of(request.extensions()));
        let permit = limits.begin(allowed)?;
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
