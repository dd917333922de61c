//! Where streams go when one worker leaves or joins: the planner of the coordinator beside the
//! assignors of Kafka's clients, which a JVM runs for as many members and partitions.

use std::path::PathBuf;

use anyhow::Result;
use serde::Deserialize;
use tokio::process::Command;

use super::json_lines::json_lines;
use super::push::median;
use crate::bench::grouped;
use crate::stream_fleet::{StreamFleet, moves_min};
use crate::toolbox::{self, Missing};

/// The program that times Kafka's assignors, and the folder of Kafka's jars, below the root.
const PROGRAM: &str = "tests/tools/kafka/Assignors.java";
const JARS: &str = ".cache/kafka";

/// The size of all assignments: streams of equal weight over settled workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assignments {
    /// The workers before one leaves or joins; at least two.
    pub(super) workers: usize,
    pub(super) streams: usize,
    /// How often each assignment is made.
    pub(super) runs: usize,
}

/// The figures of one assignment.
#[derive(Debug)]
pub(super) struct AssignmentFigures {
    /// The event, and the assignor.
    pub(super) name: String,
    /// The median over all runs.
    pub(super) time_ms: f64,
    /// Streams that move beyond the fewest that give balance; below 0 without balance.
    pub(super) needless_moves: f64,
}

/// What happens to the workers before the assignment.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Event {
    Leaves,
    Joins,
}

/// One assignment, as the program for Kafka's assignors prints it.
#[derive(Debug, Deserialize)]
struct Assignment {
    assignor: String,
    event: Event,
    times_ms: Vec<f64>,
    /// The streams of each worker before the event, the worker that leaves left out.
    owned: Vec<usize>,
    /// The streams that go from one of these workers to another one.
    moved: usize,
}

impl Assignments {
    /// Those of the planner, which runs in this process.
    pub(super) fn plan(self) -> Vec<AssignmentFigures> {
        // Even numbers, so that the worker that joins has a place in the middle, as the member of
        // Kafka's group does.
        let name = |number: usize| format!("worker-{number:08}");
        let names = (0..self.workers).map(|at| name(2 * at));
        let mut settled = StreamFleet::new(names, std::iter::repeat_n(1, self.streams));
        settled.settle(&settled.plan().1);
        let middle = self.workers / 2 * 2;
        let mut left = settled.clone();
        left.change_workers(|names| names.remove(&name(middle)));
        let mut joined = settled;
        joined.change_workers(|names| names.insert(name(middle + 1)));
        let events = [(Event::Leaves, left), (Event::Joins, joined)];
        events.iter().map(|(event, fleet)| self.figures(self.planned(*event, fleet))).collect()
    }

    /// Those of Kafka's assignors; `None` if these are not installed, which is then noted for the
    /// end of `make test`.
    ///
    /// # Errors
    /// If the JVM fails.
    pub(super) async fn ask_kafka(self) -> Result<Option<Vec<AssignmentFigures>>> {
        let Some(java) = java() else {
            let what = "Kafka's assignors in the report of benchmarks";
            let why = "`make tools TOOLS=kafka` installs them";
            toolbox::leave_out(what, why, Missing::Installable);
            return Ok(None);
        };
        let mut command = Command::new(java);
        command.arg("-cp").arg(toolbox::root().join(JARS).join("*"));
        command.arg(toolbox::root().join(PROGRAM));
        command.args([self.workers, self.streams, self.runs].map(|size| size.to_string()));
        let assignments: Vec<Assignment> = json_lines("Kafka's assignors", &mut command).await?;
        let figures = assignments.into_iter().map(|assignment| {
            let assignor = format!("Kafka {}", assignment.assignor);
            self.figures(Assignment { assignor, ..assignment })
        });
        Ok(Some(figures.collect()))
    }

    fn planned(self, event: Event, fleet: &StreamFleet) -> Assignment {
        let mut times_ms = Vec::new();
        let mut moved = 0;
        for _ in 0..self.runs {
            let (time, placements) = fleet.plan();
            times_ms.push(time.as_secs_f64() * 1e3);
            moved = fleet.moved(&placements);
        }
        Assignment { assignor: "planner".to_owned(), event, times_ms, owned: fleet.owned(), moved }
    }

    fn figures(self, assignment: Assignment) -> AssignmentFigures {
        let Assignment { assignor, event, times_ms, owned, moved } = assignment;
        let workers = grouped(self.workers as u64);
        let name = match event {
            Event::Leaves => format!("one of {workers} workers leaves: {assignor}"),
            Event::Joins => format!("one joins {workers} workers: {assignor}"),
        };
        let needless_moves = moved as f64 - moves_min(owned, self.streams) as f64;
        AssignmentFigures { name, time_ms: median(times_ms), needless_moves }
    }
}

/// Java, where its compiler, which a program that is run from its source needs, and the jars are
/// installed, too.
fn java() -> Option<PathBuf> {
    let is_complete = toolbox::on_path("javac").is_some() && toolbox::root().join(JARS).is_dir();
    toolbox::on_path("java").filter(|_| is_complete)
}
