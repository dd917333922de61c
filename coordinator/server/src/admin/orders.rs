//! The orders that people give. The driver logs and counts those that it takes; the log has those
//! that are refused, too.

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::access::Caller;
use leasehold_driver::log_limit::LogLimit;
use leasehold_driver::order::WorkerOrder;
use leasehold_types::Moment;
use tonic::{Response, Status};
use tracing::Instrument;

use super::Admin;
use super::error::AdminError;

/// The most lines a minute about refused orders of one caller, and of all callers.
const LINES_MAX: usize = 10;
const LINES_TOTAL_MAX: usize = 64;

/// The limit of lines about refused orders, by caller.
pub(super) fn refused_lines() -> LogLimit<String> {
    LogLimit::new(LINES_MAX, LINES_TOTAL_MAX)
}

impl Admin {
    /// Gives an order that `check` allows, if this replica leads. The driver logs and counts it.
    pub(super) async fn order<T: Send + 'static>(
        &self,
        name: &'static str,
        order: WorkerOrder,
        check: impl FnOnce(&Core, Moment) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let refused = order.clone();
        let ordered = self.handle.order(move |core, now| {
            let checked = match core.leadership() {
                Leadership::Leader(_) => check(core, now),
                Leadership::Standby(leader) => Err(AdminError::NotLeading(leader)),
            };
            match checked {
                Ok(answer) => (vec![order], Ok(answer)),
                Err(refused) => (Vec::new(), Err(refused)),
            }
        });
        let span = tracing::debug_span!("admin", call = name);
        let answer = ordered.instrument(span).await.map_err(AdminError::from)?;
        if let Err(why) = &answer {
            self.log_refused(name, &refused, why);
        }
        Ok(Response::new(answer?))
    }

    fn log_refused(&self, call: &'static str, order: &WorkerOrder, why: &AdminError) {
        let WorkerOrder { worker, by, .. } = order;
        // One client has many ports.
        let caller = match by {
            Caller::Address(address) => address.ip().to_string(),
            Caller::User(_) | Caller::Unknown | Caller::Operator => by.to_string(),
        };
        let (cluster, name) = (&worker.cluster, &worker.worker);
        if self.refused_orders.allows(caller) {
            tracing::info!(%cluster, worker = %name, %by, %why, "{call} refused");
        } else {
            tracing::debug!(%cluster, worker = %name, %by, %why, "{call} refused");
        }
    }
}
