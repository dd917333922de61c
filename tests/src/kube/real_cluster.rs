//! A control plane with real nodes: pods are containers here, with addresses, Services and mounted
//! tokens.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use leasehold_release::Image;

use super::access::Access;
use super::binaries;
use super::bridge::Bridge;
use super::control_plane::{ControlPlane, NetworkLocation};
use super::guard::{Guard, Leftover};
use super::machine;
use super::node::Node;
use crate::toolbox;

/// How many run at once, beside those that tests share: a kubelet has six instances of inotify, an
/// API server four, and Linux gives a user 128 (`fs.inotify.max_user_instances`).
const AT_ONCE: usize = 2;

/// A control plane and its real nodes.
#[derive(Debug)]
pub struct RealCluster {
    // Before the control plane, whose guard ends what a node has left.
    nodes: Vec<Node>,
    plane: ControlPlane,
    bridge: Bridge,
    // The last to go: another one may start then.
    _turn: Option<Turn>,
}

/// One of those that run at once.
#[derive(Debug)]
struct Turn;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

impl Turn {
    /// Waits for one.
    fn take() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = ENDED.wait_while(running, |running| *running >= AT_ONCE);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

impl RealCluster {
    /// Starts one with one node, or `None` if this machine lacks or forbids something, which is
    /// then noted for the end of `make test`. While others of other tests run it may wait.
    ///
    /// # Panics
    /// If it does not come up, though the machine has and allows everything.
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_in(Some(Turn::take()))
    }

    fn start_in(turn: Option<Turn>) -> Option<Self> {
        if !binaries::all(&binaries::CONTROL_PLANE) {
            return None;
        }
        if let Err((missing, why)) = machine::allows_nodes() {
            toolbox::leave_out("tests on a real node", &why, missing);
            return None;
        }
        let bridge = Bridge::choose();
        let guard = Guard::start();
        guard.leave(Leftover::Bridge(&bridge.name()));
        bridge.create().expect("allowed a moment ago");
        let site = NetworkLocation { address: bridge.address(), services: bridge.services() };
        let plane = ControlPlane::start_at(site, guard)?;
        let mut cluster = Self { nodes: Vec::new(), plane, bridge, _turn: turn };
        cluster.add_node();
        Some(cluster)
    }

    /// Starts one that tests share, which waits for no other.
    pub(super) fn start_shared() -> Option<Self> {
        Self::start_in(None)
    }

    /// The real cluster of this test binary, started when it is first asked for; none as with
    /// [`Self::start`]. It ends with the process.
    ///
    /// # Panics
    /// As [`Self::start`] does.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<RealCluster>> = OnceLock::new();
        SHARED.get_or_init(Self::start_shared).as_ref()
    }

    /// Starts one more node; there is room for six.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn add_node(&mut self) {
        let number = u8::try_from(self.nodes.len() + 1).expect("few nodes");
        self.nodes.push(Node::start(&self.plane, &self.bridge, number));
    }

    /// The control plane.
    #[must_use]
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The network interface that the API server and the nodes are at.
    #[must_use]
    pub fn bridge(&self) -> String {
        self.bridge.name()
    }

    /// The nodes, in the order in which they joined.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The administrator's way in.
    #[must_use]
    pub fn access(&self) -> &Access {
        self.plane.access()
    }

    /// Makes an image known to all nodes, to be used with `imagePullPolicy: Never`.
    ///
    /// # Panics
    /// If a node does not take it.
    pub fn load(&self, image: &Image) {
        for node in &self.nodes {
            node.load(image);
        }
    }
}
