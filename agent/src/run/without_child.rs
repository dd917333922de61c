//! An agent without a child. It runs until it is drained; a sidecar runs until it gets a signal.

use crate::api::Server;
use crate::driver::DriverHandle;
use crate::signals::{SignalAction, Signals, exit_code};

use super::{drain, own_code};

/// Runs until the drain has ended or a second signal arrives. `drain_ordered` is as in
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
                    tracing::warn!(signal = signal.as_raw(), "second signal: the agent exits now");
                    return exit_code(signal);
                }
                SignalAction::Forward(_) => {}
            },
        }
    }
}

/// Runs until a signal arrives, and then exits at once: either its worker has already exited, or
/// only the agent is replaced and the worker keeps running. A successor reads the journal. Without
/// a successor, the platform reports that the worker is gone, which frees what it held.
///
/// The `first` agent of a pod may never get the signal: it is PID 1 of its container, and the
/// kernel drops a SIGTERM that arrives before the handler is installed. A pod that is deleted at
/// that moment would wait for its whole grace period. But the coordinator orders a drain then, and
/// no worker starts before a kubelet has probed the agent. So an agent that had no connection exits
/// when the drain has ended.
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
                    tracing::info!("the agent exits: its worker was never started");
                    return own_code(outcome, false);
                }
            }
            asked = signals.next() => match asked {
                SignalAction::Shutdown(signal) => {
                    let signal = signal.as_raw();
                    tracing::info!(signal, "the agent exits; its journal stays for the next agent");
                    return 0;
                }
                SignalAction::Quit(signal) => return exit_code(signal),
                SignalAction::Forward(_) => {}
            },
        }
    }
}
