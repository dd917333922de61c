//! An agent without a child. By itself it runs until it is drained; a sidecar until it gets a
//! signal to end.

use crate::api::Server;
use crate::driver::DriverHandle;
use crate::signals::{SignalAction, Signals, exit_code};

use super::{drain, own_code};

/// Runs until the drain has ended, or a second signal wants no more waiting. `drain_ordered` is as in
/// [`own_code`].
pub(super) async fn run(driver: &DriverHandle, mut signals: Signals, drain_ordered: bool) -> u8 {
    let mut draining = false;
    loop {
        tokio::select! {
            outcome = driver.ended() => return own_code(outcome, drain_ordered),
            asked = signals.next() => match asked {
                SignalAction::Shutdown(_) if !draining => {
                    draining = true;
                    drain(driver).await;
                }
                SignalAction::Shutdown(signal) | SignalAction::Quit(signal) => {
                    tracing::warn!(signal = signal.as_raw(), "second signal: the agent ends now");
                    return exit_code(signal);
                }
                SignalAction::Forward(_) => {}
            },
        }
    }
}

/// Runs until a signal ends it, and then ends at once: either its worker has ended before, or
/// only the agent is replaced and the worker runs on. A successor reads the journal; without one,
/// the platform's word that the worker is gone frees what it held.
///
/// The `first` agent of a pod may never get the signal: its process is the first of its container,
/// and the kernel drops a SIGTERM that comes before it is handled. A pod that is deleted then would
/// wait for the whole of its grace period. But its coordinator has the agent drain, and no worker
/// was started before a kubelet saw the agent live: so one without any connection ends with its
/// drain.
pub(super) async fn run_sidecar(
    driver: &DriverHandle,
    mut signals: Signals,
    server: &Server,
    first: bool,
) -> u8 {
    let mut without_worker = first;
    loop {
        tokio::select! {
            outcome = driver.superseded() => return own_code(outcome, false),
            outcome = driver.ended(), if without_worker => {
                without_worker = !server.had_connections();
                if without_worker {
                    tracing::info!("the agent ends: its worker was never started");
                    return own_code(outcome, false);
                }
            }
            asked = signals.next() => match asked {
                SignalAction::Shutdown(signal) => {
                    let signal = signal.as_raw();
                    tracing::info!(signal, "the agent ends; its journal stays for the next agent");
                    return 0;
                }
                SignalAction::Quit(signal) => return exit_code(signal),
                SignalAction::Forward(_) => {}
            },
        }
    }
}
