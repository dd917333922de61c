//! `make bench`: see [`tests::report`].

use std::process::ExitCode;

use clap::Parser;
use tests::bench;
use tests::process::is_given_up;
use tests::report::{self, Options};

/// The exit code after Ctrl-C, as shells count it.
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let ended = match options.broadcast {
        Some(address) => report::serve_broadcast(address).await.map(|()| ExitCode::SUCCESS),
        None => {
            let given_up = bench::given_up();
            // What is given up is dropped, and ends all that it has started.
            tokio::select! {
                ended = report::run(&options) => ended,
                _ = given_up => return ExitCode::from(INTERRUPTED),
            }
        }
    };
    ended.unwrap_or_else(|error| {
        if !is_given_up() {
            eprintln!("bench_report: {error:#}");
        }
        ExitCode::FAILURE
    })
}
