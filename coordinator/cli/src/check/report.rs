//! What was found, told line by line as it is found: as text for people, as one JSON object for
//! programs. A line that is not well says what is wrong, where, and how to mend it.

use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

/// Problems of one line that are listed; how many more there are is said.
const PROBLEMS_MAX: usize = 10;

/// How one line came out; the worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// It is as it should be.
    Ok,
    /// It could not be looked at, for a reason that is no fault of the installation.
    Skip,
    /// It works, and somebody should know.
    Warn,
    /// It is wrong.
    Fail,
}

impl Verdict {
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
    mend: String,
    run: Vec<String>,
}

impl Problem {
    /// `wrong` says what and where, `mend` what to do about it.
    pub(super) fn new(wrong: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { wrong: wrong.into(), mend: mend.into(), run: Vec::new() }
    }

    /// A command that mends it, as a shell takes it.
    pub(super) fn run(mut self, command: impl Into<String>) -> Self {
        self.run.push(command.into());
        self
    }
}

/// The command that patches an object, as kubectl names it with its namespace.
pub(super) fn patch(object: &str, kind: &str, body: &Value) -> String {
    // What is patched holds names and numbers: no quotes that a shell would stop at.
    format!("kubectl patch {object} --type={kind} -p '{body}'")
}

/// One line: something that was looked at.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    id: &'static str,
    check: String,
    verdict: Verdict,
    notes: Vec<String>,
    problems: Vec<Problem>,
    more: usize,
}

impl Finding {
    /// A line that is well so far. `id` is its name for programs, `check` says what should be.
    pub(super) fn new(id: &'static str, check: impl Into<String>) -> Self {
        let (notes, problems) = (Vec::new(), Vec::new());
        Self { id, check: check.into(), verdict: Verdict::Ok, notes, problems, more: 0 }
    }

    /// A line that nothing can be said about, and why.
    pub(super) fn skipped(id: &'static str, check: &str, why: impl Into<String>) -> Self {
        let mut finding = Self::new(id, check);
        finding.skip(why);
        finding
    }

    /// Adds what is worth knowing though nothing is wrong.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Says that it could not be looked at.
    pub(super) fn skip(&mut self, why: impl Into<String>) {
        self.verdict = self.verdict.max(Verdict::Skip);
        self.note(why);
    }

    /// Says that something is wrong though it works.
    pub(super) fn warn(&mut self, problem: Problem) {
        self.add(Verdict::Warn, problem);
    }

    /// Says that something is wrong.
    pub(super) fn fail(&mut self, problem: Problem) {
        self.add(Verdict::Fail, problem);
    }

    /// Whether nothing is wrong, as far as it could be looked at.
    pub(super) fn is_well(&self) -> bool {
        self.verdict < Verdict::Warn
    }

    fn add(&mut self, verdict: Verdict, problem: Problem) {
        // What fails goes before what is only worth a warning.
        let at = if verdict > self.verdict { 0 } else { self.problems.len() };
        self.verdict = self.verdict.max(verdict);
        self.problems.insert(at, problem);
        if self.problems.len() > PROBLEMS_MAX {
            self.problems.pop();
            self.more += 1;
        }
    }

    fn json(&self) -> Value {
        let problem = |it: &Problem| json!({ "wrong": it.wrong, "mend": it.mend, "run": it.run });
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

/// How it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Signs and colours.
    Coloured,
    /// ASCII words.
    Plain,
    /// One JSON object at the end.
    Json,
}

/// Everything that was found so far.
#[derive(Debug)]
pub(super) struct Report {
    style: Style,
    sections: Vec<(String, Vec<Finding>)>,
}

impl Report {
    /// A report as text: in colours on a terminal, unless NO_COLOR is set.
    pub(super) fn text() -> Self {
        let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let style = match std::io::stdout().is_terminal() && !wants_none {
            true => Style::Coloured,
            false => Style::Plain,
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
        self.say(&match self.style {
            Style::Coloured => format!("{gap}\x1b[1m{title}\x1b[0m\n"),
            Style::Plain => format!("{gap}{title}\n"),
            Style::Json => String::new(),
        });
        self.sections.push((title.to_owned(), Vec::new()));
    }

    /// Adds a line to the present section.
    pub(super) fn tell(&mut self, finding: Finding) {
        if self.style != Style::Json {
            self.say(&lines(self.style, &finding));
        }
        if let Some((_, findings)) = self.sections.last_mut() {
            findings.push(finding);
        }
    }

    /// The worst of all lines.
    pub(super) fn verdict(&self) -> Verdict {
        let all = self.sections.iter().flat_map(|(_, findings)| findings);
        all.map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// Says how it came out as a whole.
    pub(super) fn end(&self) {
        self.say(&match self.style {
            Style::Json => format!("{:#}\n", self.whole()),
            Style::Coloured | Style::Plain => format!("\n{}\n", self.summary()),
        });
    }

    fn whole(&self) -> Value {
        let section = |(title, findings): &(String, Vec<Finding>)| {
            json!({
                "title": title,
                "checks": findings.iter().map(Finding::json).collect::<Vec<_>>(),
            })
        };
        let result = match self.verdict() {
            Verdict::Skip => Verdict::Ok,
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
        let (failed, warned) = (count(Verdict::Fail), count(Verdict::Warn));
        let skipped = match count(Verdict::Skip) {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        match (failed, warned) {
            (0, 0) => format!("All is well{skipped}."),
            (0, warned) => format!("All is well, with {warned} to know about{skipped}."),
            (failed, 0) => format!("Not well: {failed} failed{skipped}."),
            (failed, warned) => format!("Not well: {failed} failed, {warned} warned{skipped}."),
        }
    }

    fn say(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // Where nobody reads any more, the exit code still says how it came out.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

fn lines(style: Style, finding: &Finding) -> String {
    let sign = match (style, finding.verdict) {
        (Style::Coloured, Verdict::Ok) => "\x1b[32m√\x1b[0m",
        (Style::Coloured, Verdict::Skip) => "\x1b[2m-\x1b[0m",
        (Style::Coloured, Verdict::Warn) => "\x1b[33m!\x1b[0m",
        (Style::Coloured, Verdict::Fail) => "\x1b[31m×\x1b[0m",
        (_, Verdict::Ok) => "ok  ",
        (_, Verdict::Skip) => "skip",
        (_, Verdict::Warn) => "WARN",
        (_, Verdict::Fail) => "FAIL",
    };
    let mut text = format!("  {sign} {}", finding.check);
    if !finding.is_well() {
        text.push_str(&format!(" [{}]", finding.id));
    }
    text.push('\n');
    let inset = if style == Style::Coloured { "      " } else { "         " };
    for note in &finding.notes {
        text.push_str(&format!("{inset}{note}\n"));
    }
    for problem in &finding.problems {
        text.push_str(&format!("{inset}{}\n", problem.wrong));
        if !problem.mend.is_empty() {
            text.push_str(&format!("{inset}  to mend it, {}\n", problem.mend));
        }
        for command in &problem.run {
            text.push_str(&format!("{inset}    {command}\n"));
        }
    }
    if finding.more > 0 {
        text.push_str(&format!("{inset}and {} more like that\n", finding.more));
    }
    text
}
