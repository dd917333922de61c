//! The tables of classes and pipelines: their figures, and the course of the workers.

use std::time::Duration;

use leasehold_simulation::{
    CLASS_FIGURES, ClassFigures, ClusterOutcome, PIPELINE_FIGURES, PipelineFigures,
};
use leasehold_types::duration;

use super::COURSE_LINES;
use crate::admin::output::{Column, TableRow, number, table, text as words};

/// The figures of a class.
struct ClassRow {
    figures: [String; CLASS_FIGURES.len()],
}

/// A part of the course of a class.
struct WorkersRow {
    until: String,
    workers: u32,
    wanted: u32,
}

/// The figures of a pipeline.
struct PipelineRow {
    pipeline: String,
    figures: [String; PIPELINE_FIGURES.len()],
}

impl TableRow for ClassRow {
    const PLURAL: &'static str = "classes";
    const COLUMNS: &'static [Column<Self>] = &[
        number(CLASS_FIGURES[0].0, |row| row.figures[0].clone()),
        number(CLASS_FIGURES[1].0, |row| row.figures[1].clone()),
        number(CLASS_FIGURES[2].0, |row| row.figures[2].clone()),
        number(CLASS_FIGURES[3].0, |row| row.figures[3].clone()),
        number(CLASS_FIGURES[4].0, |row| row.figures[4].clone()),
    ];

    fn name(&self) -> String {
        self.figures[0].clone()
    }
}

impl TableRow for WorkersRow {
    const PLURAL: &'static str = "parts";
    const COLUMNS: &'static [Column<Self>] = &[
        words("UNTIL", |row| row.until.clone()),
        number("WORKERS", |row| row.workers.to_string()),
        number("WANTED", |row| row.wanted.to_string()),
    ];

    fn name(&self) -> String {
        self.until.clone()
    }
}

impl TableRow for PipelineRow {
    const PLURAL: &'static str = "pipelines";
    const COLUMNS: &'static [Column<Self>] = &[
        words("PIPELINE", |row| row.pipeline.clone()),
        number(PIPELINE_FIGURES[0].0, |row| row.figures[0].clone()),
        number(PIPELINE_FIGURES[1].0, |row| row.figures[1].clone()),
        number(PIPELINE_FIGURES[2].0, |row| row.figures[2].clone()),
        number(PIPELINE_FIGURES[3].0, |row| row.figures[3].clone()),
        number(PIPELINE_FIGURES[4].0, |row| row.figures[4].clone()),
    ];

    fn name(&self) -> String {
        self.pipeline.clone()
    }
}

/// The figures of a class, and the course of its workers.
pub(super) fn text(cluster: &ClusterOutcome, class: &ClassFigures) -> String {
    let Some(side) = cluster.sides.first() else { return String::new() };
    let row = ClassRow { figures: class.figures() };
    let parts = side.course.workers.len();
    let part = |line: usize| {
        let range = parts * line / COURSE_LINES..parts * (line + 1) / COURSE_LINES;
        let until = side.course.part_seconds * range.end as f64;
        let most = |values: &[u32]| values[range.clone()].iter().max().copied().unwrap_or(0);
        WorkersRow {
            until: duration::format_short(Duration::from_secs(until.round() as u64)),
            workers: most(&side.course.workers),
            wanted: most(&class.workers_wanted),
        }
    };
    let course: Vec<WorkersRow> = (0..COURSE_LINES).map(part).collect();
    let figures = table(&[row], false);
    let course = table(&course, false);
    format!("{figures}\nThe most workers at once, and the most that were wanted:\n\n{course}")
}

/// The figures of pipelines.
pub(super) fn pipelines_text(pipelines: &[PipelineFigures]) -> String {
    let row = |figures: &PipelineFigures| PipelineRow {
        pipeline: figures.pipeline.clone(),
        figures: figures.figures(),
    };
    table(&pipelines.iter().map(row).collect::<Vec<_>>(), false)
}

#[cfg(test)]
mod tests {
    use leasehold_simulation::{Course, JobFigures, Outcome, Side, SideOutcome};

    use super::*;

    #[test]
    fn a_class_has_its_workers_beside_those_that_are_wanted_and_no_jobs() {
        let course = Course {
            part_seconds: 300.0,
            budget: vec![0; 12],
            running: vec![0; 12],
            waiting: vec![0; 12],
            workers: (1..=12).collect(),
        };
        let workers_wanted = (1..=12).rev().collect();
        let class = ClassFigures {
            moves: 5,
            utilization: 0.5,
            workers_max: 12,
            workers_wanted,
            ..ClassFigures::default()
        };
        let jobs = JobFigures::default();
        let (side, class, phases) = (Side::Leasehold, Some(class), Vec::new());
        let side = SideOutcome { side, jobs, streams: None, class, course, phases };
        let clusters = vec![ClusterOutcome { cluster: "blue".to_owned(), sides: vec![side] }];
        let pipelines = vec![PipelineFigures {
            pipeline: "first".to_owned(),
            documents: 3600,
            documents_beyond_shares: 12,
            unserved_seconds: 4.5,
            unserved_max_seconds: 3.0,
            moves: 2,
        }];
        let outcome = Outcome { seed: 3, simulated_seconds: 3600.0, clusters, pipelines };
        let text = super::super::text(&outcome);
        let has = |words: &[&str]| {
            text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == words)
        };
        assert!(text.starts_with("Class blue, 1h, seed 3:\n"), "{text}");
        assert!(has(&["12", "50.0%", "0.0%", "0", "5"]), "{text}");
        assert!(has(&["5m", "1", "12"]) && has(&["1h", "12", "1"]), "{text}");
        assert!(has(&["first", "3600", "12", "4.5s", "3.0s", "2"]), "{text}");
        assert!(text.contains("  UNSERVED ") && !text.contains("WASTED"), "{text}");
    }
}
