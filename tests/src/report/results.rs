//! The figures of a report, and their forms: JSON and a table.

use anyhow::Result;
use serde::Serialize;

use super::environment::Environment;
use super::push::Pushes;
use super::row::Row;

/// The version of the JSON: a new number where a field changes its meaning.
const SCHEMA: u32 = 1;
const HEADINGS: [&str; 5] = ["row", "what", "figure", "goal", ""];

/// What a run has measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Results {
    schema: u32,
    #[serde(flatten)]
    pub(super) environment: Environment,
    pub(super) rows: Vec<Row>,
    /// Edits and pushes of peers to as many receivers, in turn.
    pub(super) compared: Vec<Pushes>,
    /// All other arrivals that rows were made from.
    samples: Vec<Pushes>,
    pub(super) by_size: Vec<SizeFigures>,
    pub(super) failures: Vec<String>,
}

/// What a fleet of one size took, in milliseconds; absent where that was not measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SizeFigures {
    pub(super) agents: usize,
    pub(super) connect_ms: Option<f64>,
    pub(super) edit_ms: Option<f64>,
    pub(super) failover_ms: Option<f64>,
}

impl Results {
    pub(super) fn new(
        environment: Environment,
        mut rows: Vec<Row>,
        [compared, samples]: [Vec<Pushes>; 2],
        by_size: Vec<SizeFigures>,
        failures: Vec<String>,
    ) -> Self {
        rows.sort_by_key(Row::row);
        Self { schema: SCHEMA, environment, rows, compared, samples, by_size, failures }
    }

    /// All of it as JSON.
    pub(super) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// The rows as a table for a terminal.
    pub(super) fn table(&self) -> String {
        let cells: Vec<[String; 5]> = self.rows.iter().map(Row::cells).collect();
        let all = || std::iter::once(HEADINGS.map(str::to_owned)).chain(cells.iter().cloned());
        let mut widths = [0; 5];
        for line in all() {
            for (width, cell) in widths.iter_mut().zip(&line) {
                *width = cell.chars().count().max(*width);
            }
        }
        let [row, what, figure, goal, _] = widths;
        let lines = all().map(|[number, name, value, most, met]| {
            let line =
                format!("{number:>row$}  {name:<what$}  {value:>figure$}  {most:>goal$}  {met}");
            line.trim_end().to_owned() + "\n"
        });
        lines.collect()
    }

    /// The rows as a table of Markdown, after where and when they were measured.
    pub(super) fn markdown(&self) -> String {
        let Environment { date, commit, command, build, machine } = &self.environment;
        let mut text = format!(
            "Measured {date} on commit {commit}, {build} build, {} cores, {} MiB of memory, Linux \
             {};\nload before {}, after {}. Command: `{command}`\n\n\
             | row | what | figure | goal | |\n|---|---|---:|---:|---|\n",
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            machine.load_before,
            machine.load_after
        );
        for row in &self.rows {
            text += &format!("| {} |\n", row.cells().join(" | "));
        }
        text
    }
}
