//! An agent without a child. It runs until it is drained; a sidecar runs until it gets a signal.

use crate::driver::DriverHandle;
use crate::signals::{SignalAction, Signals, exit_code};

use super::{drain, own_code};

/// Runs until the drain has ended or a second signal arrives. `drain_ordered` is as in
/// [`own_code`].
pub(super) async fn run(driver: &DriverHandle, signals: &mut Signals, drain_ordered: bool) -> u8 {
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
pub(super) async fn run_sidecar(driver: &DriverHandle, signals: &mut Signals) -> u8 {
    loop {
        tokio::select! {
            outcome = driver.superseded() => return own_code(outcome, false),
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
