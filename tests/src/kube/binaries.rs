//! Where the binaries of Kubernetes, of its neighbours and of Helm are: in the folder that
//! `KUBEBUILDER_ASSETS` names, or else where `make tools` has built them.

use std::path::PathBuf;

use crate::toolbox::{self, Missing};

/// What a control plane is made of.
pub(super) const CONTROL_PLANE: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

/// The binary's path; none if it is not built.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let built = [".cache/kubernetes", ".cache/neighbours", ".cache/helm"]
        .map(|cache| toolbox::root().join(cache));
    let folders = own.into_iter().chain(built);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The binary's path.
///
/// # Panics
/// If it is missing: callers have checked with [`all`] before.
pub(super) fn path(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("no {name}: `make tools` builds it"))
}

/// Whether all of them are there; what is missing is noted for the end of `make test`.
///
/// # Panics
/// If one is missing and `CI=true`.
pub(super) fn all(names: &[&str]) -> bool {
    let missing: Vec<&str> = names.iter().copied().filter(|name| find(name).is_none()).collect();
    if missing.is_empty() {
        return true;
    }
    let why = format!("no {}: `make tools` builds them", missing.join(", "));
    toolbox::leave_out("tests with Kubernetes", &why, Missing::Installable);
    false
}
