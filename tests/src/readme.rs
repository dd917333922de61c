//! Documents as a reader types them: commands and files of each section, copied out of the text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// What a reader does with a part of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Saves it under the name in its first comment.
    Save {
        /// The name.
        file: String,
        /// The whole text.
        text: String,
    },
    /// Types it.
    Type(String),
}

/// How far commands are indented: in the text, and in a numbered list.
const INDENTS: [usize; 2] = [4, 7];

/// The part between a heading and the next one.
///
/// # Panics
/// If there is no such heading.
#[must_use]
pub fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let found = document.split_once(&format!("\n## {heading}\n"));
    let (_, rest) = found.unwrap_or_else(|| panic!("no heading \"{heading}\""));
    rest.split("\n## ").next().unwrap_or(rest)
}

/// The headings of the second level.
#[must_use]
pub fn headings(document: &str) -> Vec<&str> {
    document.lines().filter_map(|line| line.strip_prefix("## ")).collect()
}

/// The part of a section between a heading of the third level and the next one.
///
/// # Panics
/// If there is no such heading.
#[must_use]
pub fn subsection<'a>(section: &'a str, heading: &str) -> &'a str {
    let found = section.split_once(&format!("\n### {heading}\n"));
    let (_, rest) = found.unwrap_or_else(|| panic!("no heading \"{heading}\""));
    rest.split("\n### ").next().unwrap_or(rest)
}

/// The files and commands of a part of the text, in order. A block in a fence is a file whose first
/// comment, after `# ` or `// `, names it; an indented line is a command, which a backslash at its
/// end or an open quote continues.
///
/// # Panics
/// If a file has no name.
#[must_use]
pub fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("```") {
            let inside = lines.by_ref().take_while(|line| line.trim_start() != "```");
            let text: String = inside.fold(String::new(), |mut text, line| {
                let _ = writeln!(text, "{}", line.get(indent..).unwrap_or_default());
                text
            });
            let comment = text
                .lines()
                .find_map(|line| line.strip_prefix("# ").or_else(|| line.strip_prefix("// ")));
            let name = comment.and_then(|comment| comment.split([':', ' ']).next());
            let file = name.unwrap_or_else(|| panic!("no name in {text}")).to_owned();
            steps.push(Step::Save { file, text });
        } else if INDENTS.contains(&indent) {
            let mut command = line.trim().to_owned();
            while command.ends_with('\\') || has_open_quote(&command) {
                let next = lines.next().expect("a line after a backslash or within a quote");
                let _ = write!(command, "\n{next}");
            }
            steps.push(Step::Type(command));
        }
    }
    steps
}

/// Whether a single quote of the command is not closed yet.
fn has_open_quote(command: &str) -> bool {
    command.matches('\'').count() % 2 == 1
}

/// What stands between single backticks in the text, blocks left out.
#[must_use]
pub fn spans(text: &str) -> BTreeSet<String> {
    let mut in_fence = false;
    let prose = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        in_fence ^= is_fence;
        !is_fence && !in_fence && !line.starts_with("    ")
    });
    let prose = prose.collect::<Vec<_>>().join("\n");
    prose.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# Title

## First

Type `make it` and:

    one --flag \\
        two

1. In a list:

       three  # why

   ```sh
   # file.sh: what it is
     indented
   ```

## Second

### Third

```go
// file.go
```

### Fourth
";

    #[test]
    fn copies_commands_and_files_without_changes() {
        let file = Step::Save {
            file: "file.sh".to_owned(),
            text: "# file.sh: what it is\n  indented\n".to_owned(),
        };
        let typed = |text: &str| Step::Type(text.to_owned());
        let want = [typed("one --flag \\\n        two"), typed("three  # why"), file];
        assert_eq!(steps(section(DOCUMENT, "First")), want);
        let second = section(DOCUMENT, "Second");
        let file = Step::Save { file: "file.go".to_owned(), text: "// file.go\n".to_owned() };
        assert_eq!(steps(subsection(second, "Third")), [file]);
        assert_eq!(steps(subsection(second, "Fourth")), []);
        assert_eq!(headings(DOCUMENT), ["First", "Second"]);
        assert_eq!(spans(DOCUMENT), ["make it".to_owned()].into());
    }

    #[test]
    fn a_command_goes_on_until_its_quote_is_closed() {
        let text = "    say 'one\n        two' \\\n        three\n    four\n";
        let want = ["say 'one\n        two' \\\n        three", "four"];
        assert_eq!(steps(text), want.map(|command| Step::Type(command.to_owned())));
    }
}
