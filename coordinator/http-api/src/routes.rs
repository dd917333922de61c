//! The paths of the API, and the call of the admin service behind each.

/// How a path is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// GET; the query has the request's fields.
    Get,
    /// POST; the body is the request.
    Post,
    /// GET; the answer is a stream of server-sent events.
    Watch(Resume),
}

/// How a client that comes back goes on with a stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    /// After the event that it names in `Last-Event-ID`.
    AfterEvent,
    /// It begins anew.
    Never,
}

impl Verb {
    /// The methods that the path takes, as the header `Allow` names them.
    pub(super) fn allowed(self) -> &'static str {
        match self {
            Self::Get | Self::Watch(_) => "GET, HEAD",
            Self::Post => "POST",
        }
    }
}

/// A path below `/api/v1/`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) path: &'static str,
    pub(super) verb: Verb,
    /// The call of the admin service.
    pub(super) rpc: &'static str,
    /// What it shows, for people.
    pub(super) what: &'static str,
    /// A body that it takes, where it takes one.
    pub(super) example: &'static str,
    /// The only key of the message that is shown; all without it.
    pub(super) only: Option<&'static str>,
}

const fn query(path: &'static str, rpc: &'static str, what: &'static str) -> Route {
    Route { path, verb: Verb::Get, rpc, what, example: "", only: None }
}

pub(super) const ROUTES: [Route; 16] = [
    query("status", "GetStatus", "this replica: whether it leads, and who does"),
    Route {
        only: Some("problems"),
        ..query("problems", "GetStatus", "what is wrong with the manifests")
    },
    query("clusters", "ListClusters", "budgets, and what of them is used"),
    query("workers", "ListWorkers", "the workers of a cluster (?cluster=NAME)"),
    query("sets", "ListStreamSets", "the stream sets"),
    query("streams", "ListStreams", "the streams of a set, and their owners (?set=NAME)"),
    query("pipelines", "ListPipelines", "the pipelines and their states"),
    query("classes", "ListClasses", "the worker classes with their loads"),
    query("explain/cluster", "ExplainCluster", "why a cluster runs what it runs (?cluster=NAME)"),
    query("explain/worker", "ExplainWorker", "why a worker has what it has (?cluster=…&worker=…)"),
    query("explain/stream", "ExplainStream", "why a stream is where it is (?set=…&stream=…)"),
    query("explain/pipeline", "ExplainPipeline", "why a pipeline is in its state (?name=NAME)"),
    Route {
        verb: Verb::Post,
        example: r#"{"cluster": "builds", "maxJobs": 4}"#,
        ..query("plan", "Plan", "what would be planned under other circumstances (POST)")
    },
    Route {
        verb: Verb::Post,
        example: r#"{"files": [{"path": "builds.yaml", "text": "..."}]}"#,
        ..query("plan/manifests", "PlanManifests", "the same with edited manifests (POST)")
    },
    Route {
        verb: Verb::Watch(Resume::Never),
        ..query("fleet", "WatchFleet", "the fleet, and what of it changes, as server-sent events")
    },
    Route {
        verb: Verb::Watch(Resume::AfterEvent),
        ..query("changes", "WatchChanges", "what happens, as server-sent events")
    },
];
