//! What commands print: a table for people, or the admin API's own messages as JSON or YAML.

use std::io::{self, IsTerminal, Write};

use anyhow::Context;
use clap::ValueEnum;
use comfy_table::{CellAlignment, ColumnConstraint, Row as Line, Table, Width, presets};
use leasehold_proto::json;
use prost::{Message, Name};

use super::tint::{self, Tint};
use crate::{argument, usage};

/// The gap between two columns.
const GAP: usize = 2;
/// The fewest columns, however narrow the terminal is.
const COLUMNS_MIN: usize = 3;
/// The least of a text that is cut.
const CUT_MIN: usize = 12;
/// Stands for what is not there.
pub(crate) const NONE: &str = "-";

/// A form of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line for each object
    #[default]
    Table,
    /// The same with more columns
    Wide,
    /// The admin API's message as JSON
    Json,
    /// The same as YAML
    Yaml,
    /// Names only
    Name,
}

impl Format {
    /// Checks the form of an answer that is no list.
    ///
    /// # Errors
    /// If it is that of names.
    pub(crate) fn refuse_names(self) -> anyhow::Result<()> {
        match self {
            Self::Name => Err(usage::wrong("this has no names: use -o table, json or yaml")),
            Self::Table | Self::Wide | Self::Json | Self::Yaml => Ok(()),
        }
    }
}

/// How to print a list.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Sort by this column, as its title says
    #[arg(long, value_name = "COLUMN", value_parser = argument::column)]
    pub(crate) sort: Option<String>,
    /// The greatest first
    #[arg(long, requires = "sort")]
    pub(crate) reverse: bool,
    /// Show it again every second
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// A column of a table.
pub(crate) struct Column<T: 'static> {
    pub(crate) title: &'static str,
    pub(crate) cell: fn(&T) -> String,
    pub(crate) kind: ColumnKind,
}

/// Where and how a column is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// On the left.
    Text,
    /// On the right.
    Number,
    /// On the left, in wide tables only.
    WideText,
    /// On the right, in wide tables only.
    WideNumber,
}

impl ColumnKind {
    fn is_wide(self) -> bool {
        matches!(self, Self::WideText | Self::WideNumber)
    }

    pub(crate) fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::WideNumber)
    }

    fn alignment(self) -> CellAlignment {
        if self.is_number() { CellAlignment::Right } else { CellAlignment::Left }
    }
}

/// A kind of object that a table shows.
pub(crate) trait TableRow: Sized + 'static {
    /// What several are called.
    const PLURAL: &'static str;
    /// Its columns.
    const COLUMNS: &'static [Column<Self>];

    /// The name that other commands take.
    fn name(&self) -> String;

    /// Whether it needs a look.
    fn tint(&self) -> Option<Tint> {
        None
    }
}

/// A column of text.
pub(crate) const fn text<T>(title: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { title, cell, kind: ColumnKind::Text }
}

/// A column of numbers.
pub(crate) const fn number<T>(title: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { title, cell, kind: ColumnKind::Number }
}

/// A column of text that only wide tables have.
pub(crate) const fn wide_text<T>(title: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { title, cell, kind: ColumnKind::WideText }
}

/// A column of numbers that only wide tables have.
pub(crate) const fn wide_number<T>(title: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { title, cell, kind: ColumnKind::WideNumber }
}

/// A list in the wanted form: `rows` of it as a table, or all of `message`.
///
/// # Errors
/// If there is no column to sort by of that title.
pub(crate) fn list<T: TableRow, M: Message + Name>(
    args: &ListArgs,
    mut rows: Vec<T>,
    message: impl FnOnce(Vec<T>) -> M,
) -> anyhow::Result<String> {
    if let Some(title) = &args.sort {
        sort(&mut rows, title, args.reverse)?;
    }
    match args.output {
        Format::Table | Format::Wide if rows.is_empty() => Ok(format!("No {}.\n", T::PLURAL)),
        Format::Table => Ok(table(&rows, false)),
        Format::Wide => Ok(table(&rows, true)),
        Format::Json | Format::Yaml => object(args.output, &message(rows)),
        Format::Name => Ok(rows.iter().map(|row| format!("{}\n", row.name())).collect()),
    }
}

/// Rows as text, in the columns that fit.
pub(crate) struct Grid {
    /// The title of each column, and where its cells are.
    pub(crate) columns: Vec<(&'static str, ColumnKind)>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Which rows need a look.
    pub(crate) tints: Vec<Option<Tint>>,
    /// The width of each column.
    pub(crate) widths: Vec<usize>,
    /// The gap between two columns.
    pub(crate) gap: usize,
}

impl Grid {
    /// No column is narrower than `least` says. Where they do not fit into `width`, the gaps become
    /// smaller, and then the last columns go. A text in the last column may be cut instead.
    pub(crate) fn new<'a, T: TableRow>(
        rows: impl IntoIterator<Item = &'a T>,
        wide: bool,
        width: usize,
        least: &[usize],
    ) -> Self {
        let chosen: Vec<_> =
            T::COLUMNS.iter().filter(|column| wide || !column.kind.is_wide()).collect();
        let cells = |row| chosen.iter().map(|column| (column.cell)(row)).collect();
        let rows = rows.into_iter().map(|row| (cells(row), row.tint()));
        let (rows, tints) = rows.unzip();
        let mut grid = Self {
            columns: chosen.iter().map(|column| (column.title, column.kind)).collect(),
            rows,
            tints,
            widths: Vec::new(),
            gap: GAP,
        };
        let cells_of = |at: usize| grid.rows.iter().map(move |row| row[at].chars().count());
        let least = |at: usize| least.get(at).copied().unwrap_or(0).max(grid.columns[at].0.len());
        let widest = |at: usize| cells_of(at).fold(least(at), usize::max);
        let mut widths: Vec<_> = (0..grid.columns.len()).map(widest).collect();
        let needs = |widths: &[usize], gap: usize| {
            widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1)
        };
        if needs(&widths, GAP) > width {
            grid.gap = 1;
        }
        while needs(&widths, grid.gap) > width && widths.len() > COLUMNS_MIN {
            let last = widths.len() - 1;
            let over = needs(&widths, grid.gap) - width;
            let least = CUT_MIN.max(grid.columns[last].0.len());
            if !grid.columns[last].1.is_number() && widths[last] >= over + least {
                widths[last] -= over;
                break;
            }
            widths.pop();
        }
        grid.columns.truncate(widths.len());
        for row in &mut grid.rows {
            row.truncate(widths.len());
        }
        grid.widths = widths;
        grid
    }

    /// The line of titles, and those of the rows; in colours, if `tinted`.
    pub(crate) fn as_text(&self, tinted: bool) -> [String; 2] {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_truncation_indicator("…");
        table.set_header(self.columns.iter().map(|(title, _)| *title));
        for row in &self.rows {
            let mut line = Line::from(row);
            line.max_height(1);
            table.add_row(line);
        }
        let gap = u16::try_from(self.gap).unwrap_or(u16::MAX);
        for (at, (_, kind)) in self.columns.iter().enumerate() {
            let width = u16::try_from(self.widths[at]).unwrap_or(u16::MAX).saturating_add(gap);
            let shown = table.column_mut(at).expect("each title made a column");
            shown.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
            shown.set_padding((0, gap)).set_cell_alignment(kind.alignment());
        }
        let mut lines = table.lines().map(|line| line.trim_end().to_owned());
        let titles = lines.next().unwrap_or_default();
        let lines = lines.zip(&self.tints).map(|(line, tint)| match tint.filter(|_| tinted) {
            Some(tint) => format!("{}\n", tint.paint(&line)),
            None => format!("{line}\n"),
        });
        [format!("{titles}\n"), lines.collect()]
    }
}

/// A message as JSON or YAML.
///
/// # Errors
/// If the form is another one.
pub(crate) fn object<M: Message + Name>(format: Format, message: &M) -> anyhow::Result<String> {
    let value = json::value(message);
    match format {
        Format::Json => Ok(format!("{}\n", serde_json::to_string_pretty(&value)?)),
        Format::Yaml => Ok(serde_yaml::to_string(&value)?),
        Format::Table | Format::Wide | Format::Name => Err(usage::wrong("use -o json or -o yaml")),
    }
}

impl ListArgs {
    /// Checks what only the kind of the rows decides, before anything is asked.
    ///
    /// # Errors
    /// If there is no column to sort by of that title.
    pub(crate) fn check<T: TableRow>(&self) -> anyhow::Result<()> {
        self.sort.as_deref().map_or(Ok(()), |title| column::<T>(title).map(|_| ()))
    }
}

/// The column of this title.
fn column<T: TableRow>(title: &str) -> anyhow::Result<&'static Column<T>> {
    let column = T::COLUMNS.iter().find(|column| column.title.eq_ignore_ascii_case(title));
    column.ok_or_else(|| {
        let titles: Vec<_> = T::COLUMNS.iter().map(|column| column.title.to_lowercase()).collect();
        usage::wrong(format!("--sort: no column {title:?}; there are {}", titles.join(", ")))
    })
}

fn sort<T: TableRow>(rows: &mut [T], title: &str, reverse: bool) -> anyhow::Result<()> {
    let column = column::<T>(title)?;
    rows.sort_by(|one, two| {
        let (one, two) = ((column.cell)(one), (column.cell)(two));
        let numbers = (one.parse::<f64>(), two.parse::<f64>());
        let order = match numbers {
            (Ok(one), Ok(two)) => one.total_cmp(&two),
            _ => one.cmp(&two),
        };
        if reverse { order.reverse() } else { order }
    });
    Ok(())
}

/// Rows as a table without borders, no wider than the terminal; empty without rows.
pub(crate) fn table<T: TableRow>(rows: &[T], wide: bool) -> String {
    if rows.is_empty() {
        return String::new();
    }
    // Not a terminal: as wide as it must be.
    let grid = Grid::new(rows, wide, terminal_width().unwrap_or(usize::MAX), &[]);
    let [titles, lines] = grid.as_text(tint::is_shown());
    titles + &lines
}

/// The width of the terminal; none if stdout is no terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    size.map(|(width, _)| width.0.into())
}
/// Writes to stdout. A reader that has seen enough, as `head` does, is no error.
///
/// # Errors
/// If stdout cannot be written.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    is_read(text).map(|_| ())
}

/// The same; returns whether the reader may want more.
///
/// # Errors
/// As with [`print`].
pub(crate) fn is_read(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to stdout"),
    }
}

/// Writes over what a watch wrote before, without a flicker: each line in its place, then what was
/// below is cleared. Where stdout is no terminal, an empty line parts one time from the next.
///
/// # Errors
/// If stdout cannot be written.
pub(crate) fn redraw(text: &str, is_first: bool) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        return print(&format!("{}{text}", if is_first { "" } else { "\n" }));
    }
    let start = if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" };
    let rows = terminal_size::terminal_size().map_or(usize::MAX, |(_, rows)| rows.0.into());
    // The last row stays empty, so that the screen does not scroll.
    let lines = text.lines().take(rows.saturating_sub(1));
    let lines: String = lines.map(|line| format!("{line}\x1b[K\n")).collect();
    print(&format!("{start}{lines}\x1b[J"))
}

/// A count, or `-` for none at all.
pub(crate) fn or_none(text: &str) -> String {
    if text.is_empty() { NONE.to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use leasehold_proto::admin::v1::{DrainPhase, Presence, Worker};

    use super::*;

    struct Thing(&'static str, u32, &'static str);

    impl TableRow for Thing {
        const PLURAL: &'static str = "things";
        const COLUMNS: &'static [Column<Self>] = &[
            text("NAME", |thing| thing.0.to_owned()),
            number("SIZE", |thing| thing.1.to_string()),
            number("WEIGHT", |thing| thing.1.to_string()),
            number("AGE", |thing| thing.1.to_string()),
            text("REASON", |thing| thing.2.to_owned()),
        ];

        fn name(&self) -> String {
            self.0.to_owned()
        }
    }

    #[test]
    fn a_table_keeps_names_and_gives_up_gaps_and_then_its_last_columns() {
        let things = [Thing("a-long-name", 5, "because it is so, and has always been so")];
        let shape = |width| {
            let grid = Grid::new(&things, false, width, &[]);
            (grid.columns.len(), grid.gap, grid.widths.last().copied())
        };
        assert_eq!(shape(usize::MAX), (5, 2, Some(40)));
        assert_eq!(shape(72), (5, 2, Some(40)));
        assert_eq!(shape(68), (5, 1, Some(40)));
        assert_eq!(shape(60), (5, 1, Some(32)), "the reason is cut");
        assert_eq!(shape(30), (4, 1, Some(3)), "there is no room for it");
        assert_eq!(shape(10), (3, 1, Some(6)), "never fewer");
        let text = table(&things, false);
        assert_eq!(text.lines().next(), Some("NAME         SIZE  WEIGHT  AGE  REASON"));
        assert!(
            text.ends_with(
                "a-long-name     5       5    5  because it is so, and has always been so\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn rows_that_need_a_look_have_a_colour_where_colours_are_shown() {
        let worker = |name: &str, presence: Presence, drain: DrainPhase| Worker {
            name: name.into(),
            presence: presence.into(),
            drain: drain.into(),
            ..Worker::default()
        };
        let workers = [
            worker("w-0", Presence::Connected, DrainPhase::Working),
            worker("w-1", Presence::Lost, DrainPhase::Working),
            worker("w-2", Presence::Silent, DrainPhase::Draining),
            worker("w-3", Presence::Connected, DrainPhase::Draining),
        ];
        let grid = Grid::new(&workers, false, usize::MAX, &[]);
        let [titles, tinted] = grid.as_text(true);
        let colours: Vec<_> = tinted.lines().map(|line| line.get(..5).unwrap_or("")).collect();
        assert_eq!(colours[1..], ["\x1b[31m", "\x1b[33m", "\x1b[36m"]);
        assert!(!titles.contains('\x1b') && !colours[0].contains('\x1b'), "{titles}{tinted}");
        assert!(tinted.lines().skip(1).all(|line| line.ends_with("\x1b[0m")), "{tinted}");
        let [_, plain] = grid.as_text(false);
        assert!(!plain.contains('\x1b'), "{plain}");
    }
}
