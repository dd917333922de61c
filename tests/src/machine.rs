//! Commands that run a program as on another machine, or after a boot of this one. They need the
//! right to mount.

use std::io;
use std::path::Path;
use std::process::Command;

/// Identifies the machine. Where it is missing, its boot does.
const MACHINE: &str = "{ [ ! -e /etc/machine-id ] || mount --bind \"$0\" /etc/machine-id; } && ";
/// Identifies the boot. After it comes the program.
const BOOT: &str = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";

/// A command that runs the program which is its next argument on a machine with another id, in its
/// first boot. Its files are in `folder`.
///
/// # Errors
/// If they cannot be written.
pub fn another(folder: &Path) -> io::Result<Command> {
    command(folder, &[MACHINE, BOOT].concat())
}

/// The same on this machine, as if it had booted since.
///
/// # Errors
/// If its files cannot be written.
pub fn rebooted(folder: &Path) -> io::Result<Command> {
    command(folder, BOOT)
}

fn command(folder: &Path, script: &str) -> io::Result<Command> {
    let (machine, boot) = (folder.join("machine-id"), folder.join("boot-id"));
    std::fs::write(&machine, "0123456789abcdef0123456789abcdef\n")?;
    std::fs::write(&boot, "01234567-89ab-cdef-0123-456789abcdef\n")?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(machine).arg(boot);
    Ok(command)
}
