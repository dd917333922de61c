//! Debian packages, one for each program. What goes where is in the programs' `Cargo.toml`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::architecture::Architecture;
use crate::archive;
use crate::compiler::Compiler;
use crate::program::Program;
use crate::run;

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
    let tool = compiler.root.join(".cache/bin/cargo-deb");
    if !tool.is_file() {
        bail!("cargo-deb is not installed: run `make tools TOOLS=packaging`");
    }
    // The tool takes paths of files that are built from the folder of the program.
    let staged = compiler.folder(program, architecture).join("package");
    if staged.exists() {
        std::fs::remove_dir_all(&staged).context("the package's files")?;
    }
    stage(compiler, program, pages, &staged)?;
    let profile = match compiler.profile_of(program) {
        // The tool takes no other name of it.
        "dev" => "debug",
        other => other,
    };
    run(Command::new(tool)
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
    let units = compiler.root.join("deploy/systemd");
    let prefix = match program {
        Program::Coordinator => "coordinator",
        Program::Agent => "agent",
        Program::CommandLine => return Ok(()),
    };
    let examples = staged.join("examples");
    std::fs::create_dir_all(&examples).context("examples")?;
    for name in crate::file_names(&units)? {
        let source = units.join(&name);
        if name == format!("{}@.service", program.binary()) {
            let text = std::fs::read_to_string(&source).with_context(|| name.clone())?;
            std::fs::write(staged.join(&name), text.replace(LOCAL, INSTALLED)).context(name)?;
        } else if name.starts_with(prefix) {
            std::fs::copy(&source, examples.join(&name)).context(name)?;
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
