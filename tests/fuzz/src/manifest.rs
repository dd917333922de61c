//! Manifests: the YAML that people write, its check, and what it resolves to. An input is one file,
//! or several: a line `#FILE NAME` begins another one. What is in force is then written as the last
//! good state and read back.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_manifest::Problem;
use leasehold_manifest::changes::objects;
use leasehold_manifest::last_good::{self, LastGood};
use leasehold_manifest::proposal::{Scope, propose, stream_files_of};

/// Begins another file.
const MARK: &str = "#FILE ";
/// The files of an input, at most.
const FILES_MAX: usize = 8;

/// Reads an input as manifests.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let files = files(text);
    black_box(stream_files_of(&files));
    let whole = in_force(&Arc::default(), &files, Scope::WholeFolder);
    is_kept(&whole);
    let beside = in_force(&whole, &files, Scope::SomeFiles);
    assert_eq!(objects(&whole, &beside), [], "the same files change what they have put in force");
    // Objects of an API server are not kept in a file.
    in_force(&beside, &files, Scope::Objects);
}

/// The files of an input, by name.
pub(crate) fn files(text: &str) -> BTreeMap<String, String> {
    let text = text.strip_prefix(MARK).map_or_else(|| format!("a.yaml\n{text}"), str::to_owned);
    let separator = format!("\n{MARK}");
    let parts = text.splitn(FILES_MAX, &separator).filter_map(|part| part.split_once('\n'));
    parts.map(|(name, text)| (name.trim().to_owned(), text.to_owned())).collect()
}

fn in_force(before: &Arc<Desired>, files: &BTreeMap<String, String>, scope: Scope) -> Arc<Desired> {
    let reading = propose(before, files, scope);
    reading.problems.iter().for_each(says_why);
    reading.desired.expect("a proposal resolves to something")
}

fn says_why(problem: &Problem) {
    assert!(!problem.message.is_empty() && !problem.file.is_empty(), "{problem:?}");
}

/// What is in force outlives the process: it is written as manifests, and read by the same rules.
fn is_kept(desired: &Arc<Desired>) {
    let state = LastGood { desired: Arc::clone(desired), gave: BTreeMap::new() };
    let text = last_good::write(&state).expect("JSON");
    let text = String::from_utf8(text).expect("JSON is UTF-8");
    let (again, problems) = last_good::read(&text).expect("it was just written");
    assert_eq!(problems, [], "{text}");
    assert_eq!(again, state, "{text}");
}
