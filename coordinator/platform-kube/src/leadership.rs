//! Whether this replica leads, as a watch channel for the tasks that only a leader runs.

use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::history::FleetChange;
use leasehold_driver::port::Handle;
use tokio::sync::{broadcast, watch};

/// Follows the driver until the receiver is dropped or the driver has ended.
pub(super) fn watch_leadership(handle: Handle) -> watch::Receiver<bool> {
    let (sender, leads) = watch::channel(false);
    tokio::spawn(follow(handle, sender));
    leads
}

async fn follow(handle: Handle, sender: watch::Sender<bool>) {
    let Ok(mut changes) = handle.watch() else { return };
    loop {
        let asked = handle.ask(|core, _| matches!(core.leadership(), Leadership::Leader(_)));
        let Ok(leads) = asked.await else { return };
        sender.send_if_modified(|last| std::mem::replace(last, leads) != leads);
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = sender.closed() => return,
            };
            match change.as_ref().map(|recorded| &recorded.change) {
                Ok(FleetChange::Notice(Notice::Elected(_) | Notice::Deposed(_)))
                | Err(broadcast::error::RecvError::Lagged(_)) => break,
                Ok(
                    FleetChange::Notice(_)
                    | FleetChange::Ordered(_)
                    | FleetChange::Manifests { .. },
                ) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }
}
