//! `make chaos`: see [`tests::chaos`].

use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use tests::chaos;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code after Ctrl-C, as shells count it.
const INTERRUPTED: u8 = 130;
/// Between two looks at the run.
const LOOK: Duration = Duration::from_millis(50);

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
    let mut child = command.arg("--confined").arg(folder.path()).spawn().context("setpriv")?;
    let status = tokio::select! {
        status = ended(&mut child) => status?,
        _ = interrupt.recv() => return given_up(&mut child),
        _ = terminate.recv() => return given_up(&mut child),
    };
    if status.success() {
        println!("chaos: seed {seed}: every promise was kept");
        return Ok(ExitCode::SUCCESS);
    }
    println!("chaos: seed {seed} failed ({status}); again: {again}");
    println!("everything is kept in {}", folder.keep().display());
    Ok(ExitCode::FAILURE)
}

async fn ended(child: &mut Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Ends the run with all its namespaces.
fn given_up(child: &mut Child) -> Result<ExitCode> {
    child.kill()?;
    child.wait()?;
    eprintln!("chaos: interrupted; every process is ended");
    Ok(ExitCode::from(INTERRUPTED))
}
