//! An outcome as one HTML file that needs no other: tables and plots.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use leasehold_types::duration;

use crate::class_record::CLASS_FIGURES;
use crate::outcome::{ClusterOutcome, FIGURES, Outcome, PIPELINE_FIGURES};
use crate::plots;
use crate::served_shares::PipelineFigures;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
                     color:#222;background:#fff}table{border-collapse:collapse}td,th{padding:.2rem \
                     .7rem;border-bottom:1px solid #ddd;text-align:right}td:first-child,\
                     th:first-child{text-align:left}svg{max-width:100%;height:auto;display:block;\
                     margin:1rem 0}.figures{overflow-x:auto}dt{font-weight:bold}";

/// The file.
///
/// # Errors
/// If a plot cannot be drawn.
pub fn page(outcome: &Outcome) -> Result<String> {
    let time = duration::format(Duration::from_secs_f64(outcome.simulated_seconds));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Leasehold: simulation</title><style>{STYLE}</style></head><body>\n\
         <h1>Simulation of {time}, seed {}</h1>\n",
        outcome.seed
    );
    for cluster in &outcome.clusters {
        write_cluster(&mut html, cluster)?;
    }
    if !outcome.pipelines.is_empty() {
        html += "<h2>Pipelines</h2>\n";
        let row = |figures: &PipelineFigures| (figures.pipeline.clone(), figures.figures().into());
        write_table(&mut html, &PIPELINE_FIGURES, outcome.pipelines.iter().map(row))?;
    }
    html += "<h2>Figures</h2>\n<dl>\n";
    for (title, meaning) in figures_of(outcome) {
        writeln!(html, "<dt>{title}</dt><dd>{}</dd>", escaped(meaning))?;
    }
    html += "</dl>\n</body></html>\n";
    Ok(html)
}

/// What is explained: the figures of what there is.
fn figures_of(outcome: &Outcome) -> Vec<(&'static str, &'static str)> {
    let is_class = |cluster: &ClusterOutcome| cluster.class().is_some();
    let mut figures = Vec::new();
    if !outcome.clusters.iter().all(is_class) {
        figures.extend(FIGURES);
    }
    if outcome.clusters.iter().any(is_class) {
        figures.extend(CLASS_FIGURES);
    }
    if !outcome.pipelines.is_empty() {
        figures.extend(PIPELINE_FIGURES);
    }
    figures
}

fn write_cluster(html: &mut String, cluster: &ClusterOutcome) -> Result<()> {
    let cluster_name = escaped(&cluster.cluster);
    if let Some(class) = cluster.class() {
        writeln!(html, "<h2>Class {cluster_name}</h2>")?;
        let row = ("Leasehold".to_owned(), class.figures().into());
        write_table(html, &CLASS_FIGURES, std::iter::once(row))?;
    } else {
        writeln!(html, "<h2>Cluster {cluster_name}</h2>")?;
        let rows = cluster.sides.iter().map(|side| (side.side.to_string(), side.figures().into()));
        write_table(html, &FIGURES, rows)?;
    }
    for plot in plots::draw(cluster)? {
        html.push_str(&plot);
    }
    Ok(())
}

/// A table of figures: titles with what they count, and rows with a name and a text for each.
fn write_table(
    html: &mut String,
    figures: &[(&str, &str)],
    rows: impl Iterator<Item = (String, Vec<String>)>,
) -> Result<()> {
    // Twelve columns are wider than a narrow window.
    html.push_str("<div class=\"figures\"><table>\n<tr><th></th>");
    for (title, meaning) in figures {
        write!(html, "<th title=\"{}\">{title}</th>", escaped(meaning))?;
    }
    html.push_str("</tr>\n");
    for (name, texts) in rows {
        write!(html, "<tr><td>{}</td>", escaped(&name))?;
        for text in texts {
            write!(html, "<td>{}</td>", escaped(&text))?;
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
    Ok(())
}

/// A text in HTML, also in an attribute between quotation marks.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            other => html.push(other),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class_record::ClassFigures;
    use crate::outcome::{Side, SideOutcome};
    use crate::record::{Course, JobFigures};

    #[test]
    fn a_page_has_each_cluster_with_its_figures_and_plots_and_needs_no_other_file() {
        let course = Course {
            part_seconds: 60.0,
            budget: vec![4; 3],
            running: vec![0, 3, 4],
            waiting: vec![0, 0, 7],
            workers: vec![2; 3],
        };
        let jobs = JobFigures { ended: 1234, ..JobFigures::default() };
        let phases = Vec::new();
        let side = Side::Leasehold;
        let side = SideOutcome { side, jobs, streams: None, class: None, course, phases };
        let sides = vec![side.clone(), SideOutcome { side: Side::Deployment, ..side.clone() }];
        let mut course = side.course.clone();
        course.budget = vec![0; 3];
        let class = ClassFigures {
            utilization: 0.375,
            workers_wanted: vec![1; 3],
            ..ClassFigures::default()
        };
        let of_class = SideOutcome { class: Some(class), course, ..side };
        let clusters = vec![
            ClusterOutcome { cluster: "a<b".to_owned(), sides },
            ClusterOutcome { cluster: "blue".to_owned(), sides: vec![of_class] },
        ];
        let pipelines = vec![PipelineFigures {
            pipeline: "first".to_owned(),
            documents: 987,
            documents_beyond_shares: 0,
            unserved_seconds: 1.5,
            unserved_max_seconds: 1.0,
            moves: 2,
        }];
        let outcome = Outcome { seed: 7, simulated_seconds: 180.0, clusters, pipelines };
        let html = page(&outcome).unwrap();
        assert_eq!(html.matches("<svg").count(), 4, "three, and the workers of the class: {html}");
        for part in [
            "seed 7",
            "Cluster a&lt;b",
            "<td>Deployment</td>",
            "<td>1234</td>",
            "Class blue",
            "<td>37.5%</td>",
            "wanted",
            "<td>first</td><td>987</td>",
            "<dt>UNSERVED</dt>",
        ] {
            assert!(html.contains(part), "no {part} in {html}");
        }
        for other in ["<script", "<link", "src="] {
            assert!(!html.contains(other), "{other}: {html}");
        }
    }
}
