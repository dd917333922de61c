//! Times the coordinator's core, turn by turn, with fleets at the declared limits.

#![expect(clippy::disallowed_types, reason = "a benchmark reads the clock")]

mod core_bench;
mod fleet;

use std::time::Duration;

use crate::core_bench::CoreBench;
use crate::fleet::Shape;

const HELP: &str = "\
Times each turn of the coordinator's core (one event and what follows from it) at the limits.

Usage: cargo bench -p leasehold-coordinator-core --bench turns [-- OPTIONS] [FLEET...]

Options:
  --quick    a tenth of everything
  -h, --help print this

Fleets: jobs, slots, thousand, fifty, clusters, fresh (default: all)

Columns:
  turns   how many turns there were of this kind
  median  of them
  p99     of them
  largest the longest of them";

fn main() {
    let mut quick = false;
    let mut wanted = Vec::new();
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            // Cargo passes it to every benchmark.
            "--bench" => {}
            "--quick" => quick = true,
            "-h" | "--help" => return println!("{HELP}"),
            name if Shape::named(name).is_some() => wanted.push(name.to_owned()),
            other => {
                eprintln!("turns: unknown fleet or option {other:?} (try --help)");
                std::process::exit(2);
            }
        }
    }
    for (name, shape) in Shape::ALL {
        if wanted.is_empty() || wanted.iter().any(|arg| arg == name) {
            let shape = if quick { shape.tenth() } else { shape };
            println!("\n{name}: {shape}");
            run(CoreBench::new(shape));
        }
    }
}

/// What happens to each fleet.
fn run(mut bench: CoreBench) {
    bench.desire();
    bench.elect();
    bench.connect();
    bench.wait_for_plans();
    bench.show("failover");
    bench.beat_all(|_| {});
    bench.show("beats with nothing new");
    bench.one_more_job();
    bench.show("one more job");
    bench.give_back_one();
    bench.show("one worker gives all back");
    bench.lose_one();
    bench.show("one worker lost");
    bench.gone_one();
    bench.show("one worker gone");
    bench.edit_one_stream();
    bench.show("one stream removed");
    bench.edit_budget();
    bench.show("one budget edited");
    bench.depose();
    bench.show("deposed");
    let largest = bench.largest;
    println!("  largest turn {}", format_time(largest));
}

fn format_time(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
