//! The report of `make bench`: every figure that has a goal, measured in one run on one machine,
//! as a table, as JSON and as plots. `docs/PERFORMANCE.md` explains the rows.
//!
//! **Invariant**: peers are measured in the run that they are compared in, in turn with the edits.

mod assignors;
mod broadcast;
mod dapr;
mod document;
mod environment;
mod etcd;
mod fleet;
mod json_lines;
mod measurement;
mod options;
mod plots;
mod push;
mod results;
mod rollout;
mod row;
mod shares;
mod sizes;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

pub use self::broadcast::serve as serve_broadcast;
use self::environment::Environment;
use self::measurement::Measurement;
pub use self::options::Options;
use self::results::Results;
use crate::toolbox;

/// Measures what the options ask for, prints the report, and writes its files. It fails if a
/// measurement did; a missed goal is shown and fails nothing.
///
/// # Errors
/// If a file cannot be written, or the document has no place for the table.
pub async fn run(options: &Options) -> Result<ExitCode> {
    // A program that was not built shows now and not after the first fleet.
    let _ = ["leasehold-coordinator", "leasehold-agent"].map(toolbox::binary);
    if let Some(path) = &options.document {
        document::check(path)?;
    }
    let environment = Environment::now();
    println!("{}", environment.heading());
    let mut measurement = Measurement::new(options);
    measurement.run().await;
    let results = measurement.results(environment.ended());
    println!("\n{}", results.table());
    results.failures.iter().for_each(|failure| println!("!!! {failure}"));
    let folder = options.folder();
    write_files(&results, &folder).with_context(|| folder.display().to_string())?;
    if let Some(path) = &options.document {
        document::rewrite(path, &results)?;
        println!("==> {}", path.display());
    }
    Ok(if results.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_files(results: &Results, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let json = folder.join("report.json");
    std::fs::write(&json, results.json()?)?;
    println!("==> {}", json.display());
    for (name, svg) in plots::draw(results)? {
        let path = folder.join(name);
        std::fs::write(&path, svg)?;
        println!("==> {}", path.display());
    }
    Ok(())
}
