//! The plots of a cluster's course, as SVG.

use anyhow::Result;
use plotters::prelude::*;

use crate::chart::{self, COLORS, ROOM};
use crate::outcome::{ClusterOutcome, Side, SideOutcome};

const SIZE: (u32, u32) = (900, 360);
const BUDGET_COLOR: RGBColor = RGBColor(110, 110, 110);

/// One line of a plot: a value for each part of the time.
struct Line {
    name: String,
    color: RGBColor,
    values: Vec<f64>,
}

/// The plots of a cluster: jobs that run beside the budget, jobs that wait, and workers. Of a class
/// it is workers only, beside those that autoscalers were told to have.
///
/// # Errors
/// If one cannot be drawn.
pub(crate) fn draw(cluster: &ClusterOutcome) -> Result<Vec<String>> {
    let Some(first) = cluster.sides.first() else { return Ok(Vec::new()) };
    let part_hours = first.course.part_seconds / 3600.0;
    let values = first.course.budget.iter().map(|budget| f64::from(*budget)).collect();
    let budget = Line { name: "budget".to_owned(), color: BUDGET_COLOR, values };
    let mut plots = Vec::new();
    if budget.values.iter().any(|budget| *budget > 0.0) {
        let running: Vec<Line> = [budget].into_iter().chain(lines(cluster, running)).collect();
        plots.push(plot("Jobs that run, and the budget", "jobs", part_hours, &running)?);
        plots.push(plot("Jobs that wait", "jobs", part_hours, &lines(cluster, waiting))?);
    }
    let mut workers = lines(cluster, workers);
    if let Some(class) = cluster.class() {
        let values = class.workers_wanted.iter().map(|workers| f64::from(*workers)).collect();
        workers.push(Line { name: "wanted".to_owned(), color: BUDGET_COLOR, values });
    }
    plots.push(plot("Workers, those that end included", "workers", part_hours, &workers)?);
    Ok(plots)
}

/// A line for each side.
fn lines(cluster: &ClusterOutcome, values: fn(&SideOutcome) -> Vec<f64>) -> Vec<Line> {
    let line = |side: &SideOutcome| Line {
        name: side.side.to_string(),
        color: color(side.side),
        values: values(side),
    };
    cluster.sides.iter().map(line).collect()
}

fn running(side: &SideOutcome) -> Vec<f64> {
    side.course.running.iter().map(|jobs| f64::from(*jobs)).collect()
}

fn waiting(side: &SideOutcome) -> Vec<f64> {
    side.course.waiting.iter().map(|jobs| *jobs as f64).collect()
}

fn workers(side: &SideOutcome) -> Vec<f64> {
    side.course.workers.iter().map(|workers| f64::from(*workers)).collect()
}

fn color(side: Side) -> RGBColor {
    match side {
        Side::Leasehold => COLORS[0],
        Side::Deployment => COLORS[1],
        Side::Autoscaler => COLORS[2],
    }
}

fn plot(caption: &str, unit: &str, part_hours: f64, lines: &[Line]) -> Result<String> {
    let mut svg = String::new();
    draw_lines(caption, unit, part_hours, lines, &mut svg)?;
    Ok(svg)
}

/// Lines over the time since the start, in hours.
fn draw_lines(
    caption: &str,
    unit: &str,
    part_hours: f64,
    lines: &[Line],
    svg: &mut String,
) -> Result<()> {
    let values = lines.iter().flat_map(|line| line.values.iter().copied());
    let top = values.fold(1.0, f64::max) * ROOM;
    let parts = lines.iter().map(|line| line.values.len()).max().unwrap_or(1);
    let area = chart::area(svg, SIZE)?;
    let mut chart = chart::builder(&area, caption)
        .build_cartesian_2d(0.0..parts as f64 * part_hours, 0.0..top)?;
    chart.configure_mesh().x_desc("hours since the start").y_desc(unit).draw()?;
    for line in lines {
        let point = |(part, value): (usize, &f64)| ((part as f64 + 0.5) * part_hours, *value);
        let points = line.values.iter().enumerate().map(point).collect();
        chart::draw_line(&mut chart, &line.name, line.color, points)?;
    }
    chart::draw_legend(&mut chart, SeriesLabelPosition::UpperRight)?;
    area.present()?;
    Ok(())
}
