//! An outcome as one HTML file that needs no other: tables and plots.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use leasehold_types::duration;

use crate::outcome::{ClusterOutcome, FIGURES, Outcome};
use crate::plots;

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
    html += "<h2>Figures</h2>\n<dl>\n";
    for (title, meaning) in FIGURES {
        writeln!(html, "<dt>{title}</dt><dd>{}</dd>", escaped(meaning))?;
    }
    html += "</dl>\n</body></html>\n";
    Ok(html)
}

fn write_cluster(html: &mut String, cluster: &ClusterOutcome) -> Result<()> {
    // Twelve columns are wider than a narrow window.
    let cluster_name = escaped(&cluster.cluster);
    writeln!(html, "<h2>Cluster {cluster_name}</h2>\n<div class=\"figures\"><table>")?;
    html.push_str("<tr><th></th>");
    for (title, meaning) in FIGURES {
        write!(html, "<th title=\"{}\">{title}</th>", escaped(meaning))?;
    }
    html.push_str("</tr>\n");
    for side in &cluster.sides {
        write!(html, "<tr><td>{}</td>", side.side)?;
        for figure in side.figures() {
            write!(html, "<td>{}</td>", escaped(&figure))?;
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
    for plot in plots::draw(cluster)? {
        html.push_str(&plot);
    }
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
        let side = SideOutcome { side: Side::Leasehold, jobs, streams: None, course, phases };
        let sides = vec![side.clone(), SideOutcome { side: Side::Deployment, ..side }];
        let clusters = vec![ClusterOutcome { cluster: "a<b".to_owned(), sides }];
        let outcome = Outcome { seed: 7, simulated_seconds: 180.0, clusters };
        let html = page(&outcome).unwrap();
        assert_eq!(html.matches("<svg").count(), 3, "{html}");
        for part in ["seed 7", "Cluster a&lt;b", "<td>Deployment</td>", "<td>1234</td>"] {
            assert!(html.contains(part), "no {part} in {html}");
        }
        for other in ["<script", "<link", "src="] {
            assert!(!html.contains(other), "{other}: {html}");
        }
    }
}
