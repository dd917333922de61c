//! A way into a cluster: the real kubectl, a client, and tokens of service accounts. The
//! holder of one from [`super::ControlPlane`] itself is its administrator.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::Kubeconfig;
use kube::{Api, Client};

use super::binaries;
use super::kubeconfig::{self, Speaker};
use super::objects::{self, Objects};
use crate::process::HANG;
use crate::toolbox;

/// The exit code of `timeout` where it has ended the command.
const ENDED_BY_TIMEOUT: i32 = 124;

/// A way into a cluster, as whom its kubeconfig says.
#[derive(Clone, Debug)]
pub struct Access {
    objects: Objects,
}

/// What a token is to be good for.
#[derive(Clone, Copy, Debug)]
pub struct TokenFor<'a> {
    /// The service account's namespace.
    pub namespace: &'a str,
    /// The service account's name.
    pub service_account: &'a str,
    /// Who is to accept it; none for the API server itself.
    pub audience: Option<&'a str>,
    /// The name and UID of the pod that it ends with.
    pub pod: Option<(&'a str, &'a str)>,
    /// Its life; the API server gives at least 600 seconds.
    pub seconds: i64,
}

impl Access {
    /// The way in that a kubeconfig describes.
    #[must_use]
    pub fn new(kubeconfig: PathBuf) -> Self {
        Self { objects: Objects::new(kubeconfig) }
    }

    /// Where the kubeconfig lies.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        self.objects.kubeconfig()
    }

    /// Its objects, for tests that look again and again.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// A client of this cluster.
    ///
    /// # Panics
    /// If the kubeconfig is invalid.
    pub async fn client(&self) -> Client {
        objects::client(self.kubeconfig()).await
    }

    /// The command `kubectl` with this kubeconfig and arguments.
    #[must_use]
    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binaries::path("kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command.arg("--cache-dir").arg(self.kubeconfig().with_file_name("kubectl-cache"));
        command.args(arguments);
        command
    }

    /// The same, which is ended after [`HANG`]: kubectl may wait for ever, for the end of a pod on
    /// a lost node, for instance.
    fn bounded_kubectl(&self, arguments: &[&str]) -> Command {
        let kubectl = self.kubectl_command(arguments);
        let mut command = Command::new("timeout");
        command.arg("--foreground").arg(HANG.as_secs().to_string());
        command.arg(kubectl.get_program()).args(kubectl.get_args());
        command
    }

    /// The command `helm` with this kubeconfig, or `None` where Helm is not built, which is noted.
    ///
    /// # Panics
    /// If it is not built and `CI=true`.
    #[must_use]
    pub fn helm_command(&self) -> Option<Command> {
        if !binaries::all(&["helm"]) {
            return None;
        }
        let mut command = Command::new(binaries::path("helm"));
        command.arg("--kubeconfig").arg(self.kubeconfig());
        Some(command)
    }

    /// A line for a shell, with the folder that it begins in, where `kubectl` is this kubectl with
    /// this kubeconfig: as the documents say.
    ///
    /// # Errors
    /// What it wrote to its second output, where it failed.
    ///
    /// # Panics
    /// If the shell cannot be started.
    pub fn try_shell(&self, line: &str, folder: &Path) -> Result<String, String> {
        let kubectl = binaries::path("kubectl");
        let own = kubectl.parent().expect("a file lies in a folder").as_os_str().to_owned();
        let others = std::env::var_os("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.arg("-c").arg(line).current_dir(folder);
        command.env("KUBECONFIG", self.kubeconfig());
        command.env("PATH", [own, others].join(std::ffi::OsStr::new(":")));
        answer(command.stdin(Stdio::null()).output().expect("a shell starts"))
    }

    /// Runs `leasehold` in the name of a service account, `NAMESPACE/NAME`: what it prints.
    ///
    /// # Errors
    /// What it wrote to its second output, where it failed.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn leasehold(&self, account: &str, line: &str) -> Result<String, String> {
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(line.split(' ')).args(["--service-account", account]);
        command.env("KUBECONFIG", self.kubeconfig());
        answer(command.stdin(Stdio::null()).output().expect("it starts"))
    }

    /// Runs kubectl: what it wrote, or what it complained of.
    ///
    /// # Errors
    /// What kubectl wrote to its second output, where it failed, or that it did not end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.bounded_kubectl(arguments);
        answer(command.stdin(Stdio::null()).output().expect("kubectl starts"))
    }

    /// Runs kubectl and returns what it wrote.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let answer = self.try_kubectl(arguments);
        answer.unwrap_or_else(|error| panic!("kubectl {}: {error}", arguments.join(" ")))
    }

    /// Runs kubectl with `input` as its input: `apply -f -`, for instance.
    ///
    /// # Errors
    /// What kubectl wrote to its second output, where it failed, or that it did not end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn try_kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.bounded_kubectl(arguments);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().expect("kubectl starts");
        let mut pipe = child.stdin.take().expect("a pipe");
        // kubectl reads all of its input before it writes anything. Where it has failed before, its
        // complaint says more than the broken pipe.
        let _ = pipe.write_all(input.as_bytes());
        drop(pipe);
        answer(child.wait_with_output().expect("kubectl ends"))
    }

    /// Applies a manifest.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub fn apply(&self, manifest: &str) {
        if let Err(error) = self.try_kubectl_with(&["apply", "-f", "-"], manifest) {
            panic!("kubectl apply: {error}\n{manifest}");
        }
    }

    /// A token of a service account.
    ///
    /// # Errors
    /// What the API server says against it.
    pub async fn token(&self, wanted: TokenFor<'_>) -> Result<String, kube::Error> {
        let bound = wanted.pod.map(|(name, uid)| BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
        });
        let spec = TokenRequestSpec {
            audiences: Some(wanted.audience.into_iter().map(str::to_owned).collect()),
            bound_object_ref: bound,
            expiration_seconds: Some(wanted.seconds),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await, wanted.namespace);
        let answer = accounts
            .create_token_request(wanted.service_account, &Default::default(), &request)
            .await?;
        let token = answer.status.and_then(|status| status.token);
        Ok(token.expect("a granted request has its token"))
    }

    /// Access for the bearer of `token`; its kubeconfig is written to `file`.
    ///
    /// # Panics
    /// If this kubeconfig names no cluster, or `file` cannot be written.
    #[must_use]
    pub fn with_token(&self, token: &str, file: &Path) -> Self {
        let config = Kubeconfig::read_from(self.kubeconfig()).expect("a kubeconfig");
        let cluster = config.clusters.first().and_then(|named| named.cluster.as_ref());
        let cluster = cluster.expect("a kubeconfig that names a cluster");
        let url = cluster.server.as_deref().expect("an API server");
        let authority = cluster.certificate_authority.as_deref().expect("a trusted certificate");
        kubeconfig::write(file, url, Path::new(authority), Speaker::Token(token));
        Self::new(file.to_owned())
    }
}

fn answer(output: Output) -> Result<String, String> {
    let complaint = || String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Some(ENDED_BY_TIMEOUT) => Err(format!("ended after {HANG:?}: {}", complaint())),
        _ => Err(complaint().into_owned()),
    }
}
