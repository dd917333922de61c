//! Finds a worker or a stream by the name that people type: alone, or behind its cluster or set
//! with a slash.

use anyhow::bail;
use leasehold_proto::admin::v1::{
    GetClusterRequest, GetStreamRequest, GetWorkerRequest, Stream, Worker,
};
use leasehold_types::did_you_mean;
use tonic::{Code, Response, Status};

use super::connection::Coordinator;
use super::fetch;
use crate::argument::WorkerPath;
use crate::usage;

/// The worker of this name in `cluster`, or else in whichever cluster has it.
///
/// # Errors
/// If no worker or several have the name, or the coordinator does not answer.
pub(super) async fn worker(
    coordinator: &mut Coordinator,
    path: &WorkerPath,
    cluster: Option<&str>,
) -> anyhow::Result<Worker> {
    let worker = path.name.as_str();
    let clusters = match (path.cluster.as_deref(), cluster) {
        (Some(of), Some(_)) => {
            let message = format!("give the cluster once: as {of}/{worker}, or with --cluster");
            return Err(usage::wrong(message));
        }
        (Some(cluster), None) | (None, Some(cluster)) => vec![cluster.to_owned()],
        (None, None) => {
            let all = fetch::clusters(coordinator).await?;
            all.into_iter().map(|cluster| cluster.name).collect()
        }
    };
    let mut found = Vec::new();
    for cluster in &clusters {
        let (cluster, worker) = (cluster.clone(), worker.to_owned());
        let request = GetWorkerRequest { cluster, worker };
        let asked = coordinator
            .ask(async |mut client| unless_missing(client.get_worker(request.clone()).await));
        found.extend(asked.await?.and_then(|answer| answer.worker));
    }
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(worker), None) => Ok(worker),
        (Some(one), Some(two)) => bail!(
            "clusters {} and {} both have a worker {worker}: say which one, as in \
             --cluster {}",
            one.cluster,
            two.cluster,
            one.cluster
        ),
        (None, _) => match clusters.as_slice() {
            [cluster] => {
                check_cluster(coordinator, cluster).await?;
                bail!(
                    "cluster {cluster} has no worker {worker}, or it has drained and left: \
                     `leasehold workers {cluster}` lists all"
                )
            }
            _ => bail!(
                "no cluster has a worker {worker}, or it has drained and left: `leasehold workers` \
                 lists all"
            ),
        },
    }
}

/// The stream of this name in `set`, or else in whichever set has it.
///
/// # Errors
/// If no stream or several have the name, or the coordinator does not answer.
pub(super) async fn stream(
    coordinator: &mut Coordinator,
    name: &str,
    set: Option<&str>,
) -> anyhow::Result<Stream> {
    let all = match set {
        Some(set) => vec![set.to_owned()],
        None => fetch::sets(coordinator).await?.into_iter().map(|set| set.name).collect(),
    };
    // Both may have slashes, so each set is asked for the whole name and for what follows its own.
    let candidates = all.iter().flat_map(|set| {
        let behind = name.strip_prefix(set.as_str()).and_then(|rest| rest.strip_prefix('/'));
        let given = std::iter::once(name).chain(behind.filter(|rest| !rest.is_empty()));
        given.map(move |stream| (set.clone(), stream.to_owned()))
    });
    let mut found = Vec::new();
    for (set, stream) in candidates {
        let request = GetStreamRequest { set, stream };
        let asked = coordinator
            .ask(async |mut client| unless_missing(client.get_stream(request.clone()).await));
        found.extend(asked.await?.and_then(|answer| answer.stream));
    }
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(stream), None) => Ok(stream),
        (Some(one), Some(two)) => bail!(
            "stream sets {} and {} both have a stream {name}: say which one, as in --set {}",
            one.set,
            two.set,
            one.set
        ),
        (None, _) => match set {
            Some(set) => {
                check_set(coordinator, set).await?;
                bail!("stream set {set} has no stream {name}: `leasehold streams {set}` lists them")
            }
            None => bail!("no stream set has a stream {name}: `leasehold streams` lists them"),
        },
    }
}

/// Checks that a manifest defines this cluster.
///
/// # Errors
/// If none does: the coordinator says which name may be meant; if the caller may not read it; or if
/// no coordinator answers.
pub(super) async fn check_cluster(coordinator: &mut Coordinator, name: &str) -> anyhow::Result<()> {
    let request = GetClusterRequest { name: name.to_owned() };
    coordinator.ask(async |mut client| client.get_cluster(request.clone()).await).await?;
    Ok(())
}

/// Fails if no manifest defines this set, and says which name may be meant.
async fn check_set(coordinator: &mut Coordinator, name: &str) -> anyhow::Result<()> {
    let all = fetch::sets(coordinator).await?;
    let known = || all.iter().map(|set| set.name.as_str());
    if known().any(|known| known == name) {
        return Ok(());
    }
    bail!("no manifest defines a stream set {name}{}", did_you_mean(name, known()))
}

/// None where what was asked for is not there, or cannot have such a name.
fn unless_missing<T>(answer: Result<Response<T>, Status>) -> Result<Response<Option<T>>, Status> {
    match answer {
        Ok(answer) => Ok(answer.map(Some)),
        Err(status) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => {
            Ok(Response::new(None))
        }
        Err(status) => Err(status),
    }
}
