//! The client of the API server. It only reads; what it creates is a dry run, an access review or a
//! connection to a pod, and nothing is stored.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use kube::client::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use super::report::{Finding, Problem, Report};
use crate::port_forward::port_forward;

/// Objects per page of a list.
const PAGE: u32 = 500;
/// At most this many pages of one list are read.
const PAGES_MAX: usize = 200;

/// A client of the API server of the cluster to check.
#[derive(Clone)]
pub(super) struct ApiClient {
    client: Client,
    /// The API server's address.
    pub(super) url: String,
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) enum ApiError {
    /// The user lacks the right; the text is the API server's.
    Forbidden(String),
    /// Any other error of the API server, with its HTTP status.
    Refused(u16, String),
    /// No answer, or not one of an API server.
    Unreachable(String),
}

impl ApiError {
    /// The message.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Forbidden(text) | Self::Refused(_, text) | Self::Unreachable(text) => text,
        }
    }

    fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
                Self::Forbidden(status.message)
            }
            kube::Error::Api(status) => Self::Refused(status.code, status.message),
            other => Self::Unreachable(error_with_causes(&other)),
        }
    }
}

/// An error with its causes. Some errors contain the text of their cause: it is not repeated.
fn error_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}

impl ApiClient {
    /// The cluster that a kubeconfig names; nothing is sent yet.
    ///
    /// # Errors
    /// If no kubeconfig is found, or it lacks the context.
    pub(super) async fn configured(
        file: Option<&Path>,
        context: Option<String>,
    ) -> Result<Self, String> {
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let config = match file {
            Some(file) => {
                let read = Kubeconfig::read_from(PathBuf::from(file));
                let read = read.map_err(|error| error_with_causes(&error))?;
                let config = Config::from_custom_kubeconfig(read, &options).await;
                config.map_err(|error| error_with_causes(&error))?
            }
            None if options.context.is_some() => {
                let config = Config::from_kubeconfig(&options).await;
                config.map_err(|error| error_with_causes(&error))?
            }
            None => Config::infer().await.map_err(|error| error_with_causes(&error))?,
        };
        let url = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| error_with_causes(&error))?;
        Ok(Self { client, url })
    }

    /// The API server's version: the first thing that is asked.
    pub(super) async fn version(&self) -> Result<Version, ApiError> {
        let info = self.client.apiserver_version().await.map_err(ApiError::of)?;
        let number = |text: &str| {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap_or(0)
        };
        let (major, minor) = (number(&info.major), number(&info.minor));
        Ok(Version { major, minor, text: info.git_version })
    }

    /// The names of a group's resources; `None` if the group is not served.
    pub(super) async fn resources(&self, group: &str) -> Result<Vec<String>, ApiError> {
        match self.client.list_api_group_resources(group).await.map_err(ApiError::of) {
            Ok(list) => Ok(list.resources.into_iter().map(|resource| resource.name).collect()),
            Err(ApiError::Refused(404, _)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// An object, by the folder of its kind and its name; `None` if it does not exist.
    pub(super) async fn get(&self, folder: &str, name: &str) -> Result<Option<Value>, ApiError> {
        let request = Request::new(folder).get(name, &Default::default());
        let request = request.map_err(|error| ApiError::Unreachable(error.to_string()))?;
        match self.client.request(request).await.map_err(ApiError::of) {
            Ok(object) => Ok(Some(object)),
            Err(ApiError::Refused(404, _)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects of a folder that `wanted` selects, page by page. A kind that is not known has
    /// none.
    pub(super) async fn list(
        &self,
        folder: &str,
        wanted: ListParams,
    ) -> Result<Vec<Value>, ApiError> {
        let mut wanted = wanted.limit(PAGE);
        let mut all = Vec::new();
        for _ in 0..PAGES_MAX {
            let request = Request::new(folder).list(&wanted);
            let request = request.map_err(|error| ApiError::Unreachable(error.to_string()))?;
            let mut list: Value = match self.client.request(request).await.map_err(ApiError::of) {
                Ok(list) => list,
                Err(ApiError::Refused(404, _)) => return Ok(all),
                Err(error) => return Err(error),
            };
            if let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) {
                all.extend(items);
            }
            match list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(token) => wanted = wanted.continue_token(token),
                None => return Ok(all),
            }
        }
        Err(ApiError::Refused(
            413,
            format!(
                "more than {} objects in {folder}: check fewer namespaces (-n)",
                PAGES_MAX * PAGE as usize
            ),
        ))
    }

    /// A connection to a port of a pod, which its node makes.
    pub(super) async fn forward(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, ApiError> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        port_forward(&pods, pod, port).await.map_err(ApiError::of)
    }

    /// Creates an object; with `dry_run` the API server does not store it.
    async fn post(&self, folder: &str, body: &Value, dry_run: bool) -> Result<Value, ApiError> {
        let params = PostParams { dry_run, ..PostParams::default() };
        let request = Request::new(folder).create(&params, body.to_string().into_bytes());
        let request = request.map_err(|error| ApiError::Unreachable(error.to_string()))?;
        self.client.request(request).await.map_err(ApiError::of)
    }

    /// What an object would be, were it created.
    pub(super) async fn dry_run_create(
        &self,
        folder: &str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        self.post(folder, body, true).await
    }

    /// Whether an access review, of the kind that its body names, comes out as allowed.
    pub(super) async fn is_allowed(&self, review: &Value) -> Result<bool, ApiError> {
        let kind = review["kind"].as_str().unwrap_or_default().to_lowercase();
        let folder = format!("/apis/authorization.k8s.io/v1/{kind}s");
        // Reviews are never stored, so they need no dry run.
        let answer = self.post(&folder, review, false).await?;
        Ok(answer["status"]["allowed"] == true)
    }
}

/// A server's version.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
    /// As it says it.
    pub(super) text: String,
}

/// The oldest Kubernetes with native sidecars on by default.
const VERSION_MIN: (u32, u32) = (1, 29);

/// The cluster, if it answers; otherwise nothing else can be checked.
pub(super) async fn check(
    api: Result<ApiClient, String>,
    report: &mut Report,
) -> Option<ApiClient> {
    let mut finding = Finding::new("api-reached", "the API server answers");
    let api = match api {
        Ok(api) => api,
        Err(why) => {
            finding.fail(Problem::new(
                format!("no cluster is configured: {why}"),
                "pass a kubeconfig (--kubeconfig, KUBECONFIG) and one of its contexts (--context)",
            ));
            report.add(finding);
            return None;
        }
    };
    match api.version().await {
        Ok(version) => {
            finding.note(format!("{} is Kubernetes {}", api.url, version.text));
            report.add(finding);
            report.add(new_enough(&version));
            Some(api)
        }
        Err(error) => {
            let fix = match error {
                ApiError::Forbidden(_) => {
                    "log in again: the API server does not accept the kubeconfig's user"
                }
                ApiError::Refused(..) | ApiError::Unreachable(_) => {
                    "see whether the cluster runs, and whether the kubeconfig's context names it"
                }
            };
            let wrong = format!("{}: {}", api.url, error.text());
            let problem = Problem::new(wrong, fix);
            finding.fail(problem.run("kubectl config view --minify").run("kubectl version"));
            report.add(finding);
            None
        }
    }
}

fn new_enough(version: &Version) -> Finding {
    let (major, minor) = VERSION_MIN;
    let what = format!("Kubernetes is {major}.{minor} or newer");
    let mut finding = Finding::new("api-version", what);
    if (version.major, version.minor) < VERSION_MIN {
        finding.fail(Problem::new(
            format!("it is {}, which has no native sidecars", version.text),
            "upgrade the cluster",
        ));
    }
    finding
}
