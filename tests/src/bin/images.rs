//! Packs the coordinator's and the agent's images without a container builder: `make images`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use tests::kube::{Program, architecture_of, pack};

/// Packs both programs into archives that `ctr images import` and `docker load` read.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folders of the programs; of each the first that is found for an architecture is taken.
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
        let mut found = BTreeMap::new();
        let paths = programs.iter().map(|folder| folder.join(program.binary()));
        for path in paths.filter(|path| path.is_file()) {
            let architecture = architecture_of(&path);
            let architecture = architecture.with_context(|| path.display().to_string())?;
            found.entry(architecture).or_insert_with(|| program.image(&path));
        }
        anyhow::ensure!(!found.is_empty(), "no {} in {programs:?}", program.binary());
        let images: Vec<_> = found.iter().map(|(name, image)| (*name, image)).collect();
        let archive = archives.join(program.binary()).with_extension("tar");
        pack(&images, &archive);
        let megabytes = std::fs::metadata(&archive)?.len() / 1_000_000;
        let names = found.keys().copied().collect::<Vec<_>>().join(", ");
        let (archive, reference) = (archive.display(), program.reference());
        println!("    {archive} ({megabytes} MB): {reference} ({names})");
    }
    Ok(())
}
