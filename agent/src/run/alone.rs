//! An agent without a child. By itself it runs until it is drained; a sidecar until it is told to
//! end.

use crate::driver::Door;
use crate::signals::{Asked, Signals, exit_code};

use super::{drain, own_code};

/// Runs until the drain has ended, or a second signal wants no more waiting.
pub(super) async fn run(door: &Door, mut signals: Signals) -> u8 {
    let mut draining = false;
    loop {
        tokio::select! {
            outcome = door.ended() => return own_code(outcome),
            asked = signals.next() => match asked {
                Asked::End(_) if !draining => {
                    draining = true;
                    drain(door).await;
                }
                Asked::End(signal) | Asked::EndNow(signal) => {
                    tracing::warn!(signal = signal.as_raw(), "told to end at once");
                    return exit_code(signal);
                }
                Asked::PassOn(_) => {}
            },
        }
    }
}

/// Runs until it is told to end, and then ends at once: either its worker has ended before, or
/// only the agent is replaced and the worker runs on. The journal tells a successor; without one,
/// the platform's word that the worker is gone frees what it held.
pub(super) async fn stay(door: &Door, mut signals: Signals) -> u8 {
    loop {
        tokio::select! {
            outcome = door.superseded() => return own_code(outcome),
            asked = signals.next() => match asked {
                Asked::End(signal) => {
                    tracing::info!(signal = signal.as_raw(), "told to end; the journal stays");
                    return 0;
                }
                Asked::EndNow(signal) => return exit_code(signal),
                Asked::PassOn(_) => {}
            },
        }
    }
}
