//! An agent without a child: it runs until it is drained.

use crate::driver::Door;
use crate::signals::{Asked, Signals, exit_code};

use super::{drain, own_code};

/// Runs until the drain has ended, or a second signal wants no more waiting.
pub(super) async fn run(door: &Door, mut signals: Signals) -> anyhow::Result<u8> {
    let mut draining = false;
    loop {
        tokio::select! {
            outcome = door.ended() => return Ok(own_code(outcome)),
            asked = signals.next() => match asked {
                Asked::End(_) if !draining => {
                    draining = true;
                    drain(door).await;
                }
                Asked::End(signal) | Asked::EndNow(signal) => {
                    tracing::warn!(signal = signal.as_raw(), "told to end at once");
                    return Ok(exit_code(signal));
                }
                Asked::PassOn(signal) => {
                    tracing::debug!(signal = signal.as_raw(), "there is no child to pass it on to");
                }
            },
        }
    }
}
