//! The fuzzers of the decoders that a stranger reaches, one function for each family. The programs
//! in `fuzz_targets` give them what libFuzzer makes up; the test below gives them the committed
//! files of `corpus`, in every run of the tests and without libFuzzer.
//!
//! Invariant: a function ends by a panic if a decoder breaks its promise, and only then. What is
//! refused is as good as what is taken, as long as the refusal says why.

pub mod admin;
pub mod exposure;
pub mod http;
pub mod journal;
pub mod manifest;
pub mod session;
pub mod watchdog;
pub mod webhook;
pub mod worker;

mod answer;
mod fleet;
mod request;

/// Feeds one input to a decoder.
pub type Fuzzer = fn(&[u8]);

/// The fuzzers, by the names of their folders in `corpus` and of their files in `fuzz_targets`.
pub const FUZZERS: [(&str, Fuzzer); 8] = [
    ("admin", admin::run),
    ("exposure", exposure::run),
    ("http", http::run),
    ("journal", journal::run),
    ("manifest", manifest::run),
    ("session", session::run),
    ("webhook", webhook::run),
    ("worker", worker::run),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// The most files of a corpus that are committed, and their bytes in all corpora together.
    const FILES_MAX: usize = 30;
    const BYTES_MAX: usize = 300_000;

    fn inside(folder: &str) -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| {
            panic!("{}: {error}", folder.display());
        });
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths
    }

    fn names(folder: &str) -> BTreeSet<String> {
        let stem = |path: PathBuf| path.file_stem().expect("a name").display().to_string();
        inside(folder).into_iter().map(stem).collect()
    }

    #[test]
    fn every_fuzzer_has_a_program_and_a_corpus() {
        let fuzzers: BTreeSet<String> = FUZZERS.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names("fuzz_targets"), fuzzers);
        assert_eq!(names("corpus"), fuzzers);
    }

    #[test]
    fn every_committed_input_is_decoded_or_refused() {
        let mut bytes = 0;
        for (name, run) in FUZZERS {
            let files = inside(&format!("corpus/{name}"));
            assert!(!files.is_empty() && files.len() <= FILES_MAX, "{name}: {} files", files.len());
            for file in files {
                let input = fs::read(&file).expect("a readable file");
                bytes += input.len();
                eprintln!("{}", file.display());
                run(&input);
            }
        }
        assert!(bytes <= BYTES_MAX, "the corpora have {bytes} bytes");
    }
}
