//! What commands print: a table for people, or the admin API's own messages as JSON or YAML.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, bail};
use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Row as Line, Table, presets};
use leasehold_proto::json;
use prost::{Message, Name};

/// The gap between two columns.
const GAP: u16 = 2;
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

/// How to print a list.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Sort by this column, as its title says
    #[arg(long, value_name = "COLUMN")]
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

    fn alignment(self) -> CellAlignment {
        match self {
            Self::Text | Self::WideText => CellAlignment::Left,
            Self::Number | Self::WideNumber => CellAlignment::Right,
        }
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

/// A message as JSON or YAML.
///
/// # Errors
/// If the form is another one.
pub(crate) fn object<M: Message + Name>(format: Format, message: &M) -> anyhow::Result<String> {
    let value = json::value(message);
    match format {
        Format::Json => Ok(format!("{}\n", serde_json::to_string_pretty(&value)?)),
        Format::Yaml => Ok(serde_yaml::to_string(&value)?),
        Format::Table | Format::Wide | Format::Name => bail!("use -o json or -o yaml"),
    }
}

fn sort<T: TableRow>(rows: &mut [T], title: &str, reverse: bool) -> anyhow::Result<()> {
    let column = T::COLUMNS.iter().find(|column| column.title.eq_ignore_ascii_case(title));
    let column = column.with_context(|| {
        let titles: Vec<_> = T::COLUMNS.iter().map(|column| column.title.to_lowercase()).collect();
        format!("--sort: no column {title:?}; there are {}", titles.join(", "))
    })?;
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
    let columns: Vec<_> =
        T::COLUMNS.iter().filter(|column| wide || !column.kind.is_wide()).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    match terminal_width() {
        Some(width) => table.set_width(width),
        // Not a terminal: as wide as it must be.
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table.set_truncation_indicator("…");
    table.set_header(columns.iter().map(|column| column.title));
    for row in rows {
        let mut line = Line::from(columns.iter().map(|column| (column.cell)(row)));
        line.max_height(1);
        table.add_row(line);
    }
    for (at, column) in columns.iter().enumerate() {
        let shown = table.column_mut(at).expect("each title made a column");
        shown.set_padding((0, GAP)).set_cell_alignment(column.kind.alignment());
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn terminal_width() -> Option<u16> {
    let stdout = io::stdout();
    stdout.is_terminal().then(terminal_size::terminal_size).flatten().map(|(width, _)| width.0)
}

/// Writes to stdout. A reader that has seen enough, as `head` does, is no error.
///
/// # Errors
/// If stdout cannot be written.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
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
