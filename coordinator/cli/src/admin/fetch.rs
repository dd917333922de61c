//! Reads whole lists of the admin API, page by page.

use leasehold_proto::admin::v1::{
    Class, Cluster, ListClassesRequest, ListClustersRequest, ListPipelinesRequest,
    ListStreamSetsRequest, ListStreamsRequest, ListWorkersRequest, ManifestProblem, Pipeline,
    Stream, StreamSet, Worker,
};

use super::connection::Coordinator;

/// The most entries of a page: the most that the API allows.
const PAGE_SIZE: u32 = 10_000;

/// What is wrong with the manifests; nothing for those who may not ask that.
pub(super) async fn problems(coordinator: &mut Coordinator) -> Vec<ManifestProblem> {
    coordinator.status().await.map(|status| status.problems).unwrap_or_default()
}

/// All clusters, by name.
pub(super) async fn clusters(coordinator: &mut Coordinator) -> anyhow::Result<Vec<Cluster>> {
    let answer = coordinator
        .ask(async |mut client| client.list_clusters(ListClustersRequest {}).await)
        .await?;
    Ok(answer.clusters)
}

/// All stream sets, by name.
pub(super) async fn sets(coordinator: &mut Coordinator) -> anyhow::Result<Vec<StreamSet>> {
    let answer = coordinator
        .ask(async |mut client| client.list_stream_sets(ListStreamSetsRequest {}).await)
        .await?;
    Ok(answer.sets)
}

/// All worker classes, by name.
pub(super) async fn classes(coordinator: &mut Coordinator) -> anyhow::Result<Vec<Class>> {
    let answer = coordinator
        .ask(async |mut client| client.list_classes(ListClassesRequest {}).await)
        .await?;
    Ok(answer.classes)
}

/// All pipelines, by name.
pub(super) async fn pipelines(coordinator: &mut Coordinator) -> anyhow::Result<Vec<Pipeline>> {
    all_pages(async |page_token| {
        let request = ListPipelinesRequest { page_size: PAGE_SIZE, page_token };
        let answer = coordinator
            .ask(async |mut client| client.list_pipelines(request.clone()).await)
            .await?;
        Ok((answer.pipelines, answer.next_page_token))
    })
    .await
}

/// The workers of a cluster, by name.
pub(super) async fn workers(
    coordinator: &mut Coordinator,
    cluster: &str,
) -> anyhow::Result<Vec<Worker>> {
    all_pages(async |page_token| {
        let cluster = cluster.to_owned();
        let request = ListWorkersRequest { cluster, page_size: PAGE_SIZE, page_token };
        let answer =
            coordinator.ask(async |mut client| client.list_workers(request.clone()).await).await?;
        Ok((answer.workers, answer.next_page_token))
    })
    .await
}

/// Takes the streams of a set in the manifest's order, page by page, while `take` wants more: all,
/// or those of a worker if it is not empty.
pub(super) async fn each_page_of_streams(
    coordinator: &mut Coordinator,
    set: &str,
    worker: &str,
    mut take: impl FnMut(Vec<Stream>) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let mut page_token = String::new();
    loop {
        let (set, worker) = (set.to_owned(), worker.to_owned());
        let request = ListStreamsRequest {
            set,
            page_size: PAGE_SIZE,
            page_token,
            worker,
            ..ListStreamsRequest::default()
        };
        let answer =
            coordinator.ask(async |mut client| client.list_streams(request.clone()).await).await?;
        if !take(answer.streams)? {
            return Ok(false);
        }
        page_token = answer.next_page_token;
        if page_token.is_empty() {
            return Ok(true);
        }
    }
}

/// The first streams of all sets, at most this many.
pub(super) async fn first_streams(
    coordinator: &mut Coordinator,
    sets: &[StreamSet],
    most: u32,
) -> anyhow::Result<Vec<Stream>> {
    let mut streams = Vec::new();
    for set in sets {
        let left = most.saturating_sub(u32::try_from(streams.len()).unwrap_or(u32::MAX));
        if left == 0 {
            break;
        }
        let request = ListStreamsRequest {
            set: set.name.clone(),
            page_size: left.min(PAGE_SIZE),
            ..ListStreamsRequest::default()
        };
        let answer =
            coordinator.ask(async |mut client| client.list_streams(request.clone()).await).await?;
        streams.extend(answer.streams);
    }
    Ok(streams)
}

/// The entries of all pages. `page` reads the one of a token, and returns the next token; the first
/// token is empty, and so is the one after the last page.
async fn all_pages<T>(
    mut page: impl AsyncFnMut(String) -> anyhow::Result<(Vec<T>, String)>,
) -> anyhow::Result<Vec<T>> {
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let (entries, next) = page(token).await?;
        all.extend(entries);
        token = next;
        if token.is_empty() {
            return Ok(all);
        }
    }
}
