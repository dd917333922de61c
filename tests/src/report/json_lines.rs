//! Programs in other languages that compute something for the report: each prints lines of JSON.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use tokio::process::Command;
use tokio::time::timeout;

/// A program that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs the command, which `what` names in errors: the value of each line that it prints.
///
/// # Errors
/// If it does not start, fails, takes longer than [`PATIENCE`], or prints anything else.
pub(super) async fn json_lines<T: DeserializeOwned>(
    what: &str,
    command: &mut Command,
) -> Result<Vec<T>> {
    let output = timeout(PATIENCE, command.kill_on_drop(true).output()).await;
    let output = output.with_context(|| format!("{what}: not done after {} s", PATIENCE.as_secs()));
    let output = output?.with_context(|| what.to_owned())?;
    let complained = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: {}: {complained}", output.status);
    let text = String::from_utf8(output.stdout).with_context(|| what.to_owned())?;
    let value = |line: &str| serde_json::from_str(line).with_context(|| format!("{what}: {line}"));
    text.lines().map(value).collect()
}
