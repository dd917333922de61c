//! The book: `docs/SUMMARY.md` lists every document below `docs` once, by its title, and the start
//! page says what the demo does. Every picture is on a page, and says in words what it shows.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::{readme, toolbox};

use super::read;

/// It lists the chapters of the book. No chapter is made of this file.
const SUMMARY: &str = "SUMMARY.md";
/// Reads a file as an SVG. Ends with an error if the file is not XML, or lacks a title and a
/// description (for a reader who does not see the picture), a size by which it scales, or a ground
/// that makes it legible on a dark page.
const CHECK_SVG: &str = "
import sys
import xml.etree.ElementTree as tree
svg = tree.parse(sys.argv[1]).getroot()
for element in ('title', 'desc'):
    if not (svg.findtext('{http://www.w3.org/2000/svg}' + element) or '').strip():
        sys.exit('the picture has no ' + element)
if 'viewBox' not in svg.attrib:
    sys.exit('the picture has no viewBox')
width, height = map(float, svg.attrib['viewBox'].split()[2:])
ground = svg.find('{http://www.w3.org/2000/svg}rect')
sizes = (0, 0) if ground is None else (float(ground.get(side)) for side in ('width', 'height'))
if any(size < whole - 1 for size, whole in zip(sizes, (width, height))):
    sys.exit('the first rect of the picture is no ground below all of it')
";

/// All files in and below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// The documents below `docs`, by their paths from there.
fn documents() -> BTreeSet<String> {
    let docs = toolbox::root().join("docs");
    let relative = |path: PathBuf| {
        let path = path.strip_prefix(&docs).expect("a path below docs");
        path.to_str().expect("a name in UTF-8").to_owned()
    };
    let mut all: BTreeSet<String> = files_below(&docs).into_iter().map(relative).collect();
    all.retain(|path| path.ends_with(".md") && path != SUMMARY);
    all
}

/// The title of a document, by its path from `docs`.
fn title_of(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(toolbox::root().join("docs").join(path)).ok()?;
    text.lines().find_map(|line| line.strip_prefix("# ")).map(str::to_owned)
}

/// The chapters of a summary: each one's name and path.
pub(crate) fn chapters(summary: &str) -> Vec<(&str, &str)> {
    let chapter = |line| {
        let line = str::trim_start(line);
        let link = line.strip_prefix("- ").unwrap_or(line).strip_prefix('[')?;
        link.strip_suffix(')')?.rsplit_once("](")
    };
    summary.lines().filter_map(chapter).collect()
}

/// What is wrong with a summary of these documents.
fn problems(
    summary: &str,
    documents: &BTreeSet<String>,
    title_of: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut listed = BTreeSet::new();
    for (name, path) in chapters(summary) {
        match title_of(path) {
            None => wrong.push(format!("{path} is no document with a title")),
            Some(title) if title != name => {
                wrong.push(format!("{path} has the title \"{title}\", not \"{name}\""));
            }
            Some(_) => {}
        }
        if !listed.insert(path.to_owned()) {
            wrong.push(format!("{path} is listed twice"));
        }
    }
    wrong.extend(documents.difference(&listed).map(|path| format!("{path} is not listed")));
    wrong
}

#[test]
fn the_summary_lists_every_document_by_its_title() {
    let wrong = problems(&read("docs/SUMMARY.md"), &documents(), title_of);
    assert!(wrong.is_empty(), "docs/SUMMARY.md:\n{}", wrong.join("\n"));
}

#[test]
fn a_summary_that_differs_from_the_documents_is_found() {
    let documents = BTreeSet::from(["A.md".to_owned(), "adr/b.md".to_owned()]);
    let title = |path: &str| match path {
        "../README.md" => Some("All".to_owned()),
        "A.md" => Some("The adapter `a`".to_owned()),
        "adr/b.md" => Some("B".to_owned()),
        _ => None,
    };
    let find = |summary: &str| problems(summary, &documents, title);
    let good = "[All](../README.md)\n\n# Part\n\n- [The adapter `a`](A.md)\n  - [B](adr/b.md)\n";
    assert_eq!(find(good), [""; 0]);
    assert_eq!(find(&good.replace("  - [B](adr/b.md)\n", "")), ["adr/b.md is not listed"]);
    assert_eq!(find(&good.replace("[B]", "[C]")), ["adr/b.md has the title \"B\", not \"C\""]);
    assert_eq!(find(&format!("{good}- [B](adr/b.md)\n")), ["adr/b.md is listed twice"]);
    assert_eq!(find(&format!("{good}- [C](c.md)\n")), ["c.md is no document with a title"]);
}

/// The pictures of a document: the words in their place, and the path.
fn pictures(text: &str) -> Vec<(&str, &str)> {
    let picture = |rest| {
        let (words, rest) = str::split_once(rest, "](")?;
        Some((words, rest.split(')').next()?))
    };
    text.split("![").skip(1).filter_map(picture).collect()
}

#[test]
fn every_picture_is_on_a_page_with_words_in_its_place() {
    let paths: Vec<String> =
        documents().iter().map(|path| format!("docs/{path}")).chain(["README.md".into()]).collect();
    let mut shown = BTreeSet::new();
    for path in &paths {
        for (words, picture) in pictures(&read(path)) {
            assert!(!words.trim().is_empty(), "{path}: {picture} has no words in its place");
            shown.extend(picture.rsplit('/').next().map(str::to_owned));
        }
    }
    let files = files_below(&toolbox::root().join("docs/images"));
    let names = files.iter().filter_map(|path| path.file_name()?.to_str());
    let unseen: Vec<&str> = names.filter(|name| !shown.contains(*name)).collect();
    assert!(unseen.is_empty(), "no page shows {unseen:?} of docs/images");
}

/// What is wrong with an SVG.
fn svg_problem(picture: &Path) -> Option<String> {
    let output = Command::new("python3").args(["-c", CHECK_SVG]).arg(picture).output();
    let output = output.expect("Python starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(said)
}

#[test]
fn drawings_are_well_formed_and_have_a_title_and_a_description() {
    let mut drawings = files_below(&toolbox::root().join("docs/images"));
    drawings.retain(|path| path.extension().is_some_and(|extension| extension == "svg"));
    assert!(!drawings.is_empty());
    for drawing in drawings {
        assert_eq!(svg_problem(&drawing), None, "{}", drawing.display());
    }
}

#[test]
fn a_drawing_that_is_broken_or_says_nothing_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let find = |text: &str| {
        let file = folder.path().join("drawing.svg");
        std::fs::write(&file, text).expect("a drawing");
        svg_problem(&file).unwrap_or_default()
    };
    let good = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 9 9\">\
                <title>a</title><desc>b</desc><rect width=\"9\" height=\"9\"/></svg>";
    assert_eq!(find(good), "");
    assert!(find(&good.replace("</desc>", "")).contains("ParseError"));
    assert!(find(&good.replace("<desc>b</desc>", "")).contains("no desc"));
    assert!(find(&good.replace("<title>a", "<title> ")).contains("no title"));
    assert!(find(&good.replace("viewBox", "size")).contains("no viewBox"));
    assert!(find(&good.replace("height=\"9\"", "height=\"5\"")).contains("no ground"));
}

/// The rows of its table begin with what lines of the demo contain.
#[test]
fn the_start_page_names_what_the_demo_plays() {
    let (start, demo) = (read("docs/START.md"), read("tests/demo/src/scenario.rs"));
    let rows = readme::section(&start, "Run the demo").lines();
    let phases: Vec<&str> =
        rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    assert!(!phases.is_empty());
    for phase in phases {
        assert!(demo.contains(phase), "docs/START.md: the demo does not play \"{phase}\"");
    }
}
