//! `leasehold top`: the fleet on the full screen, as it changes.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use leasehold_proto::admin::v1::{
    Cluster, Explanation, GetStatusResponse, Pipeline, StreamSet, Worker,
};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};
use ratatui::{DefaultTerminal, Frame};

use super::connection::{ConnectionArgs, Coordinator};
use super::explain::{Subject, explanation_of};
use super::output::{ColumnKind, Grid, TableRow};
use super::{fetch, run};

/// The interval between two looks at the fleet.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two looks at the keyboard.
const KEY_INTERVAL: Duration = Duration::from_millis(30);
/// The keys, for the last line.
const KEYS: &str = "1-4 or Tab: view   ↑↓: select   e or Enter: explain   /: filter   q: quit";

/// Options of `top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys: 1 to 4 or Tab for clusters, workers, stream sets and pipelines; the arrows or j and k select;
e or Enter explains what is selected; / filters by a part of the name; q or Escape leaves.

Example:
  leasehold top")]
pub(crate) struct Args {
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Clusters,
    Workers,
    Sets,
    Pipelines,
}

impl View {
    const ALL: [Self; 4] = [Self::Clusters, Self::Workers, Self::Sets, Self::Pipelines];

    fn title(self) -> &'static str {
        match self {
            Self::Clusters => Cluster::PLURAL,
            Self::Workers => Worker::PLURAL,
            Self::Sets => StreamSet::PLURAL,
            Self::Pipelines => Pipeline::PLURAL,
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|view| *view == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// The fleet as it was seen last.
#[derive(Debug, Default)]
struct Fleet {
    status: GetStatusResponse,
    clusters: Vec<Cluster>,
    workers: Vec<Worker>,
    sets: Vec<StreamSet>,
    pipelines: Vec<Pipeline>,
}

/// What the list shows: the rows, and what an explanation of each is asked for.
struct Listed {
    grid: Grid,
    subjects: Vec<Subject>,
}

/// What the person has chosen.
struct Screen {
    view: View,
    table: TableState,
    filter: String,
    /// The filter is being typed.
    types: bool,
    explained: Option<(Subject, Explanation)>,
    /// Why the fleet was not seen the last time.
    error: Option<String>,
    address: String,
}

/// Runs `leasehold top`.
///
/// # Errors
/// What the coordinator answers at first, or that none does, or that stdout is no terminal.
pub(crate) fn top(args: &Args) -> anyhow::Result<ExitCode> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("top needs a terminal: use `leasehold status --watch`");
    }
    run(&args.connection, async |mut coordinator| {
        let mut fleet = look(&mut coordinator).await?;
        let mut terminal = ratatui::init();
        let shown = show(&mut coordinator, &mut fleet, &mut terminal).await;
        ratatui::restore();
        shown
    })
}

async fn show(
    coordinator: &mut Coordinator,
    fleet: &mut Fleet,
    terminal: &mut DefaultTerminal,
) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(coordinator.address());
    let mut looked_at = Instant::now();
    loop {
        let listed = screen.listed(fleet, terminal.size()?.width.into());
        screen.keep_selection(listed.subjects.len());
        terminal.draw(|frame| screen.draw(frame, fleet, &listed))?;
        if !event::poll(Duration::ZERO)? {
            tokio::time::sleep(KEY_INTERVAL).await;
        } else if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match screen.press(key, &listed.subjects) {
                Pressed::Quit => return Ok(ExitCode::SUCCESS),
                Pressed::Explain(subject) => screen.explain(coordinator, subject).await,
                Pressed::Nothing => {}
            }
        }
        if looked_at.elapsed() >= REFRESH_INTERVAL {
            match look(coordinator).await {
                Ok(seen) => (*fleet, screen.error) = (seen, None),
                Err(error) => screen.error = Some(format!("{error:#}")),
            }
            coordinator.address().clone_into(&mut screen.address);
            if let Some((subject, _)) = screen.explained.take() {
                screen.explain(coordinator, subject).await;
            }
            looked_at = Instant::now();
        }
    }
}

async fn look(coordinator: &mut Coordinator) -> anyhow::Result<Fleet> {
    let status = coordinator.status().await?;
    let clusters = fetch::clusters(coordinator).await?;
    let mut workers = Vec::new();
    for cluster in &clusters {
        workers.extend(fetch::workers(coordinator, &cluster.name).await?);
    }
    let sets = fetch::sets(coordinator).await?;
    let pipelines = fetch::pipelines(coordinator).await?;
    Ok(Fleet { status, clusters, workers, sets, pipelines })
}

/// What a key asks for.
enum Pressed {
    Nothing,
    Explain(Subject),
    Quit,
}

impl Screen {
    fn new(address: &str) -> Self {
        Self {
            view: View::Clusters,
            table: TableState::default().with_selected(0),
            filter: String::new(),
            types: false,
            explained: None,
            error: None,
            address: address.to_owned(),
        }
    }

    fn press(&mut self, key: KeyEvent, subjects: &[Subject]) -> Pressed {
        let is_interrupt =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt {
            return Pressed::Quit;
        }
        if self.types {
            match key.code {
                KeyCode::Char(letter) => self.filter.push(letter),
                KeyCode::Backspace => _ = self.filter.pop(),
                KeyCode::Esc => (self.types, self.filter) = (false, String::new()),
                KeyCode::Enter => self.types = false,
                _ => {}
            }
            return Pressed::Nothing;
        }
        match key.code {
            KeyCode::Esc | KeyCode::Char('q') if self.explained.is_some() => self.explained = None,
            KeyCode::Esc | KeyCode::Char('q') => return Pressed::Quit,
            KeyCode::Char('/') => (self.types, self.filter) = (true, String::new()),
            KeyCode::Char(digit @ '1'..='4') => {
                let at = digit.to_digit(10).map_or(0, |digit| digit as usize - 1);
                self.show_view(View::ALL[at]);
            }
            KeyCode::Tab => self.show_view(self.view.next()),
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::Home | KeyCode::Char('g') => self.table.select_first(),
            KeyCode::End | KeyCode::Char('G') => self.table.select(subjects.len().checked_sub(1)),
            KeyCode::Enter | KeyCode::Char('e') => {
                let selected = self.table.selected().and_then(|at| subjects.get(at));
                if let Some(subject) = selected {
                    return Pressed::Explain(subject.clone());
                }
            }
            _ => {}
        }
        Pressed::Nothing
    }

    fn show_view(&mut self, view: View) {
        (self.view, self.explained) = (view, None);
        self.table.select(Some(0));
    }

    /// The list may have become shorter.
    fn keep_selection(&mut self, rows: usize) {
        let last = rows.checked_sub(1);
        self.table.select(last.map(|last| self.table.selected().unwrap_or(0).min(last)));
    }

    async fn explain(&mut self, coordinator: &mut Coordinator, subject: Subject) {
        match explanation_of(coordinator, &subject).await {
            Ok(explanation) => self.explained = Some((subject, explanation)),
            Err(error) => (self.explained, self.error) = (None, Some(format!("{error:#}"))),
        }
    }

    /// What of the view the filter lets through.
    fn listed(&self, fleet: &Fleet, width: usize) -> Listed {
        match self.view {
            View::Clusters => self.filtered(&fleet.clusters, width, |one: &Cluster| {
                Subject::Cluster(one.name.clone())
            }),
            View::Workers => self.filtered(&fleet.workers, width, |one: &Worker| Subject::Worker {
                cluster: one.cluster.clone(),
                worker: one.name.clone(),
            }),
            // A set is explained by its cluster.
            View::Sets => self.filtered(&fleet.sets, width, |one: &StreamSet| {
                Subject::Cluster(one.cluster.clone())
            }),
            View::Pipelines => self.filtered(&fleet.pipelines, width, |one: &Pipeline| {
                Subject::Pipeline(one.name.clone())
            }),
        }
    }

    fn filtered<T: TableRow>(
        &self,
        all: &[T],
        width: usize,
        subject: impl Fn(&T) -> Subject,
    ) -> Listed {
        let chosen: Vec<_> = all.iter().filter(|one| one.name().contains(&self.filter)).collect();
        let subjects = chosen.iter().map(|one| subject(one)).collect();
        Listed { grid: Grid::new(chosen, false, width), subjects }
    }

    fn draw(&mut self, frame: &mut Frame<'_>, fleet: &Fleet, listed: &Listed) {
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
        let budget: u64 = fleet.clusters.iter().map(|cluster| u64::from(cluster.max_jobs)).sum();
        let views = View::ALL.iter().enumerate().map(|(at, view)| {
            let title = format!("{} {}", at + 1, view.title());
            if *view == self.view { format!("[{title}]") } else { format!(" {title} ") }
        });
        vec![
            Line::from(format!(
                "{} {role}; {} agents; {running} of {budget} jobs{problems}",
                self.address, status.sessions
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
        let body = grid.rows.iter().map(|row| {
            let cells = row.iter().zip(&grid.columns);
            let cells = cells.map(|(text, (_, kind))| cell(text.clone(), *kind));
            Row::new(cells.collect::<Vec<_>>()).style(style_of(row))
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

/// A colour, unless the person wants none (no-color.org).
fn color(color: Color) -> Style {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if plain { Style::new() } else { Style::new().fg(color) }
}

fn style_of(cells: &[String]) -> Style {
    let has = |word: &str| cells.iter().any(|cell| cell == word);
    if has("lost") || has("broken") {
        color(Color::Red)
    } else if has("silent") || has("unreported") || has("pending") {
        color(Color::Yellow)
    } else if has("draining") || has("ordered") {
        color(Color::Cyan)
    } else {
        Style::new()
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

#[cfg(test)]
mod tests {
    use leasehold_proto::admin::v1::Presence;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn worker(number: u32, presence: Presence) -> Worker {
        Worker {
            cluster: "builds".into(),
            name: format!("worker-{number}"),
            presence: presence.into(),
            running: Some(number),
            ..Worker::default()
        }
    }

    fn drawn(screen: &mut Screen, fleet: &Fleet) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 12)).expect("a terminal");
        let listed = screen.listed(fleet, 80);
        screen.keep_selection(listed.subjects.len());
        terminal.draw(|frame| screen.draw(frame, fleet, &listed)).expect("it is drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn keys_choose_a_view_filter_it_and_ask_for_an_explanation() {
        let cluster = Cluster { name: "builds".into(), max_jobs: 8, ..Cluster::default() };
        let workers = vec![worker(1, Presence::Connected), worker(2, Presence::Lost)];
        let fleet = Fleet { clusters: vec![cluster], workers, ..Fleet::default() };
        let mut screen = Screen::new("127.0.0.1:7400");
        let first = drawn(&mut screen, &fleet);
        assert!(first.contains("127.0.0.1:7400 knows no leader; 0 agents; 0 of 8 jobs"), "{first}");
        assert!(first.contains("[1 clusters]"), "{first}");

        let press = |screen: &mut Screen, keys: &str| {
            let listed = screen.listed(&fleet, 80);
            let codes = keys.chars().map(|key| match key {
                '\n' => KeyCode::Enter,
                key => KeyCode::Char(key),
            });
            let pressed = codes.map(|code| screen.press(code.into(), &listed.subjects));
            pressed.last().expect("a key")
        };
        press(&mut screen, "2");
        let workers = drawn(&mut screen, &fleet);
        assert!(
            workers.contains("worker-1 connected") && workers.contains("worker-2 lost"),
            "{workers}"
        );
        let explained = press(&mut screen, "je");
        let Pressed::Explain(Subject::Worker { worker, .. }) = explained else {
            panic!("nothing is explained");
        };
        assert_eq!(worker, "worker-2");
        let explanation = Explanation {
            summary: "builds/worker-2 is silent".into(),
            next_step: "leasehold gone worker-2".into(),
            ..Explanation::default()
        };
        screen.explained = Some((Subject::Cluster("builds".into()), explanation));
        assert!(drawn(&mut screen, &fleet).contains("Next: leasehold gone worker-2"));
        assert!(matches!(press(&mut screen, "q"), Pressed::Nothing), "it closes the explanation");
        press(&mut screen, "/r-1\n");
        let filtered = drawn(&mut screen, &fleet);
        assert!(filtered.contains("worker-1") && !filtered.contains("worker-2"), "{filtered}");
        assert!(matches!(press(&mut screen, "q"), Pressed::Quit));
    }
}
