//! The coordinators' admin API, as the demo uses it: to wait, to show and to steer. What it says is
//! never evidence for the checker.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use leasehold_proto::admin::v1 as api;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Clients for all replicas.
#[derive(Debug)]
pub struct Admin {
    runtime: Runtime,
    replicas: Vec<AdminServiceClient<Channel>>,
}

impl Admin {
    /// Connects when it is first used, and again whenever a replica is back.
    ///
    /// # Errors
    /// If an address is invalid.
    pub fn new(addresses: &[String]) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let client = |address: &String| -> Result<_> {
            let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
            Ok(AdminServiceClient::new(endpoint.connect_lazy()))
        };
        let replicas = addresses.iter().map(client).collect::<Result<_>>()?;
        drop(guard);
        Ok(Self { runtime, replicas })
    }

    /// A replica's own status, or `None` if it does not answer.
    #[must_use]
    pub fn status(&self, replica: usize) -> Option<api::GetStatusResponse> {
        let mut client = self.replicas.get(replica)?.clone();
        self.call(async move { client.get_status(api::GetStatusRequest {}).await }).ok()
    }

    /// Which replica leads, with its status, or `None` if there is no leader.
    #[must_use]
    pub fn leader(&self) -> Option<(usize, api::GetStatusResponse)> {
        (0..self.replicas.len())
            .filter_map(|replica| Some((replica, self.status(replica)?)))
            .filter(|(_, status)| status.leads)
            .max_by_key(|(_, status)| status.epoch)
    }

    /// A cluster's figures.
    ///
    /// # Errors
    /// If there is no leader, or the leader does not know the cluster.
    pub fn cluster(&self, name: &str) -> Result<api::Cluster> {
        let (mut client, name) = (self.leading()?, name.to_owned());
        let call = async move { client.get_cluster(api::GetClusterRequest { name }).await };
        self.call(call)?.cluster.context("an answer without a cluster")
    }

    /// A cluster's workers.
    ///
    /// # Errors
    /// As for [`Self::cluster`].
    pub fn workers(&self, cluster: &str) -> Result<Vec<api::Worker>> {
        let mut client = self.leading()?;
        let cluster = cluster.to_owned();
        let request = api::ListWorkersRequest { cluster, ..Default::default() };
        Ok(self.call(async move { client.list_workers(request).await })?.workers)
    }

    /// The platform's word that nothing of a worker runs any more.
    ///
    /// # Errors
    /// If the leader refuses.
    pub fn declare_gone(
        &self,
        cluster: &str,
        worker: &str,
    ) -> Result<api::DeclareWorkerGoneResponse> {
        let mut client = self.leading()?;
        let (cluster, worker) = (cluster.to_owned(), worker.to_owned());
        self.call(async move {
            let known = api::GetWorkerRequest { cluster: cluster.clone(), worker: worker.clone() };
            let known = client.get_worker(known).await?.into_inner().worker.unwrap_or_default();
            let incarnation = Some(known.incarnation.unwrap_or_default());
            let request = api::DeclareWorkerGoneRequest { cluster, worker, incarnation };
            client.declare_worker_gone(request).await
        })
    }

    fn leading(&self) -> Result<AdminServiceClient<Channel>> {
        let (leader, _) = self.leader().context("no coordinator leads")?;
        Ok(self.replicas[leader].clone())
    }

    fn call<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
        let limited = async { tokio::time::timeout(ANSWER_MAX, call).await };
        match self.runtime.block_on(limited) {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(anyhow!("{:?}: {}", status.code(), status.message())),
            Err(_) => Err(anyhow!("no answer within {ANSWER_MAX:?}")),
        }
    }
}
