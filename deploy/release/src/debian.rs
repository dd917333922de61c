//! Debian packages, one for each program. What goes where is in the programs' `Cargo.toml`.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::architecture::Architecture;
use crate::archive;
use crate::compiler::Compiler;
use crate::program::Program;
use crate::{run, tool, tracked};

/// The tool.
pub(crate) const TOOL: &str = "cargo-deb";
/// The folder of the units and their settings.
pub(crate) const UNITS: &str = "deploy/systemd";
/// Where programs are that no package installed, as the units have it.
const LOCAL: &str = "/usr/local/bin/leasehold";
/// Where packages install them.
const INSTALLED: &str = "/usr/bin/leasehold";

/// Writes the package of a compiled program into `folder`; `pages` has its manual pages and
/// completions.
///
/// # Errors
/// If the tool is not installed or fails.
pub(crate) fn write(
    compiler: &Compiler,
    program: Program,
    architecture: Architecture,
    pages: &Path,
    time_s: u64,
    folder: &Path,
) -> anyhow::Result<()> {
    // The tool takes paths of files that are built from the folder of the program.
    let staged = compiler.folder(program, architecture).join("package");
    if staged.exists() {
        std::fs::remove_dir_all(&staged).context("the package's files")?;
    }
    stage(compiler, program, pages, &staged)?;
    let profile = compiler.profile_of(program);
    run(Command::new(tool(&compiler.root, TOOL)?)
        .args(["--quiet", "--no-build", "--no-strip", "--package", program.package()])
        .args(["--target", architecture.target(), "--profile", profile])
        .arg("--output")
        .arg(folder)
        .env("SOURCE_DATE_EPOCH", time_s.to_string())
        .current_dir(&compiler.root))
}

/// Copies what the package has beside the program, manual pages compressed, as Debian has them.
fn stage(compiler: &Compiler, program: Program, pages: &Path, staged: &Path) -> anyhow::Result<()> {
    copy_tree(pages, staged)?;
    let manual = staged.join("man");
    for name in crate::file_names(&manual)? {
        let page = manual.join(&name);
        archive::gzip(&std::fs::read(&page)?, &manual.join(format!("{name}.gz")))?;
        std::fs::remove_file(page)?;
    }
    let prefix = match program {
        Program::Coordinator => "coordinator",
        Program::Agent => "agent",
        Program::CommandLine => return Ok(()),
    };
    let examples = staged.join("examples");
    std::fs::create_dir_all(&examples).context("examples")?;
    for path in tracked(&compiler.root, UNITS)? {
        let name = path.rsplit('/').next().unwrap_or(&path);
        let source = compiler.root.join(&path);
        if name == format!("{}@.service", program.binary()) {
            let text = std::fs::read_to_string(&source).with_context(|| path.clone())?;
            std::fs::write(staged.join(name), text.replace(LOCAL, INSTALLED)).context(path)?;
        } else if name.starts_with(prefix) {
            std::fs::copy(&source, examples.join(name)).context(path)?;
        }
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target).with_context(|| target.display().to_string())?;
        }
    }
    Ok(())
}
