//! What all plots as SVG have in common, here and in the report of `make bench`: colours, the room
//! for captions and labels, lines, and the box with their names.

use anyhow::Result;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;

const MARGIN: i32 = 16;
const CAPTION_SIZE: i32 = 20;
const LABEL_WIDTH: i32 = 70;
const LABEL_HEIGHT: i32 = 45;

/// The colours of what is compared, in its order.
pub const COLORS: [RGBColor; 3] =
    [RGBColor(31, 119, 180), RGBColor(255, 127, 14), RGBColor(44, 160, 44)];
/// How far beyond the highest value an axis goes.
pub const ROOM: f64 = 1.1;

/// The area of a plot.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A plot over such an area.
pub type Chart<'a, C> = ChartContext<'a, SVGBackend<'a>, C>;

/// A white area of this width and height in pixels, which is written into `svg`.
///
/// # Errors
/// If it cannot be drawn.
pub fn area(svg: &mut String, size: (u32, u32)) -> Result<Area<'_>> {
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area)
}

/// Begins a plot with a caption, and room for the labels of its axes.
pub fn builder<'a, 's>(
    area: &'a Area<'s>,
    caption: &str,
) -> ChartBuilder<'a, 'static, SVGBackend<'s>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(caption, ("sans-serif", CAPTION_SIZE))
        .margin(MARGIN)
        .x_label_area_size(LABEL_HEIGHT)
        .y_label_area_size(LABEL_WIDTH);
    builder
}

/// Draws a line through these points, which the legend has under this name.
///
/// # Errors
/// If it cannot be drawn.
pub fn draw_line<X, Y>(
    chart: &mut Chart<'_, Cartesian2d<X, Y>>,
    name: &str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .draw_series(LineSeries::new(points, color.stroke_width(2)))?
        .label(name)
        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], color));
    Ok(())
}

/// Draws the names of what was drawn, in a box over the plot.
///
/// # Errors
/// If they cannot be drawn.
pub fn draw_legend<C: CoordTranslate>(
    chart: &mut Chart<'_, C>,
    position: SeriesLabelPosition,
) -> Result<()> {
    let mut labels = chart.configure_series_labels();
    labels.position(position);
    labels.background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    Ok(())
}
