//! An outcome as tables: the figures of each side, the course of each cluster, and what happened
//! after each event.

mod classes;

use std::time::Duration;

use leasehold_simulation::{
    CLASS_FIGURES, ClusterOutcome, FIGURES, Outcome, PIPELINE_FIGURES, PhaseFigures, Side,
    SideOutcome,
};
use leasehold_types::duration;

use crate::admin::output::{Column, NONE, TableRow, number, table, text as words};

/// The lines that the course of a cluster has.
const COURSE_LINES: usize = 12;

/// The figures of one side.
struct SideRow {
    side: String,
    figures: [String; FIGURES.len()],
}

/// A part of the course: the most jobs that ran and waited on each side.
struct CourseRow {
    until: String,
    budget: String,
    /// The jobs that ran and those that waited, in the order of [`Side::ALL`].
    sides: [[String; 2]; Side::ALL.len()],
}

/// What happened with Leasehold from one event to the next.
struct PhaseRow {
    from: String,
    event: &'static str,
    running_max: u32,
    moves: u64,
    last_move: String,
    last_worker: String,
}

impl TableRow for SideRow {
    const PLURAL: &'static str = "sides";
    const COLUMNS: &'static [Column<Self>] = &[
        words("SIDE", |row| row.side.clone()),
        number(FIGURES[0].0, |row| row.figures[0].clone()),
        number(FIGURES[1].0, |row| row.figures[1].clone()),
        number(FIGURES[2].0, |row| row.figures[2].clone()),
        number(FIGURES[3].0, |row| row.figures[3].clone()),
        number(FIGURES[4].0, |row| row.figures[4].clone()),
        number(FIGURES[5].0, |row| row.figures[5].clone()),
        number(FIGURES[6].0, |row| row.figures[6].clone()),
        number(FIGURES[7].0, |row| row.figures[7].clone()),
        number(FIGURES[8].0, |row| row.figures[8].clone()),
        number(FIGURES[9].0, |row| row.figures[9].clone()),
        number(FIGURES[10].0, |row| row.figures[10].clone()),
        number(FIGURES[11].0, |row| row.figures[11].clone()),
    ];

    fn name(&self) -> String {
        self.side.clone()
    }
}

impl TableRow for CourseRow {
    const PLURAL: &'static str = "parts";
    const COLUMNS: &'static [Column<Self>] = &[
        words("UNTIL", |row| row.until.clone()),
        number("BUDGET", |row| row.budget.clone()),
        number("LEASEHOLD", |row| row.sides[0][0].clone()),
        number("WAIT", |row| row.sides[0][1].clone()),
        number("DEPLOYMENT", |row| row.sides[1][0].clone()),
        number("WAIT", |row| row.sides[1][1].clone()),
        number("AUTOSCALER", |row| row.sides[2][0].clone()),
        number("WAIT", |row| row.sides[2][1].clone()),
    ];

    fn name(&self) -> String {
        self.until.clone()
    }
}

impl TableRow for PhaseRow {
    const PLURAL: &'static str = "phases";
    const COLUMNS: &'static [Column<Self>] = &[
        words("FROM", |row| row.from.clone()),
        words("EVENT", |row| row.event.to_owned()),
        number("PEAK", |row| row.running_max.to_string()),
        number("MOVES", |row| row.moves.to_string()),
        number("LAST MOVE", |row| row.last_move.clone()),
        number("LAST WORKER", |row| row.last_worker.clone()),
    ];

    fn name(&self) -> String {
        self.from.clone()
    }
}

/// The tables of all clusters, classes and pipelines, and what the figures mean.
pub(super) fn text(outcome: &Outcome) -> String {
    let time = duration::format(Duration::from_secs_f64(outcome.simulated_seconds));
    let seed = outcome.seed;
    let (mut text, mut meanings) = (String::new(), Meanings::default());
    for cluster in &outcome.clusters {
        let name = &cluster.cluster;
        if let Some(class) = cluster.class() {
            text += &format!("Class {name}, {time}, seed {seed}:\n\n");
            text += &classes::text(cluster, class);
            meanings.of_classes = &CLASS_FIGURES;
        } else {
            let figures: Vec<SideRow> = cluster.sides.iter().map(side_row).collect();
            text += &format!("Cluster {name}, {time}, seed {seed}:\n\n");
            text += &table(&figures, false);
            text += "\nThe most jobs that ran and waited at once:\n\n";
            text += &table(&course_rows(cluster), false);
            meanings.of_clusters = &FIGURES;
        }
        let phases = phase_rows(cluster);
        if !phases.is_empty() {
            text += "\nWith Leasehold from each event to the next: the most jobs that ran at once, \
                     the moves\nof streams or shares, and when the last one moved, and the last \
                     worker became ready or ended:\n\n";
            text += &table(&phases, false);
        }
        text += "\n";
    }
    if !outcome.pipelines.is_empty() {
        text += &format!("Pipelines, {time}, seed {seed}:\n\n");
        text += &classes::pipelines_text(&outcome.pipelines);
        text += "\n";
        meanings.of_pipelines = &PIPELINE_FIGURES;
    }
    text + &meanings.text()
}

/// Titles of figures, and what they count; empty where there is no such figure.
#[derive(Default)]
struct Meanings {
    of_clusters: &'static [(&'static str, &'static str)],
    of_classes: &'static [(&'static str, &'static str)],
    of_pipelines: &'static [(&'static str, &'static str)],
}

impl Meanings {
    /// A line for each figure, and an empty one between clusters, classes and pipelines.
    fn text(&self) -> String {
        let line = |(title, meaning): &(&str, &str)| format!("  {title:<9} {meaning}\n");
        let all = [self.of_clusters, self.of_classes, self.of_pipelines].into_iter();
        let texts = all.filter(|of| !of.is_empty()).map(|of| of.iter().map(line).collect());
        texts.collect::<Vec<String>>().join("\n")
    }
}

fn side_row(side: &SideOutcome) -> SideRow {
    SideRow { side: side.side.to_string(), figures: side.figures() }
}

/// A row for each event.
fn phase_rows(cluster: &ClusterOutcome) -> Vec<PhaseRow> {
    let side = cluster.sides.iter().find(|side| side.side == Side::Leasehold);
    // The first phase begins with no event.
    let phases = side.into_iter().flat_map(|side| side.phases.iter().skip(1));
    let after = |seconds: Option<f64>| {
        seconds.map_or_else(|| NONE.to_owned(), |seconds| format!("{seconds:.1}s"))
    };
    let row = |phase: &PhaseFigures| PhaseRow {
        from: duration::format(Duration::from_secs_f64(phase.from_seconds)),
        event: phase.event,
        running_max: phase.running_max,
        moves: phase.moves,
        last_move: after(phase.last_move_seconds),
        last_worker: after(phase.last_worker_seconds),
    };
    phases.map(row).collect()
}

fn course_rows(cluster: &ClusterOutcome) -> Vec<CourseRow> {
    let Some(first) = cluster.sides.first() else { return Vec::new() };
    let parts = first.course.budget.len();
    let row = |line: usize| {
        let range = parts * line / COURSE_LINES..parts * (line + 1) / COURSE_LINES;
        let until = first.course.part_seconds * range.end as f64;
        let most = |side: Side| {
            let Some(found) = cluster.sides.iter().find(|found| found.side == side) else {
                return [NONE, NONE].map(str::to_owned);
            };
            let running = found.course.running[range.clone()].iter().max().copied();
            let waiting = found.course.waiting[range.clone()].iter().max().copied();
            [running.unwrap_or(0).to_string(), waiting.unwrap_or(0).to_string()]
        };
        CourseRow {
            until: duration::format_short(Duration::from_secs(until.round() as u64)),
            budget: first.course.budget[range.end - 1].to_string(),
            sides: Side::ALL.map(most),
        }
    };
    (0..COURSE_LINES).map(row).collect()
}

#[cfg(test)]
mod tests {
    use leasehold_simulation::{Course, JobFigures};

    use super::*;

    #[test]
    fn the_course_has_the_most_of_each_part_and_a_dash_for_a_side_that_is_left_out() {
        let course = Course {
            part_seconds: 150.0,
            budget: vec![10; 24],
            running: (0..24).collect(),
            waiting: (0..24).rev().collect(),
            workers: vec![2; 24],
        };
        let jobs = JobFigures { ended: 77, ..JobFigures::default() };
        let phase = |from_seconds, event, last_move_seconds| PhaseFigures {
            from_seconds,
            event,
            running_max: 9,
            moves: 3,
            last_move_seconds,
            last_worker_seconds: None,
        };
        let phases = vec![phase(0.0, "start", None), phase(90.0, "rollout", Some(1.5))];
        let side = Side::Leasehold;
        let side = SideOutcome { side, jobs, streams: None, class: None, course, phases };
        let clusters = vec![ClusterOutcome { cluster: "builds".to_owned(), sides: vec![side] }];
        let pipelines = Vec::new();
        let text = text(&Outcome { seed: 3, simulated_seconds: 3600.0, clusters, pipelines });
        let line = |beginning: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(beginning)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert!(text.starts_with("Cluster builds, 1h, seed 3:\n"), "{text}");
        assert_eq!(line("Leasehold")[1], "77", "{text}");
        assert_eq!(line("5m"), ["5m", "10", "1", "23", "-", "-", "-", "-"], "{text}");
        assert_eq!(line("1h"), ["1h", "10", "23", "1", "-", "-", "-", "-"], "{text}");
        assert_eq!(line("1m30s"), ["1m30s", "rollout", "9", "3", "1.5s", "-"], "{text}");
        assert!(!text.contains("start"), "the start is not an event and has no row: {text}");
        assert_eq!(line("  WASTED")[0], "WASTED", "{text}");
    }
}
