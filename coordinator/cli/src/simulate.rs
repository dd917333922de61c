//! `leasehold simulate`: people's own manifests with a description of their load, by the real cores
//! in simulated time, and beside them what Deployments make of the same load.

mod tables;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use leasehold_manifest::folder::{self, MANIFEST_BYTES_MAX, Unreadable};
use leasehold_manifest::proposal::{propose, scope_of};
use leasehold_manifest::{Problem, Reading};
use leasehold_simulation::{Load, LoadFile, page, simulate};
use leasehold_types::flag;

use crate::admin::output::print;
use crate::manifest_files;

/// The most bytes of a file of durations.
const CSV_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Problems that are shown at once.
const PROBLEMS_SHOWN_MAX: usize = 20;

/// Options of `simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It asks no coordinator and changes nothing. The real cores of a coordinator and its agents run in
simulated time; beside them it shows what a plain Deployment with a fixed pool for each pod, and one
with a HorizontalPodAutoscaler, make of the same jobs; of pipelines it shows for how long they are
not served. The same files and seed have the same result. docs/SIMULATE.md says what the file of a
load has, and what is left out.

Examples:
  leasehold simulate -f deploy/simulations/builds/manifests.yaml \\
      --load deploy/simulations/builds/load.yaml
  leasehold simulate -f manifests/ --load load.yaml --report simulation.html
  leasehold simulate -f deploy/simulations/documents/manifests.yaml \\
      --load deploy/simulations/documents/load.yaml
  leasehold simulate -f manifests/ --load load.yaml --seed 7 -o json")]
pub(crate) struct Args {
    /// The manifests: a file, or a folder with the folders below it
    #[arg(short, long, value_name = "FILE|FOLDER")]
    filename: PathBuf,
    /// The load: which jobs and documents come, how long jobs run, and what happens to the fleet
    #[arg(short, long, value_name = "FILE")]
    load: PathBuf,
    /// Another number draws other arrivals and run times
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = flag::number::<u64>(0..=u64::MAX, "a seed", 7))]
    seed: u64,
    /// Write a report with plots into this file: HTML that needs no other file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: SimulationFormat,
}

/// A form of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SimulationFormat {
    /// Tables of figures, and of the course
    #[default]
    Table,
    /// All figures and the course as JSON
    Json,
}

/// Runs `leasehold simulate`.
///
/// # Errors
/// What is wrong with the manifests or the load, and what cannot be read or written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let load = read_load(args)?;
    // A path that is wrong is named before the simulation, which may take minutes.
    let report = args.report.as_deref().map(Report::create).transpose()?;
    let outcome = simulate(&load, args.seed)?;
    if let Some(report) = report {
        report.write(&page(&outcome)?)?;
    }
    print(&match args.output {
        SimulationFormat::Table => tables::text(&outcome),
        SimulationFormat::Json => serde_json::to_string(&outcome)? + "\n",
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The file of a report.
struct Report<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Report<'a> {
    fn create(path: &'a Path) -> anyhow::Result<Self> {
        let file = File::create(path).map_err(|error| Self::unwritable(path, &error))?;
        Ok(Self { path, file })
    }

    fn write(mut self, html: &str) -> anyhow::Result<()> {
        let written = self.file.write_all(html.as_bytes());
        written.map_err(|error| Self::unwritable(self.path, &error))
    }

    fn unwritable(path: &Path, error: &io::Error) -> anyhow::Error {
        anyhow!("--report {}: cannot be written ({error}): name another file", path.display())
    }
}

/// Reads the manifests and the load, and the files that these name.
fn read_load(args: &Args) -> anyhow::Result<Load> {
    let manifests = manifest_files::read(&args.filename)?;
    let scope = scope_of(&manifests.texts);
    let Reading { desired, problems, .. } = propose(&Arc::default(), &manifests.texts, scope);
    if !problems.is_empty() {
        bail!("-f {}{}", args.filename.display(), shown(&problems));
    }
    let path = args.load.display();
    let wrong = |problems: Vec<Problem>| anyhow!("--load {path}{}", shown(&problems));
    let text =
        read_text(&args.load, MANIFEST_BYTES_MAX).with_context(|| format!("--load {path}"))?;
    let name = args.load.file_name().map_or_else(String::new, |name| name.display().to_string());
    let file = LoadFile::read(&name, &text).map_err(wrong)?;
    let folder = args.load.parent().unwrap_or(Path::new(""));
    let mut csv = BTreeMap::new();
    for name in file.csv_files() {
        let text = read_text(&folder.join(name), CSV_BYTES_MAX)
            .with_context(|| format!("--load {path}: csv.file {name}"))?;
        csv.insert(name.to_owned(), text);
    }
    file.resolve(&desired.unwrap_or_default(), &csv).map_err(wrong)
}

fn read_text(path: &Path, bytes_max: u64) -> anyhow::Result<String> {
    let text = folder::read_text(Path::new(""), path, bytes_max);
    text.map_err(|unreadable| match unreadable {
        Unreadable::Io(..) => anyhow!("{unreadable}: correct the path"),
        Unreadable::TooLarge(_) => {
            anyhow!("is larger than {bytes_max} bytes: keep a part of it")
        }
        Unreadable::NotText(at) => {
            anyhow!("is not UTF-8 from line {} on: save it as UTF-8", at.line)
        }
        Unreadable::Other(why) => anyhow!(why),
    })
}

/// Problems as the end of an error, a line each.
fn shown(problems: &[Problem]) -> String {
    let lines = problems.iter().take(PROBLEMS_SHOWN_MAX).map(|problem| format!("\n  {problem}"));
    let left = problems.len().saturating_sub(PROBLEMS_SHOWN_MAX);
    let more = if left > 0 { format!("\n  and {left} more") } else { String::new() };
    format!(": correct these values:{}{more}", lines.collect::<String>())
}
