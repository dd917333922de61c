//! The way to the API server. It only reads; the one thing that it creates, it creates as a dry
//! run, which stores nothing.

use std::path::{Path, PathBuf};

use kube::api::{ListParams, PostParams};
use kube::client::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use serde_json::Value;

/// Objects that are asked for at once.
const PAGE: u32 = 500;
/// Pages of one list; a cluster with more pods than fit is looked at namespace by namespace.
const PAGES_MAX: usize = 200;

/// A cluster that is looked at.
#[derive(Clone)]
pub(super) struct Cluster {
    client: Client,
    /// The API server's address.
    pub(super) url: String,
}

/// Why something could not be read.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The user may not; the text is the API server's.
    Forbidden(String),
    /// Anything else that the API server says, with its code.
    Refused(u16, String),
    /// The API server did not answer as it should.
    Unreachable(String),
}

impl Trouble {
    /// What it says.
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
            other => Self::Unreachable(causes(&other)),
        }
    }
}

/// An error with its causes, each once: some name theirs themselves.
fn causes(error: &dyn std::error::Error) -> String {
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

impl Cluster {
    /// The cluster that a kubeconfig names; nothing is sent yet.
    ///
    /// # Errors
    /// Where there is no kubeconfig, or it lacks what is asked for.
    pub(super) async fn configured(
        file: Option<&Path>,
        context: Option<String>,
    ) -> Result<Self, String> {
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let config = match file {
            Some(file) => {
                let read = Kubeconfig::read_from(PathBuf::from(file));
                let read = read.map_err(|error| causes(&error))?;
                let config = Config::from_custom_kubeconfig(read, &options).await;
                config.map_err(|error| causes(&error))?
            }
            None if options.context.is_some() => {
                let config = Config::from_kubeconfig(&options).await;
                config.map_err(|error| causes(&error))?
            }
            None => Config::infer().await.map_err(|error| causes(&error))?,
        };
        let url = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| causes(&error))?;
        Ok(Self { client, url })
    }

    /// The API server's version: the first thing that is asked.
    pub(super) async fn version(&self) -> Result<Version, Trouble> {
        let info = self.client.apiserver_version().await.map_err(Trouble::of)?;
        let number = |text: &str| {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap_or(0)
        };
        let (major, minor) = (number(&info.major), number(&info.minor));
        Ok(Version { major, minor, text: info.git_version })
    }

    /// The names of a group's resources; none where the group is not served.
    pub(super) async fn resources(&self, group: &str) -> Result<Vec<String>, Trouble> {
        match self.client.list_api_group_resources(group).await.map_err(Trouble::of) {
            Ok(list) => Ok(list.resources.into_iter().map(|it| it.name).collect()),
            Err(Trouble::Refused(404, _)) => Ok(Vec::new()),
            Err(trouble) => Err(trouble),
        }
    }

    /// An object, by the folder of its kind and its name; none where there is none.
    pub(super) async fn get(&self, folder: &str, name: &str) -> Result<Option<Value>, Trouble> {
        let request = Request::new(folder).get(name, &Default::default());
        let request = request.map_err(|error| Trouble::Unreachable(error.to_string()))?;
        match self.client.request(request).await.map_err(Trouble::of) {
            Ok(object) => Ok(Some(object)),
            Err(Trouble::Refused(404, _)) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// All objects of a folder that `wanted` selects, page by page. A kind that is not known has
    /// none.
    pub(super) async fn list(
        &self,
        folder: &str,
        wanted: ListParams,
    ) -> Result<Vec<Value>, Trouble> {
        let mut wanted = wanted.limit(PAGE);
        let mut all = Vec::new();
        for _ in 0..PAGES_MAX {
            let request = Request::new(folder).list(&wanted);
            let request = request.map_err(|error| Trouble::Unreachable(error.to_string()))?;
            let mut list: Value = match self.client.request(request).await.map_err(Trouble::of) {
                Ok(list) => list,
                Err(Trouble::Refused(404, _)) => return Ok(all),
                Err(trouble) => return Err(trouble),
            };
            if let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) {
                all.extend(items);
            }
            match list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(token) => wanted = wanted.continue_token(token),
                None => return Ok(all),
            }
        }
        Err(Trouble::Refused(413, format!("more than {} of {folder}", PAGES_MAX * PAGE as usize)))
    }

    /// What the API server makes of an object; with `dry_run` all but storing it.
    async fn post(&self, folder: &str, body: &Value, dry_run: bool) -> Result<Value, Trouble> {
        let params = PostParams { dry_run, ..PostParams::default() };
        let request = Request::new(folder).create(&params, body.to_string().into_bytes());
        let request = request.map_err(|error| Trouble::Unreachable(error.to_string()))?;
        self.client.request(request).await.map_err(Trouble::of)
    }

    /// What an object would be, were it created.
    pub(super) async fn would_create(&self, folder: &str, body: &Value) -> Result<Value, Trouble> {
        self.post(folder, body, true).await
    }

    /// Whether an access review, of the kind that its body names, comes out as allowed.
    pub(super) async fn is_allowed(&self, review: &Value) -> Result<bool, Trouble> {
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
