//! Commands that ask a coordinator what runs where, and the few orders that people give, over its
//! admin API.

pub(crate) mod dashboard;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod lists;
pub(crate) mod orders;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod version;

mod connection;
mod fetch;
mod find;
mod keepalive;
mod kubernetes;
mod paged;
mod replicas;
mod rows;
mod tint;
mod words;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use self::connection::{ConnectionArgs, Coordinator};

/// The interval between two looks of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs what asks a coordinator; ends early on Ctrl-C.
///
/// # Errors
/// Those of `command`, or that no coordinator answers.
fn run(
    connection: &ConnectionArgs,
    command: impl AsyncFnOnce(Coordinator) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start")?;
    runtime.block_on(async {
        let asked = async {
            let coordinator = Coordinator::connect(connection).await?;
            command(coordinator).await
        };
        tokio::select! {
            ended = asked => ended,
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
        }
    })
}

/// Prints what `look` sees: once, or again and again.
///
/// # Errors
/// Those of `look`, or that stdout cannot be written.
async fn show(
    coordinator: &mut Coordinator,
    watch: bool,
    look: impl AsyncFn(&mut Coordinator) -> anyhow::Result<String>,
) -> anyhow::Result<ExitCode> {
    if !watch {
        output::print(&look(coordinator).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut is_first = true;
    loop {
        output::redraw(&look(coordinator).await?, is_first)?;
        is_first = false;
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}
