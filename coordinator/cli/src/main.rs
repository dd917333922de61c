//! The program `leasehold`.

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold_cli::run(std::env::args_os())
}
