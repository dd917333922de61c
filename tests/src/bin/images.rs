//! Packs the coordinator's and the agent's images without a container builder: `make images`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use tests::kube::Program;

/// Packs both programs into archives that `ctr images import` and `docker load` read.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folders of the programs; of each the first that is found is taken.
    #[arg(long, required = true)]
    programs: Vec<PathBuf>,
    /// The folder that the archives are written to.
    #[arg(long)]
    archives: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let Arguments { programs, archives } = Arguments::parse();
    std::fs::create_dir_all(&archives)?;
    for program in Program::ALL {
        let mut paths = programs.iter().map(|folder| folder.join(program.binary()));
        let path = paths.find(|path| path.is_file());
        let path = path.with_context(|| format!("no {} in {programs:?}", program.binary()))?;
        let image = program.image(&path);
        let archive = archives.join(program.binary()).with_extension("tar");
        image.pack(&archive);
        let bytes = std::fs::metadata(&archive)?.len();
        println!("    {} ({} MB): {}", archive.display(), bytes / 1_000_000, image.reference());
    }
    Ok(())
}
