//! An agent without a child: it runs until it is drained, or lingers until it is told to end.

use crate::driver::{Command, Door, Outcome};
use crate::signals::{Asked, Signals, exit_code};

use super::{drain, own_code};

/// Runs until the drain has ended, or a second signal wants no more waiting. With `linger` a drain
/// that no signal began ends nothing: the first signal does, at once.
pub(super) async fn run(door: &Door, mut signals: Signals, linger: bool) -> anyhow::Result<u8> {
    let mut draining = false;
    let mut lingers = false;
    loop {
        tokio::select! {
            outcome = door.ended(), if !lingers => {
                let drained = matches!(outcome, Ok(Outcome::Drained { .. }));
                lingers = linger && drained && !draining && is_empty(door).await;
                if !lingers {
                    return Ok(own_code(outcome));
                }
                tracing::info!("it stays until it is told to end");
            }
            asked = signals.next() => match asked {
                Asked::End(_) | Asked::EndNow(_) if lingers => return Ok(0),
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

/// Whether nothing is held. What outlived its drain is a successor's to tell of: this agent speaks
/// to no coordinator any more.
async fn is_empty(door: &Door) -> bool {
    let lease = door.ask(|reply| Command::Peek { reply }).await;
    lease.is_ok_and(|lease| lease.pool.running == 0 && lease.streams.is_empty())
}
