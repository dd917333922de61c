//! Manual pages and completions, written from the definitions of the command lines.

use std::path::Path;

use anyhow::Context;
use clap_complete::Shell;
use leasehold_kube_api::names::IMAGES;

use crate::program::Program;

/// The shells that have completions, and their folders.
pub(crate) const SHELLS: [(Shell, &str); 3] =
    [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];

/// Writes a program's manual pages, one for each command, into `folder`/man, and its completions
/// into a folder for each shell of `folder`/completions. The pages name the images in `images`.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn write(program: Program, images: &str, folder: &Path) -> anyhow::Result<()> {
    let pages = folder.join("man");
    std::fs::create_dir_all(&pages).context("manual pages")?;
    clap_mangen::generate_to(program.command(), &pages).context("manual pages")?;
    for name in crate::file_names(&pages)? {
        let page = pages.join(&name);
        let text = std::fs::read_to_string(&page).with_context(|| name.clone())?;
        std::fs::write(&page, text.replace(IMAGES, images)).context(name)?;
    }
    for (shell, name) in SHELLS {
        let completions = folder.join("completions").join(name);
        std::fs::create_dir_all(&completions).context("completions")?;
        let mut command = program.command();
        let name = program.binary();
        let written = clap_complete::generate_to(shell, &mut command, name, &completions)
            .context("completions")?;
        if shell == Shell::Bash {
            // It loads the completions of a command from the file with the command's name.
            std::fs::rename(written, completions.join(name)).context("completions")?;
        }
    }
    Ok(())
}
