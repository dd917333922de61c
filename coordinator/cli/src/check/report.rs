//! The report: text for people, printed check by check, or one JSON object for programs. A check
//! that is not ok says what is wrong, where, and how to fix it.

use std::io::{IsTerminal, Write};

use leasehold_types::counted;
use serde_json::{Value, json};

/// At most this many problems of one check are listed, the others counted.
const PROBLEMS_MAX: usize = 10;

/// The result of one check; the worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckResult {
    /// Nothing is wrong.
    Ok,
    /// Not checked, for a reason that is not the installation's fault.
    Skip,
    /// It works, but needs attention.
    Warn,
    /// It is wrong.
    Fail,
}

impl CheckResult {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    wrong: String,
    fix: String,
    run: Vec<String>,
}

impl Problem {
    /// `wrong` names the problem and its place, `fix` the remedy.
    pub(super) fn new(wrong: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { wrong: wrong.into(), fix: fix.into(), run: Vec::new() }
    }

    /// Adds a shell command that fixes it.
    pub(super) fn run(mut self, command: impl Into<String>) -> Self {
        self.run.push(command.into());
        self
    }
}

/// The command that patches an object, as kubectl names it with its namespace.
pub(super) fn patch(object: &str, kind: &str, body: &Value) -> String {
    // A body holds names and numbers only, so no quote ends the shell's.
    format!("kubectl patch {object} --type={kind} -p '{body}'")
}

/// One check and its result.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    id: &'static str,
    check: String,
    verdict: CheckResult,
    notes: Vec<String>,
    problems: Vec<Problem>,
    more: usize,
}

impl Finding {
    /// A check that is ok so far. `id` names it for programs, `check` says what should be true.
    pub(super) fn new(id: &'static str, check: impl Into<String>) -> Self {
        let (notes, problems) = (Vec::new(), Vec::new());
        Self { id, check: check.into(), verdict: CheckResult::Ok, notes, problems, more: 0 }
    }

    /// A check that could not be made, and why.
    pub(super) fn skipped(id: &'static str, check: &str, why: impl Into<String>) -> Self {
        let mut finding = Self::new(id, check);
        finding.skip(why);
        finding
    }

    /// Adds information.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Marks it as not checked.
    pub(super) fn skip(&mut self, why: impl Into<String>) {
        self.verdict = self.verdict.max(CheckResult::Skip);
        self.note(why);
    }

    /// Adds a problem that leaves the installation working.
    pub(super) fn warn(&mut self, problem: Problem) {
        self.add_problem(CheckResult::Warn, problem);
    }

    /// Adds a problem.
    pub(super) fn fail(&mut self, problem: Problem) {
        self.add_problem(CheckResult::Fail, problem);
    }

    /// Whether the checks found no problem.
    pub(super) fn is_ok(&self) -> bool {
        self.verdict < CheckResult::Warn
    }

    fn add_problem(&mut self, verdict: CheckResult, problem: Problem) {
        // Failures come before warnings.
        let at = if verdict > self.verdict { 0 } else { self.problems.len() };
        self.verdict = self.verdict.max(verdict);
        self.problems.insert(at, problem);
        if self.problems.len() > PROBLEMS_MAX {
            self.problems.pop();
            self.more += 1;
        }
    }

    fn json(&self) -> Value {
        let problem = |problem: &Problem| {
            let Problem { wrong, fix, run } = problem;
            json!({ "wrong": wrong, "mend": fix, "run": run })
        };
        json!({
            "id": self.id,
            "check": self.check,
            "result": self.verdict.word(),
            "notes": self.notes,
            "problems": self.problems.iter().map(problem).collect::<Vec<_>>(),
            "problemsOmitted": self.more,
        })
    }
}

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Symbols and colours.
    Coloured,
    /// ASCII words.
    Plain,
    /// One JSON object at the end.
    Json,
}

/// All checks so far, by section.
#[derive(Debug)]
pub(super) struct Report {
    style: Style,
    sections: Vec<(String, Vec<Finding>)>,
}

impl Report {
    /// A report as text: in colours on a terminal, unless NO_COLOR is set.
    pub(super) fn text() -> Self {
        let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let style = if std::io::stdout().is_terminal() && !wants_none {
            Style::Coloured
        } else {
            Style::Plain
        };
        Self { style, sections: Vec::new() }
    }

    /// A report as JSON.
    pub(super) fn json() -> Self {
        Self { style: Style::Json, sections: Vec::new() }
    }

    /// Begins a section.
    pub(super) fn section(&mut self, title: &str) {
        let gap = if self.sections.is_empty() { "" } else { "\n" };
        self.print(&match self.style {
            Style::Coloured => format!("{gap}\x1b[1m{title}\x1b[0m\n"),
            Style::Plain => format!("{gap}{title}\n"),
            Style::Json => String::new(),
        });
        self.sections.push((title.to_owned(), Vec::new()));
    }

    /// Adds a check to the current section and prints it.
    pub(super) fn add(&mut self, finding: Finding) {
        if self.style != Style::Json {
            self.print(&lines(self.style, &finding));
        }
        if let Some((_, findings)) = self.sections.last_mut() {
            findings.push(finding);
        }
    }

    /// The worst result.
    pub(super) fn verdict(&self) -> CheckResult {
        let all = self.sections.iter().flat_map(|(_, findings)| findings);
        all.map(|finding| finding.verdict).max().unwrap_or(CheckResult::Ok)
    }

    /// Prints the summary, or the JSON.
    pub(super) fn print_summary(&self) {
        self.print(&match self.style {
            Style::Json => format!("{:#}\n", self.as_json()),
            Style::Coloured | Style::Plain => format!("\n{}\n", self.summary()),
        });
    }

    fn as_json(&self) -> Value {
        let section = |(title, findings): &(String, Vec<Finding>)| {
            json!({
                "title": title,
                "checks": findings.iter().map(Finding::json).collect::<Vec<_>>(),
            })
        };
        let result = match self.verdict() {
            CheckResult::Skip => CheckResult::Ok,
            other => other,
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "result": result.word(),
            "sections": self.sections.iter().map(section).collect::<Vec<_>>(),
        })
    }

    fn summary(&self) -> String {
        let count = |verdict| {
            let all = self.sections.iter().flat_map(|(_, findings)| findings);
            all.filter(|finding| finding.verdict == verdict).count()
        };
        let (failed, warned) = (count(CheckResult::Fail), count(CheckResult::Warn));
        let skipped = match count(CheckResult::Skip) {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        match (failed, warned) {
            (0, 0) => format!("All checks passed{skipped}."),
            (0, warned) => format!("All checks passed, {warned} with a warning{skipped}."),
            (failed, 0) => format!("{} failed{skipped}.", counted(failed, "check")),
            (failed, warned) => {
                format!("{} failed, {warned} with a warning{skipped}.", counted(failed, "check"))
            }
        }
    }

    fn print(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // A closed stdout is not an error: the exit code still has the result.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

fn lines(style: Style, finding: &Finding) -> String {
    let sign = match (style, finding.verdict) {
        (Style::Coloured, CheckResult::Ok) => "\x1b[32m√\x1b[0m",
        (Style::Coloured, CheckResult::Skip) => "\x1b[2m-\x1b[0m",
        (Style::Coloured, CheckResult::Warn) => "\x1b[33m!\x1b[0m",
        (Style::Coloured, CheckResult::Fail) => "\x1b[31m×\x1b[0m",
        (_, CheckResult::Ok) => "ok  ",
        (_, CheckResult::Skip) => "skip",
        (_, CheckResult::Warn) => "WARN",
        (_, CheckResult::Fail) => "FAIL",
    };
    let mut text = format!("  {sign} {}", finding.check);
    if !finding.is_ok() {
        text.push_str(&format!(" [{}]", finding.id));
    }
    text.push('\n');
    let inset = if style == Style::Coloured { "      " } else { "         " };
    for note in &finding.notes {
        text.push_str(&format!("{inset}{note}\n"));
    }
    for problem in &finding.problems {
        text.push_str(&format!("{inset}{}\n", problem.wrong));
        if !problem.fix.is_empty() {
            text.push_str(&format!("{inset}  to fix it: {}\n", problem.fix));
        }
        for command in &problem.run {
            text.push_str(&format!("{inset}    {command}\n"));
        }
    }
    if finding.more > 0 {
        text.push_str(&format!("{inset}and {} more\n", finding.more));
    }
    text
}
