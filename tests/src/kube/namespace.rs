//! A namespace of a cluster: how tests make one, apply objects to it, read them and wait for them.

use std::fmt::{Display, Formatter};
use std::ops::Deref;

use serde_json::Value;

use super::access::Access;
use crate::process::until_ok;

/// A namespace, which can be used as its name.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// The way into its cluster.
    pub access: Access,
    name: String,
}

impl Namespace {
    /// The namespace of this name, which is there.
    #[must_use]
    pub fn existing(access: &Access, name: &str) -> Self {
        Self { access: access.clone(), name: name.to_owned() }
    }

    /// Creates one of this name.
    ///
    /// # Panics
    /// If the API server refuses it.
    #[must_use]
    pub fn create(access: &Access, name: &str) -> Self {
        access.kubectl(&["create", "namespace", name]);
        Self::existing(access, name)
    }

    /// Creates one whose name begins with `prefix` and is new.
    ///
    /// # Panics
    /// If the API server refuses it.
    #[must_use]
    pub fn create_with_prefix(access: &Access, prefix: &str) -> Self {
        Self::create(access, &format!("{prefix}-{:06x}", fastrand::u32(..0x100_0000)))
    }

    /// Waits until pods can be created.
    ///
    /// # Panics
    /// If they cannot for a long time.
    pub fn wait_for_account(&self) {
        self.kubectl(&["wait", "--for=create", "serviceaccount/default", "--timeout=180s"]);
    }

    /// Runs kubectl in the namespace: what it wrote, or what it complained of.
    ///
    /// # Errors
    /// What kubectl complained of.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.access.try_kubectl(&self.within(arguments))
    }

    /// Runs kubectl in the namespace.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.access.kubectl(&self.within(arguments))
    }

    /// Runs kubectl in the namespace with a manifest for its input: `create`, for instance.
    ///
    /// # Errors
    /// What kubectl complained of.
    pub fn try_kubectl_with(
        &self,
        arguments: &[&str],
        manifest: &(impl Display + ?Sized),
    ) -> Result<String, String> {
        let arguments = [arguments, &["--filename=-"]].concat();
        self.access.try_kubectl_with(&self.within(&arguments), &manifest.to_string())
    }

    /// Applies a manifest, which may be refused.
    ///
    /// # Errors
    /// What kubectl complained of.
    pub fn try_apply(&self, manifest: &(impl Display + ?Sized)) -> Result<String, String> {
        self.try_kubectl_with(&["apply"], manifest)
    }

    /// Applies a manifest.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub fn apply(&self, manifest: &(impl Display + ?Sized)) {
        if let Err(error) = self.try_apply(manifest) {
            panic!("kubectl apply: {error}\n{manifest}");
        }
    }

    /// An object as it is; none while it cannot be had.
    #[must_use]
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.access.objects().get(self, kind, name).ok()
    }

    /// Waits until an object is as `wanted` says.
    ///
    /// # Panics
    /// If it is not for a long time; shows the object.
    pub fn wait_for(&self, what: &str, kind: &str, name: &str, wanted: impl Fn(&Value) -> bool) {
        until_ok(what, || {
            let object = self.access.objects().get(self, kind, name)?;
            if wanted(&object) { Ok(()) } else { Err(format!("{kind} {name} is\n{object:#}")) }
        });
    }

    /// The reasons of the events so far, with spaces between them.
    #[must_use]
    pub fn event_reasons(&self) -> String {
        self.kubectl(&["get", "events", "--output=jsonpath={.items[*].reason}"])
    }

    /// The pods that are not about to end.
    #[must_use]
    pub fn pods(&self) -> Vec<Value> {
        let pods = self.all_pods().into_iter();
        pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect()
    }

    /// The pods, those that are about to end, too.
    ///
    /// # Panics
    /// If the API server does not answer.
    #[must_use]
    pub fn all_pods(&self) -> Vec<Value> {
        self.access.objects().list(self, "pods").expect("a list")
    }

    fn within<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["--namespace", &*self.name], arguments].concat()
    }
}

impl Deref for Namespace {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl Display for Namespace {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
