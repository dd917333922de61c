//! What this machine has and allows for a real node. What is missing is found before anything is
//! started.

use std::path::PathBuf;
use std::process::Command;

use super::binaries;
use super::bridge::{Bridge, run};
use crate::toolbox::{self, Missing};

/// What a real node is made of beside Kubernetes' own binaries.
const PROGRAMS: [&str; 9] =
    ["containerd", "ctr", "runc", "ip", "nft", "nsenter", "setpriv", "unshare", "sh"];

/// Why there can be no real node here.
pub(super) type Reason = (Missing, String);

/// Whether a real node can be started.
pub(super) fn allows_nodes() -> Result<(), Reason> {
    let forbidden = |why: String| (Missing::Forbidden, why);
    if !rustix::process::geteuid().is_root() {
        return Err(forbidden("it needs root".to_owned()));
    }
    let binaries = ["kubelet", "kube-proxy", "pause", "coredns"];
    let mut lacking: Vec<&str> =
        binaries.into_iter().filter(|name| binaries::find(name).is_none()).collect();
    lacking.extend(PROGRAMS.into_iter().filter(|name| toolbox::on_path(name).is_none()));
    if network_plugins().is_none() {
        lacking.push("containernetworking-plugins");
    }
    if !lacking.is_empty() {
        let why = format!("no {}: `make tools` installs them", lacking.join(", "));
        return Err((Missing::Installable, why));
    }
    if control_group_hierarchies().is_empty() {
        return Err(forbidden("no control groups".to_owned()));
    }
    // Each step that the kernel or a sandbox may refuse, tried and undone.
    let namespaces = ["--mount", "--net", "--pid", "--fork"];
    let tries = "mount -t tmpfs tmpfs /run && mount -t proc proc /proc && ip link set lo up && \
                 nft add table ip leasehold";
    let mut unshare = Command::new("unshare");
    run(unshare.args(namespaces).args(["sh", "-c", tries])).map_err(forbidden)?;
    let bridge = Bridge::choose();
    bridge.create().and_then(|()| bridge.remove()).map_err(forbidden)?;
    for hierarchy in control_group_hierarchies() {
        let group = hierarchy.join(bridge.name());
        let tried = std::fs::create_dir(&group).and_then(|()| std::fs::remove_dir(&group));
        tried.map_err(|error| forbidden(format!("{}: {error}", group.display())))?;
    }
    Ok(())
}

/// Where Debian, or else the plugins' own releases, put the network plugins.
pub(super) fn network_plugins() -> Option<PathBuf> {
    let folders = ["/usr/lib/cni", "/opt/cni/bin"].map(PathBuf::from);
    let needed = ["ptp", "host-local", "loopback"];
    folders.into_iter().find(|folder| needed.iter().all(|plugin| folder.join(plugin).is_file()))
}

/// Where control groups are made: one folder, or with their first version one for each kind.
pub(super) fn control_group_hierarchies() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mut found = Vec::new();
    for mount in mounts.lines() {
        let mut fields = mount.split(' ').skip(1);
        if let (Some(place), Some("cgroup" | "cgroup2")) = (fields.next(), fields.next()) {
            found.push(PathBuf::from(place));
        }
    }
    found
}
