//! The plots of a report, as SVG.

use anyhow::Result;
use leasehold_simulation::chart::{self, COLORS, ROOM};
use plotters::prelude::*;

use super::push::{Push, Pushes};
use super::results::{Results, SizeFigures};

const SIZE: (u32, u32) = (900, 540);
/// The least that an axis of times shows, in milliseconds: an axis without length has no points.
const MS_MIN: f64 = 1.0;

/// A group of bars: its name, and its figure of a push.
type BarGroup = (&'static str, fn(&Push) -> f64);

/// What is drawn of each push.
const FIGURES: [BarGroup; 3] = [("first", Push::first), ("p50", Push::middle), ("all", Push::all)];
/// A group's width on the axis; its name stands at its centre.
const GROUP_WIDTH: f64 = 2.0;
const BAR_WIDTH: f64 = 0.5;

/// A line of the plot over sizes: its name, and its figure of a fleet.
type SizeLine = (&'static str, fn(&SizeFigures) -> Option<f64>);

/// What a fleet takes at each size.
const SIZE_LINES: [SizeLine; 3] = [
    ("connect and first grant", |figures| figures.connect_ms),
    ("kill -9 of the leader, all renewed", |figures| figures.failover_ms),
    ("edit of every pool, all agents", |figures| figures.edit_ms),
];

/// Each plot that these results have something for: its file's name and its text.
///
/// # Errors
/// If a plot cannot be drawn.
pub(super) fn draw(results: &Results) -> Result<Vec<(&'static str, String)>> {
    let mut plots = Vec::new();
    if !results.compared.is_empty() {
        let mut svg = String::new();
        draw_push(&results.compared, &mut svg)?;
        plots.push(("push.svg", svg));
        let mut svg = String::new();
        draw_distribution(&results.compared, &mut svg)?;
        plots.push(("distribution.svg", svg));
    }
    if results.by_size.iter().any(|figures| figures.connect_ms.is_some()) {
        let mut svg = String::new();
        draw_sizes(&results.by_size, &mut svg)?;
        plots.push(("sizes.svg", svg));
    }
    Ok(plots)
}

/// First, p50 and all of each peer, the median over all rounds.
fn draw_push(compared: &[Pushes], svg: &mut String) -> Result<()> {
    let top = compared.iter().map(|pushes| pushes.median(Push::all)).fold(MS_MIN, f64::max);
    let area = chart::area(svg, SIZE)?;
    let width = FIGURES.len() as f64 * GROUP_WIDTH;
    let mut chart = chart::builder(&area, "One push: first, p50 and all receivers")
        .build_cartesian_2d(0.0..width, 0.0..top * ROOM)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(FIGURES.len() * 2 + 1)
        .x_label_formatter(&|at: &f64| group_name(*at))
        .y_desc("ms")
        .draw()?;
    for (index, (pushes, color)) in compared.iter().zip(COLORS).enumerate() {
        let bars = FIGURES.iter().enumerate().map(|(group, (_, figure))| {
            let bars_width = BAR_WIDTH * compared.len() as f64;
            let left = GROUP_WIDTH * (group as f64 + 0.5) - bars_width / 2.0;
            let left = left + BAR_WIDTH * index as f64;
            let corners = [(left, 0.0), (left + BAR_WIDTH, pushes.median(figure))];
            Rectangle::new(corners, color.filled())
        });
        chart
            .draw_series(bars)?
            .label(pushes.name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], color.filled()));
    }
    chart::draw_legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
    area.present()?;
    Ok(())
}

/// The name of the group whose centre is here.
fn group_name(at: f64) -> String {
    let centre = |group: usize| GROUP_WIDTH * (group as f64 + 0.5);
    let group = (0..FIGURES.len()).find(|group| (centre(*group) - at).abs() < 0.01);
    group.map_or_else(String::new, |group| FIGURES[group].0.to_owned())
}

/// The share of receivers that have the message, over time, in the last round.
fn draw_distribution(compared: &[Pushes], svg: &mut String) -> Result<()> {
    let last = |pushes: &Pushes| pushes.rounds_ms.last().cloned();
    let rounds: Vec<(String, Push)> =
        compared.iter().filter_map(|pushes| Some((pushes.name.clone(), last(pushes)?))).collect();
    let end = rounds.iter().map(|(_, push)| push.all()).fold(MS_MIN, f64::max);
    let area = chart::area(svg, SIZE)?;
    let mut chart = chart::builder(&area, "Receivers that one push has reached")
        .build_cartesian_2d(0.0..end * ROOM, 0.0..100.0_f64)?;
    chart.configure_mesh().x_desc("ms after the edit").y_desc("% of the receivers").draw()?;
    for ((name, push), color) in rounds.into_iter().zip(COLORS) {
        let receivers = push.times().len() as f64;
        let share = |(index, at): (usize, &f64)| (*at, (index + 1) as f64 / receivers * 100.0);
        let points = push.times().iter().enumerate().map(share).collect();
        chart::draw_line(&mut chart, &name, color, points)?;
    }
    chart::draw_legend(&mut chart, SeriesLabelPosition::LowerRight)?;
    area.present()?;
    Ok(())
}

/// What a fleet takes over the number of its agents; times are logarithmic.
fn draw_sizes(sizes: &[SizeFigures], svg: &mut String) -> Result<()> {
    let points = |of: fn(&SizeFigures) -> Option<f64>| -> Vec<(f64, f64)> {
        let point = |figures: &SizeFigures| Some((figures.agents as f64, of(figures)?.max(MS_MIN)));
        sizes.iter().filter_map(point).collect()
    };
    let all = SIZE_LINES.iter().flat_map(|(_, of)| points(*of));
    let top = all.map(|(_, ms)| ms).fold(MS_MIN, f64::max);
    let most = sizes.iter().map(|figures| figures.agents).max().unwrap_or(1) as f64;
    let area = chart::area(svg, SIZE)?;
    // A whole power of ten, so that the axis has at least two labels.
    let end = 10_f64.powf(top.log10().floor() + 1.0);
    let mut chart = chart::builder(&area, "Time over the number of agents")
        .build_cartesian_2d(0.0..most * ROOM, (MS_MIN..end).log_scale())?;
    chart
        .configure_mesh()
        .x_label_formatter(&|agents: &f64| format!("{agents:.0}"))
        .y_label_formatter(&|ms: &f64| format!("{ms:.0}"))
        .x_desc("agents")
        .y_desc("ms")
        .draw()?;
    for ((name, of), color) in SIZE_LINES.iter().zip(COLORS) {
        let points = points(*of);
        let dots = points.iter().map(|point| Circle::new(*point, 4, color.filled()));
        chart.draw_series(dots)?;
        chart::draw_line(&mut chart, name, color, points)?;
    }
    chart::draw_legend(&mut chart, SeriesLabelPosition::LowerRight)?;
    area.present()?;
    Ok(())
}
