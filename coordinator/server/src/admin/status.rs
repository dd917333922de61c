//! What a replica says of itself, and which others it knows.

use std::sync::Arc;

use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::clock;
use leasehold_driver::port::Handle;
use leasehold_driver::replicas::Replicas;
use leasehold_proto::admin::v1 as proto;

use super::wire;
use crate::other_cells::OtherCells;

/// Where a replica's status is from.
#[derive(Clone, Debug)]
pub(super) struct StatusSource {
    pub(super) handle: Handle,
    pub(super) replicas: Arc<Replicas>,
    pub(super) other_cells: Arc<OtherCells>,
}

impl StatusSource {
    /// The answer to GetStatus.
    pub(super) fn status(&self) -> proto::GetStatusResponse {
        let (epoch, leader_address) = match self.handle.view.leadership() {
            Leadership::Leader(epoch) => (epoch.0, String::new()),
            Leadership::Standby(leader) => {
                (0, leader.map(|leader| leader.address).unwrap_or_default())
            }
        };
        let now = clock::now();
        let (own, cell) = (self.replicas.own(), self.replicas.cell());
        let leader = if epoch > 0 { &own.address } else { &leader_address };
        let replicas = self.replicas.all().into_iter();
        let replicas = replicas.map(|replica| wire::replica(replica, leader)).collect();
        let problems = self.handle.problems();
        let problems = problems.iter().map(|problem| wire::problem(problem, now)).collect();
        proto::GetStatusResponse {
            version: own.version.clone(),
            leads: epoch > 0,
            epoch,
            leader_address,
            sessions: wire::count(self.handle.metrics.sessions()),
            problems,
            replicas,
            address: own.address.clone(),
            cell: cell.as_ref().map_or_else(String::new, |cell| cell.id.to_string()),
            store: cell.map_or_else(String::new, |cell| cell.store.clone()),
            other_cells: self.other_cells.all().into_iter().map(wire::other_cell).collect(),
        }
    }
}
