//! Reads whole lists of the admin API, page by page.

use leasehold_proto::admin::v1::{
    Class, Cluster, ListClassesRequest, ListClustersRequest, ListPipelinesRequest,
    ListStreamSetsRequest, ListStreamsRequest, ListWorkersRequest, Pipeline, Stream, StreamSet,
    Worker,
};

use super::connection::Coordinator;

/// The most entries of a page: the most that the API allows.
const PAGE_SIZE: u32 = 10_000;

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

/// The streams of a set in the manifest's order: all, or those of a worker if it is not empty.
pub(super) async fn streams(
    coordinator: &mut Coordinator,
    set: &str,
    worker: &str,
) -> anyhow::Result<Vec<Stream>> {
    all_pages(async |page_token| {
        let (set, worker) = (set.to_owned(), worker.to_owned());
        let request = ListStreamsRequest { set, page_size: PAGE_SIZE, page_token, worker };
        let answer =
            coordinator.ask(async |mut client| client.list_streams(request.clone()).await).await?;
        Ok((answer.streams, answer.next_page_token))
    })
    .await
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
