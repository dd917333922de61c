//! Packs the coordinator's and the agent's images without a container builder: `make images`.

use std::path::PathBuf;

use clap::Parser;
use tests::kube::Program;

/// Packs both programs into archives that `ctr images import` and `docker load` read.
#[derive(Debug, Parser)]
struct Arguments {
    /// The folder of the programs.
    #[arg(long)]
    programs: PathBuf,
    /// The folder that the archives are written to.
    #[arg(long)]
    archives: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let Arguments { programs, archives } = Arguments::parse();
    std::fs::create_dir_all(&archives)?;
    for program in Program::ALL {
        let image = program.image(&programs.join(program.binary()));
        let archive = archives.join(program.binary()).with_extension("tar");
        image.pack(&archive);
        let bytes = std::fs::metadata(&archive)?.len();
        println!("    {} ({} MB): {}", archive.display(), bytes / 1_000_000, image.reference());
    }
    Ok(())
}
