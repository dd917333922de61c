//! `leasehold top`: the fleet on the full screen, as it changes.

mod draw;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use leasehold_proto::admin::v1::{
    Class, Cluster, Explanation, GetStatusResponse, Pipeline, Stream, StreamSet, Worker,
};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;

use super::connection::{ConnectionArgs, Coordinator};
use super::explain::{Subject, explanation_of};
use super::output::{Grid, TableRow};
use super::{fetch, run};

/// The interval between two looks at the fleet.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two looks at the keyboard.
const KEY_INTERVAL: Duration = Duration::from_millis(30);
/// The most streams that are looked at: a million would take longer than the interval.
const STREAMS_MAX: u32 = 2_000;
/// The keys, for the last line.
const KEYS: &str = "1-6 or Tab: view   ↑↓: select   e or Enter: explain   /: filter   q: quit";

/// Options of `top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys: 1 to 6 or Tab for clusters, workers, stream sets, pipelines, streams (the first 2000) and
classes; the arrows or j and k select; e or Enter explains what is selected; / filters by a part of
the name; q or Escape leaves.

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
    Streams,
    Classes,
}

impl View {
    const ALL: [Self; 6] =
        [Self::Clusters, Self::Workers, Self::Sets, Self::Pipelines, Self::Streams, Self::Classes];

    fn title(self) -> &'static str {
        match self {
            Self::Clusters => Cluster::PLURAL,
            Self::Workers => Worker::PLURAL,
            Self::Sets => StreamSet::PLURAL,
            Self::Pipelines => Pipeline::PLURAL,
            Self::Streams => Stream::PLURAL,
            // All six have to fit on one line of a narrow terminal.
            Self::Classes => "classes",
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
    /// The first of them; empty unless they are looked at.
    streams: Vec<Stream>,
    classes: Vec<Class>,
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
        coordinator.silence();
        let mut fleet = look(&mut coordinator, View::Clusters).await?;
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
    let (mut looked_at, mut viewed) = (Instant::now(), screen.view);
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
        if looked_at.elapsed() >= REFRESH_INTERVAL || screen.view != viewed {
            viewed = screen.view;
            match look(coordinator, viewed).await {
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

/// The fleet, and of the streams what this view shows.
async fn look(coordinator: &mut Coordinator, view: View) -> anyhow::Result<Fleet> {
    let status = coordinator.status().await?;
    let clusters = fetch::clusters(coordinator).await?;
    let mut workers = Vec::new();
    for cluster in &clusters {
        workers.extend(fetch::workers(coordinator, &cluster.name).await?);
    }
    let sets = fetch::sets(coordinator).await?;
    let pipelines = fetch::pipelines(coordinator).await?;
    let streams = match view {
        View::Streams => fetch::first_streams(coordinator, &sets, STREAMS_MAX).await?,
        View::Clusters | View::Workers | View::Sets | View::Pipelines | View::Classes => Vec::new(),
    };
    let classes = fetch::classes(coordinator).await?;
    Ok(Fleet { status, clusters, workers, sets, pipelines, streams, classes })
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
            KeyCode::Char(digit @ '1'..='6') => {
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
            View::Streams => self.filtered(&fleet.streams, width, |one: &Stream| Subject::Stream {
                set: one.set.clone(),
                stream: one.name.clone(),
            }),
            // A class is a cluster without a budget.
            View::Classes => self
                .filtered(&fleet.classes, width, |one: &Class| Subject::Cluster(one.name.clone())),
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
        Listed { grid: Grid::new(chosen, false, width, &[]), subjects }
    }
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

    #[test]
    fn streams_and_classes_are_views_like_the_others() {
        let stream = Stream { set: "cars".into(), name: "cars:new".into(), ..Stream::default() };
        let class = Class { name: "green".into(), capacity: 10.0, ..Class::default() };
        let fleet = Fleet { streams: vec![stream], classes: vec![class], ..Fleet::default() };
        let mut screen = Screen::new("127.0.0.1:7400");
        screen.show_view(View::Streams);
        let streams = drawn(&mut screen, &fleet);
        assert!(streams.contains("[5 streams]") && streams.contains("6 classes"), "{streams}");
        assert!(streams.contains("cars  cars:new"), "{streams}");
        let subjects = screen.listed(&fleet, 80).subjects;
        assert!(matches!(&subjects[..], [Subject::Stream { set, .. }] if set == "cars"));

        let pressed = screen.press(KeyCode::Char('6').into(), &subjects);
        assert!(matches!(pressed, Pressed::Nothing));
        let classes = drawn(&mut screen, &fleet);
        assert!(classes.contains("[6 classes]") && classes.contains("green"), "{classes}");
        let subjects = screen.listed(&fleet, 80).subjects;
        assert!(matches!(&subjects[..], [Subject::Cluster(name)] if name == "green"));
        screen.press(KeyCode::Tab.into(), &subjects);
        assert_eq!(screen.view, View::Clusters);
    }
}
