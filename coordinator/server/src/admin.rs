//! The admin service: queries of the driver's core, and the few orders that people give. Every
//! error says what is wrong. A replica that does not lead returns the leader's address.

mod caller_limits;
mod changes;
mod cursor;
mod error;
mod fleet;
mod lookup;
mod manifest_changes;
mod orders;
mod plan;
mod status;
mod viewer;
mod watcher;
mod wire;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::Stream;
use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::event::KnownLeader;
use leasehold_coordinator_core::view::{Leadership, Presence};
use leasehold_driver::access::{Access, Permission, Subject};
use leasehold_driver::log_limit::LogLimit;
use leasehold_driver::order::OrderKind;
use leasehold_driver::port::Handle;
use leasehold_driver::replicas::Replicas;
use leasehold_manifest::proposal::Scope;
use leasehold_proto::admin::v1 as proto;
use leasehold_proto::admin::v1::admin_service_server::AdminService;
use leasehold_proto::map;
use leasehold_types::Moment;
use leasehold_types::limits::NamespaceShare;
use leasehold_types::message::DrainPhase;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use self::caller_limits::{Allowed, CallLimits, PlanLimits, WatchLimits};
use self::cursor::{PageSize, PipelineCursor, StreamCursor, StreamFilter, WorkerCursor};
use self::error::AdminError;
use self::fleet::FleetWatchers;
use self::lookup::{connected_worker, subject_of, worker_of};
use self::status::StatusSource;
use crate::cluster_history::ClusterHistories;
use crate::grpc::credentials::authorize;
use crate::job_history::JobHistory;
use crate::other_cells::OtherCells;
use crate::shared_look::SharedLook;

/// The most concurrent watchers of changes, and of the fleet.
const WATCHERS_MAX: usize = 64;

/// The admin service of one cell.
#[derive(Debug)]
pub struct Admin {
    handle: Handle,
    access: Access,
    status: StatusSource,
    calls: CallLimits,
    change_watchers: WatchLimits,
    fleet: FleetWatchers,
    fleet_watchers: WatchLimits,
    plans: PlanLimits,
    refused_orders: LogLimit<String>,
    lists: SharedLists,
    jobs: Arc<JobHistory>,
    histories: Arc<ClusterHistories>,
}

/// The lists of everything: those who ask for one at the same time share a look at the core.
#[derive(Debug, Default)]
struct SharedLists {
    clusters: SharedLook<Listed<proto::Cluster>>,
    sets: SharedLook<Listed<proto::StreamSet>>,
    classes: SharedLook<Listed<proto::Class>>,
}

/// All of a kind, or the leader where another replica leads.
type Listed<T> = Result<Vec<T>, Option<KnownLeader>>;

impl Admin {
    /// The service over a driver; `access` authorizes the callers, of whom those of one namespace
    /// have this `share` of the limits. They see `replicas`, waits by the run times of `jobs`, the
    /// `other_cells` that agents have found, and the `histories` of the clusters.
    pub fn new(
        handle: Handle,
        access: Access,
        share: NamespaceShare,
        replicas: Arc<Replicas>,
        jobs: Arc<JobHistory>,
        other_cells: Arc<OtherCells>,
        histories: Arc<ClusterHistories>,
    ) -> Self {
        let status = StatusSource { handle: handle.clone(), replicas, other_cells };
        let fleet = FleetWatchers::new(status.clone());
        Self {
            handle,
            access,
            status,
            calls: CallLimits::new(share),
            change_watchers: WatchLimits::new(share),
            fleet,
            fleet_watchers: WatchLimits::new(share),
            plans: PlanLimits::new(),
            refused_orders: orders::refused_lines(),
            lists: SharedLists::default(),
            jobs,
            histories,
        }
    }

    /// Checks that the caller may have what it wants, and counts its call.
    async fn allow<T>(
        &self,
        request: &Request<T>,
        permission: Permission,
    ) -> Result<Allowed, AdminError> {
        let authorized = authorize(&self.access, &self.handle.metrics, request, permission).await?;
        self.calls.begin(authorized)
    }

    /// All of a kind, if this replica leads, by a look at the core that begins after this call.
    async fn list<T: Clone + Send + 'static>(
        &self,
        name: &'static str,
        shared: &SharedLook<Listed<T>>,
        look: fn(&Core, Moment) -> Vec<T>,
    ) -> Result<Vec<T>, AdminError> {
        let look = move |core: &Core, now: Moment| {
            let begun = Instant::now();
            let listed = match core.leadership() {
                Leadership::Leader(_) => Ok(look(core, now)),
                Leadership::Standby(leader) => Err(leader),
            };
            (listed, begun.elapsed())
        };
        let span = tracing::debug_span!("admin", call = name);
        let listed = shared.answer(|| self.handle.ask(look)).instrument(span);
        let listed = listed.await.map_err(|_| AdminError::Stopped)?;
        Result::clone(&listed).map_err(AdminError::NotLeading)
    }

    /// Asks the core, if this replica leads.
    async fn ask<T: Send + 'static>(
        &self,
        name: &'static str,
        question: impl FnOnce(&Core, Moment) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let asked = self.handle.ask(move |core, now| match core.leadership() {
            Leadership::Leader(_) => question(core, now),
            Leadership::Standby(leader) => Err(AdminError::NotLeading(leader)),
        });
        let span = tracing::debug_span!("admin", call = name);
        let answer = asked.instrument(span).await.map_err(|_| AdminError::Stopped)?;
        Ok(Response::new(answer?))
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    type WatchFleetStream =
        Pin<Box<dyn Stream<Item = Result<proto::WatchFleetResponse, Status>> + Send>>;
    type WatchChangesStream =
        Pin<Box<dyn Stream<Item = Result<proto::WatchChangesResponse, Status>> + Send>>;

    async fn get_status(
        &self,
        request: Request<proto::GetStatusRequest>,
    ) -> Result<Response<proto::GetStatusResponse>, Status> {
        let _call = self.allow(&request, Permission::Read(Subject::All)).await?;
        Ok(Response::new(self.status.status()))
    }

    async fn list_clusters(
        &self,
        request: Request<proto::ListClustersRequest>,
    ) -> Result<Response<proto::ListClustersResponse>, Status> {
        let _call = self.allow(&request, Permission::Read(Subject::All)).await?;
        let listed = self.list("ListClusters", &self.lists.clusters, |core, now| {
            core.clusters(now).into_iter().map(wire::cluster).collect()
        });
        Ok(Response::new(proto::ListClustersResponse { clusters: listed.await? }))
    }

    async fn get_cluster(
        &self,
        request: Request<proto::GetClusterRequest>,
    ) -> Result<Response<proto::GetClusterResponse>, Status> {
        let name = map::cluster_name("name", &request.get_ref().name).map_err(AdminError::from)?;
        let _call = self.allow(&request, Permission::Read(Subject::Cluster(name.clone()))).await?;
        self.ask("GetCluster", move |core, now| {
            let cluster = core.cluster(&name, now).map(wire::cluster);
            let cluster = cluster.ok_or_else(|| AdminError::cluster_not_found(core, &name))?;
            Ok(proto::GetClusterResponse { cluster: Some(cluster) })
        })
        .await
    }

    async fn list_workers(
        &self,
        request: Request<proto::ListWorkersRequest>,
    ) -> Result<Response<proto::ListWorkersResponse>, Status> {
        let cluster =
            map::cluster_name("cluster", &request.get_ref().cluster).map_err(AdminError::from)?;
        let _call =
            self.allow(&request, Permission::Read(Subject::Cluster(cluster.clone()))).await?;
        let request = request.into_inner();
        let size = PageSize::new(request.page_size)?;
        let page = WorkerCursor::parse(&cluster, &request.page_token)?;
        self.ask("ListWorkers", move |core, now| {
            let workers = core.workers_after(&cluster, page.after(), now);
            let workers = workers.ok_or_else(|| AdminError::cluster_not_found(core, &cluster))?;
            let (workers, next) = page.cut(workers, size);
            let workers = workers.into_iter().map(wire::worker).collect();
            Ok(proto::ListWorkersResponse { workers, next_page_token: next })
        })
        .await
    }

    async fn get_worker(
        &self,
        request: Request<proto::GetWorkerRequest>,
    ) -> Result<Response<proto::GetWorkerResponse>, Status> {
        let wanted = request.get_ref();
        let key = worker_of(&wanted.cluster, &wanted.worker)?;
        let _call =
            self.allow(&request, Permission::Read(Subject::Cluster(key.cluster.clone()))).await?;
        self.ask("GetWorker", move |core, now| {
            let worker = core.worker(&key, now).map(wire::worker);
            let worker = worker.ok_or_else(|| AdminError::worker_not_found(&key))?;
            Ok(proto::GetWorkerResponse { worker: Some(worker) })
        })
        .await
    }

    async fn list_streams(
        &self,
        request: Request<proto::ListStreamsRequest>,
    ) -> Result<Response<proto::ListStreamsResponse>, Status> {
        let set = map::set_name("set", &request.get_ref().set).map_err(AdminError::from)?;
        let _call = self.allow(&request, Permission::Read(Subject::Set(set.clone()))).await?;
        let request = request.into_inner();
        let worker = match request.worker.as_str() {
            "" => None,
            worker => Some(map::worker_name("worker", worker).map_err(AdminError::from)?),
        };
        let size = PageSize::new(request.page_size)?;
        let filter = StreamFilter { worker, search: request.search, unowned: request.unowned };
        let page = StreamCursor::parse(&set, filter, &request.page_token)?;
        self.ask("ListStreams", move |core, _| {
            let streams = core.streams(&set, page.after());
            let streams = streams.ok_or_else(|| AdminError::set_not_found(&set))?;
            let (streams, next) = page.cut(streams, size);
            let streams = streams.into_iter().map(wire::stream).collect();
            Ok(proto::ListStreamsResponse { streams, next_page_token: next })
        })
        .await
    }

    async fn list_stream_sets(
        &self,
        request: Request<proto::ListStreamSetsRequest>,
    ) -> Result<Response<proto::ListStreamSetsResponse>, Status> {
        let _call = self.allow(&request, Permission::Read(Subject::All)).await?;
        let listed = self.list("ListStreamSets", &self.lists.sets, |core, _| {
            core.set_summaries().into_iter().map(wire::set).collect()
        });
        Ok(Response::new(proto::ListStreamSetsResponse { sets: listed.await? }))
    }

    async fn get_stream(
        &self,
        request: Request<proto::GetStreamRequest>,
    ) -> Result<Response<proto::GetStreamResponse>, Status> {
        let wanted = request.get_ref();
        let key = map::stream_key(&wanted.set, &wanted.stream).map_err(AdminError::from)?;
        let _call = self.allow(&request, Permission::Read(subject_of(&key))).await?;
        self.ask("GetStream", move |core, _| {
            let stream = core.stream(&key).map(wire::stream);
            let stream = stream.ok_or_else(|| AdminError::stream_not_found(&key))?;
            Ok(proto::GetStreamResponse { stream: Some(stream) })
        })
        .await
    }

    async fn explain_cluster(
        &self,
        request: Request<proto::ExplainClusterRequest>,
    ) -> Result<Response<proto::ExplainClusterResponse>, Status> {
        let cluster =
            map::cluster_name("cluster", &request.get_ref().cluster).map_err(AdminError::from)?;
        let _call =
            self.allow(&request, Permission::Read(Subject::Cluster(cluster.clone()))).await?;
        self.ask("ExplainCluster", move |core, now| {
            let explanation = core.explain_cluster(&cluster, now).map(wire::explanation);
            let explanation =
                explanation.ok_or_else(|| AdminError::cluster_not_found(core, &cluster))?;
            Ok(proto::ExplainClusterResponse { explanation: Some(explanation) })
        })
        .await
    }

    async fn explain_worker(
        &self,
        request: Request<proto::ExplainWorkerRequest>,
    ) -> Result<Response<proto::ExplainWorkerResponse>, Status> {
        let wanted = request.get_ref();
        let key = worker_of(&wanted.cluster, &wanted.worker)?;
        let _call =
            self.allow(&request, Permission::Read(Subject::Cluster(key.cluster.clone()))).await?;
        self.ask("ExplainWorker", move |core, now| {
            let explanation = core.explain_worker(&key, now).map(wire::explanation);
            let explanation = explanation.ok_or_else(|| AdminError::worker_not_found(&key))?;
            Ok(proto::ExplainWorkerResponse { explanation: Some(explanation) })
        })
        .await
    }

    async fn explain_stream(
        &self,
        request: Request<proto::ExplainStreamRequest>,
    ) -> Result<Response<proto::ExplainStreamResponse>, Status> {
        let wanted = request.get_ref();
        let key = map::stream_key(&wanted.set, &wanted.stream).map_err(AdminError::from)?;
        let _call = self.allow(&request, Permission::Read(subject_of(&key))).await?;
        self.ask("ExplainStream", move |core, now| {
            let explanation = core.explain_stream(&key, now).map(wire::explanation);
            let explanation = explanation.ok_or_else(|| AdminError::stream_not_found(&key))?;
            Ok(proto::ExplainStreamResponse { explanation: Some(explanation) })
        })
        .await
    }

    async fn list_classes(
        &self,
        request: Request<proto::ListClassesRequest>,
    ) -> Result<Response<proto::ListClassesResponse>, Status> {
        let _call = self.allow(&request, Permission::Read(Subject::All)).await?;
        let listed = self.list("ListClasses", &self.lists.classes, |core, now| {
            core.classes(now).iter().map(wire::class).collect()
        });
        Ok(Response::new(proto::ListClassesResponse { classes: listed.await? }))
    }

    async fn list_pipelines(
        &self,
        request: Request<proto::ListPipelinesRequest>,
    ) -> Result<Response<proto::ListPipelinesResponse>, Status> {
        let _call = self.allow(&request, Permission::Read(Subject::All)).await?;
        let request = request.into_inner();
        let size = PageSize::new(request.page_size)?;
        let page = PipelineCursor::parse(&request.page_token)?;
        self.ask("ListPipelines", move |core, _| {
            let (pipelines, next) = page.cut(core.pipelines(page.after()), size);
            let pipelines = pipelines.into_iter().map(wire::pipeline).collect();
            Ok(proto::ListPipelinesResponse { pipelines, next_page_token: next })
        })
        .await
    }

    async fn get_pipeline(
        &self,
        request: Request<proto::GetPipelineRequest>,
    ) -> Result<Response<proto::GetPipelineResponse>, Status> {
        let name = map::pipeline_name("name", &request.get_ref().name).map_err(AdminError::from)?;
        let _call = self.allow(&request, Permission::Read(Subject::Pipeline(name.clone()))).await?;
        self.ask("GetPipeline", move |core, _| {
            let pipeline = core.pipeline(&name).map(wire::pipeline);
            let pipeline = pipeline.ok_or_else(|| AdminError::pipeline_not_found(&name))?;
            Ok(proto::GetPipelineResponse { pipeline: Some(pipeline) })
        })
        .await
    }

    async fn explain_pipeline(
        &self,
        request: Request<proto::ExplainPipelineRequest>,
    ) -> Result<Response<proto::ExplainPipelineResponse>, Status> {
        let name = map::pipeline_name("name", &request.get_ref().name).map_err(AdminError::from)?;
        let _call = self.allow(&request, Permission::Read(Subject::Pipeline(name.clone()))).await?;
        self.ask("ExplainPipeline", move |core, now| {
            let explanation = core.explain_pipeline(&name, now).map(wire::explanation);
            let explanation = explanation.ok_or_else(|| AdminError::pipeline_not_found(&name))?;
            Ok(proto::ExplainPipelineResponse { explanation: Some(explanation) })
        })
        .await
    }

    async fn watch_changes(
        &self,
        request: Request<proto::WatchChangesRequest>,
    ) -> Result<Response<Self::WatchChangesStream>, Status> {
        let cluster = &request.get_ref().cluster;
        let replay = changes::replay_duration(&request.get_ref().replay)?;
        let only_replay = request.get_ref().only_replay;
        let (viewer, permit) = self.watcher(&request, cluster, &self.change_watchers).await?;
        // Subscribes before the core is asked, so that no change in between is missed.
        let changes = self.handle.replay(replay).map_err(|_| AdminError::Stopped)?;
        self.check_watched("WatchChanges", &viewer).await?;
        Ok(Response::new(Box::pin(changes::watch(changes, only_replay, viewer, permit))))
    }

    async fn watch_fleet(
        &self,
        request: Request<proto::WatchFleetRequest>,
    ) -> Result<Response<Self::WatchFleetStream>, Status> {
        let cluster = &request.get_ref().cluster;
        let (viewer, permit) = self.watcher(&request, cluster, &self.fleet_watchers).await?;
        self.check_watched("WatchFleet", &viewer).await?;
        Ok(Response::new(Box::pin(self.fleet.watch(viewer, &self.histories, permit))))
    }

    async fn drain_worker(
        &self,
        request: Request<proto::DrainWorkerRequest>,
    ) -> Result<Response<proto::DrainWorkerResponse>, Status> {
        let wanted = request.get_ref();
        let key = worker_of(&wanted.cluster, &wanted.worker)?;
        let call =
            self.allow(&request, Permission::Change(Subject::Cluster(key.cluster.clone()))).await?;
        let order = call.order(OrderKind::Drain, &key);
        self.order("DrainWorker", order, move |core, now| {
            connected_worker(core, &key, now)?;
            Ok(proto::DrainWorkerResponse {})
        })
        .await
    }

    async fn undrain_worker(
        &self,
        request: Request<proto::UndrainWorkerRequest>,
    ) -> Result<Response<proto::UndrainWorkerResponse>, Status> {
        let wanted = request.get_ref();
        let key = worker_of(&wanted.cluster, &wanted.worker)?;
        let call =
            self.allow(&request, Permission::Change(Subject::Cluster(key.cluster.clone()))).await?;
        let order = call.order(OrderKind::Undrain, &key);
        self.order("UndrainWorker", order, move |core, now| {
            let worker = connected_worker(core, &key, now)?;
            if key.worker.is_former() {
                return Err(AdminError::NameLost(key));
            }
            if worker.drain == DrainPhase::Leaving {
                return Err(AdminError::HasDrained(key));
            }
            Ok(proto::UndrainWorkerResponse {})
        })
        .await
    }

    async fn declare_worker_gone(
        &self,
        request: Request<proto::DeclareWorkerGoneRequest>,
    ) -> Result<Response<proto::DeclareWorkerGoneResponse>, Status> {
        let wanted = request.get_ref();
        let key = worker_of(&wanted.cluster, &wanted.worker)?;
        let call =
            self.allow(&request, Permission::Change(Subject::Cluster(key.cluster.clone()))).await?;
        let Some(declared) = request.get_ref().incarnation else {
            return Err(AdminError::Invalid(
                "incarnation: missing: give the one that GetWorker shows, or 0 where it shows none"
                    .into(),
            )
            .into());
        };
        let order = call.order(OrderKind::DeclareGone, &key);
        self.order("DeclareWorkerGone", order, move |core, now| {
            let worker =
                core.worker(&key, now).ok_or_else(|| AdminError::worker_not_found(&key))?;
            if worker.presence == Presence::Connected {
                return Err(AdminError::Connected(key));
            }
            let known = worker.incarnation.map_or(0, |incarnation| incarnation.0);
            if known != declared {
                return Err(AdminError::OtherIncarnation { worker: key, known, declared });
            }
            Ok(proto::DeclareWorkerGoneResponse {
                slots_freed: worker.committed,
                streams_freed: wire::count(worker.streams),
            })
        })
        .await
    }

    async fn plan(
        &self,
        request: Request<proto::PlanRequest>,
    ) -> Result<Response<proto::PlanResponse>, Status> {
        let cluster =
            map::cluster_name("cluster", &request.get_ref().cluster).map_err(AdminError::from)?;
        let call =
            self.allow(&request, Permission::Read(Subject::Cluster(cluster.clone()))).await?;
        let what_if = wire::what_if(request.get_ref())?;
        self.plan_of(&call, cluster, what_if).await.map(Response::new)
    }

    async fn plan_manifests(
        &self,
        request: Request<proto::PlanManifestsRequest>,
    ) -> Result<Response<proto::PlanManifestsResponse>, Status> {
        let call = self.allow(&request, Permission::Read(Subject::All)).await?;
        let proto::PlanManifestsRequest { files, whole_folder } = request.into_inner();
        let scope = match (&self.access, whole_folder) {
            (Access::Asked(_), _) => Scope::Objects,
            (Access::Open | Access::Certificates, true) => Scope::WholeFolder,
            (Access::Open | Access::Certificates, false) => Scope::SomeFiles,
        };
        let files = files.into_iter().map(|file| (file.path, file.text)).collect();
        self.plan_files(&call, files, scope).await.map(Response::new)
    }
}
