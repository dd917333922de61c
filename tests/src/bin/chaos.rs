//! `make chaos`: see [`tests::chaos`].

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use tests::chaos;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code after Ctrl-C, as shells count it.
const INTERRUPTED: u8 = 130;

/// Runs three coordinators and eight agents with their workers under faults: processes are killed
/// and stopped, lines cut, slow and lossy, disks full and slow, manifests edited, workers' names
/// claimed by other agents. A seed decides what happens when. Exits with 0 only if the workers'
/// journals show that every promise was kept.
#[derive(Debug, Parser)]
#[command(name = "chaos", after_help = "Example:\n  chaos --seconds 60 --seed 7")]
struct Cli {
    /// How long faults go on.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// What decides the faults [default: another each time].
    #[arg(long)]
    seed: Option<u64>,
    /// The parent of the run's folder [default: the system's temporary folder].
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Runs in this folder, in the present namespaces: they are the run's own.
    #[arg(long, value_name = "DIR", hide = true)]
    confined: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let seed = cli.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let result = match &cli.confined {
        Some(folder) => inside(seed, cli.seconds, folder),
        None => outside(seed, &cli),
    };
    result.unwrap_or_else(|error| {
        eprintln!("chaos: {error:#}");
        ExitCode::FAILURE
    })
}

fn inside(seed: u64, seconds: u64, folder: &Path) -> Result<ExitCode> {
    let failures = chaos::run(seed, Duration::from_secs(seconds), folder)?;
    for failure in &failures {
        println!("!!! {failure}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[tokio::main(flavor = "current_thread")]
async fn outside(seed: u64, cli: &Cli) -> Result<ExitCode> {
    if let Some(why) = chaos::refusal() {
        anyhow::bail!("no run is possible on this machine: {why}");
    }
    let again = format!("make chaos SECONDS={} SEED={seed}", cli.seconds);
    println!("chaos: seed {seed}, {} s of faults; again: {again}", cli.seconds);
    let parent = cli.work.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("chaos-").tempdir_in(parent)?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut command = chaos::confined(&std::env::current_exe()?);
    command.args(["--seconds", &cli.seconds.to_string(), "--seed", &seed.to_string()]);
    command.arg("--confined").arg(folder.path());
    let mut child = tokio::process::Command::from(command).spawn().context("setpriv")?;
    let status = tokio::select! {
        status = child.wait() => status?,
        _ = interrupt.recv() => return given_up(child).await,
        _ = terminate.recv() => return given_up(child).await,
    };
    if status.success() {
        println!("chaos: seed {seed}: every promise was kept");
        return Ok(ExitCode::SUCCESS);
    }
    println!("chaos: seed {seed} failed ({status}); again: {again}");
    println!("everything is kept in {}", folder.keep().display());
    Ok(ExitCode::FAILURE)
}

/// Ends the run with all its namespaces.
async fn given_up(mut child: Child) -> Result<ExitCode> {
    child.kill().await?;
    eprintln!("chaos: interrupted; every process is ended");
    Ok(ExitCode::from(INTERRUPTED))
}
