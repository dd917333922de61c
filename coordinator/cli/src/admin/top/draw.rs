//! How `top` draws its screen.

use leasehold_proto::admin::v1::Explanation;
use leasehold_types::counted;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, Wrap};

use super::{Fleet, KEYS, Listed, Screen, View};
use crate::admin::output::{ColumnKind, Grid};
use crate::admin::tint::{self, Tint};

impl Screen {
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, fleet: &Fleet, listed: &Listed) {
        let parts = [Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(Paragraph::new(self.head(fleet)), head);
        self.draw_list(frame, body, &listed.grid);
        if let Some((_, explanation)) = &self.explained {
            draw_explanation(frame, body, explanation);
        }
        let foot_text = match (&self.error, self.types) {
            (Some(error), _) => Line::styled(error.clone(), color(Color::Red)),
            (None, true) => Line::from(format!("/{}", self.filter)),
            (None, false) if !self.filter.is_empty() => {
                Line::from(format!("filter: {}   {KEYS}", self.filter))
            }
            (None, false) => Line::from(KEYS),
        };
        frame.render_widget(Paragraph::new(foot_text), foot);
    }

    fn head(&self, fleet: &Fleet) -> Vec<Line<'static>> {
        let status = &fleet.status;
        let role = match (status.leads, status.leader_address.as_str()) {
            (true, _) => format!("leads term {}", status.epoch),
            (false, "") => "knows no leader".to_owned(),
            (false, leader) => format!("stands by for {leader}"),
        };
        let problems = match status.problems.len() {
            0 => String::new(),
            1 => "; 1 manifest problem".to_owned(),
            count => format!("; {count} manifest problems"),
        };
        let running: u32 = fleet.clusters.iter().map(|cluster| cluster.running).sum();
        // A standby answers with the leader's clusters, and has no agents of its own.
        let agents: u32 = fleet.clusters.iter().map(|cluster| cluster.connected).sum();
        let budget: u64 = fleet.clusters.iter().map(|cluster| u64::from(cluster.max_jobs)).sum();
        let views = View::ALL.iter().enumerate().map(|(at, view)| {
            let title = format!("{} {}", at + 1, view.title());
            if *view == self.view { format!("[{title}]") } else { format!(" {title} ") }
        });
        vec![
            Line::from(format!(
                "{} {role}; {}; {running} of {}{problems}",
                self.address,
                counted(agents, "agent"),
                counted(budget, "job")
            )),
            Line::from(views.collect::<Vec<_>>().join(" ")),
        ]
    }

    fn draw_list(&mut self, frame: &mut Frame<'_>, area: Rect, grid: &Grid) {
        if grid.rows.is_empty() {
            let text = format!("No {}.", self.view.title());
            return frame.render_widget(Paragraph::new(text), area);
        }
        let cell = |text: String, kind: ColumnKind| {
            let text = Text::from(text);
            if kind.is_number() { text.right_aligned() } else { text }
        };
        let body = grid.rows.iter().zip(&grid.tints).map(|(row, tint)| {
            let cells = row.iter().zip(&grid.columns);
            let cells = cells.map(|(text, (_, kind))| cell(text.clone(), *kind));
            Row::new(cells.collect::<Vec<_>>()).style(style_of(*tint))
        });
        let titles = grid.columns.iter().map(|(title, kind)| cell((*title).to_owned(), *kind));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let widths = grid
            .widths
            .iter()
            .map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
        let table = Table::new(body.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
            .header(Row::new(titles.collect::<Vec<_>>()).style(bold))
            .column_spacing(u16::try_from(grid.gap).unwrap_or(u16::MAX))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.table);
    }
}

/// A colour, unless the person wants none.
fn color(color: Color) -> Style {
    if tint::is_wanted() { Style::new().fg(color) } else { Style::new() }
}

fn style_of(tint: Option<Tint>) -> Style {
    match tint {
        Some(Tint::Alarm) => color(Color::Red),
        Some(Tint::Warning) => color(Color::Yellow),
        Some(Tint::Notice) => color(Color::Cyan),
        None => Style::new(),
    }
}

fn draw_explanation(frame: &mut Frame<'_>, area: Rect, explanation: &Explanation) {
    let mut lines =
        vec![Line::styled(explanation.summary.clone(), Style::new().add_modifier(Modifier::BOLD))];
    lines.extend(explanation.facts.iter().map(|fact| Line::from(format!("- {fact}"))));
    if !explanation.next_step.is_empty() {
        lines.push(Line::from(format!("Next: {}", explanation.next_step)));
    }
    let width = usize::from(area.width.saturating_sub(4)).max(1);
    let rows: usize = lines.iter().map(|line| line.width().div_ceil(width).max(1)).sum();
    let height = u16::try_from(rows + 2).unwrap_or(u16::MAX).min(area.height);
    let place = Rect { y: area.y + area.height - height, height, ..area };
    let text = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(Clear, place);
    frame.render_widget(text.block(Block::bordered().title(" Escape closes ")), place);
}
