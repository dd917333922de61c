//! Times the coordinator's core, turn by turn, with fleets at the declared limits.

#![expect(clippy::disallowed_types, reason = "a benchmark reads the clock")]

mod fleet;
mod stage;

use std::time::Duration;

use crate::fleet::Shape;
use crate::stage::Stage;

const HELP: &str = "\
Times each turn of the coordinator's core (one event and what follows from it) at the limits.

Usage: cargo bench -p leasehold-coordinator-core --bench turns [-- OPTIONS] [FLEET...]

Options:
  --quick    a tenth of everything
  -h, --help print this

Fleets: jobs, thousand, fifty, clusters, fresh (default: all)

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
        if wanted.is_empty() || wanted.iter().any(|it| it == name) {
            let shape = if quick { shape.tenth() } else { shape };
            println!("\n{name}: {shape}");
            story(Stage::new(shape));
        }
    }
}

/// What happens to each fleet.
fn story(mut stage: Stage) {
    stage.desire();
    stage.elect();
    stage.connect();
    stage.wait_for_plans();
    stage.show("failover");
    stage.beat_all(|_| {});
    stage.show("beats with nothing new");
    stage.one_more_job();
    stage.show("one more job");
    stage.give_back_one();
    stage.show("one worker gives all back");
    stage.lose_one();
    stage.show("one worker lost");
    stage.gone_one();
    stage.show("one worker gone");
    stage.edit_one_stream();
    stage.show("one stream removed");
    stage.edit_budget();
    stage.show("one budget edited");
    stage.depose();
    stage.show("deposed");
    let largest = stage.largest;
    println!("  largest turn {}", format_time(largest));
}

fn format_time(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
