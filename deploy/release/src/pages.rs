//! Manual pages and completions, written from the definitions of the command lines.

use std::path::Path;

use anyhow::Context;
use clap_complete::Shell;

use crate::program::Program;

/// The shells that have completions, and their folders.
pub(crate) const SHELLS: [(Shell, &str); 3] =
    [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

/// Writes a program's manual pages, one for each command, into `folder`/man, and its completions
/// into a folder for each shell of `folder`/completions.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn write(program: Program, folder: &Path) -> anyhow::Result<()> {
    let pages = folder.join("man");
    std::fs::create_dir_all(&pages).context("manual pages")?;
    clap_mangen::generate_to(program.command(), &pages).context("manual pages")?;
    for (shell, name) in SHELLS {
        let completions = folder.join("completions").join(name);
        std::fs::create_dir_all(&completions).context("completions")?;
        let mut command = program.command();
        clap_complete::generate_to(shell, &mut command, program.binary(), &completions)
            .context("completions")?;
    }
    Ok(())
}
