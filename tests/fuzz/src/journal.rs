//! The files that agents and coordinators read back: an agent's journal, the coordinators' exposure
//! log, and their last good manifests. The first byte of an input says which file the rest is.
//! Checksums keep libFuzzer from everything behind them, so most inputs get valid ones.

use std::path::Path;

use leasehold_agent::inputs;
use leasehold_manifest::last_good;
use leasehold_platform_file::exposure_log;

/// The version of the journal's format.
const FORMAT: u32 = 2;

/// Reads an input as a file.
pub fn run(input: &[u8]) {
    let Some((first, file)) = input.split_first() else { return };
    match first % 5 {
        0 => agent_journal(file),
        1 => agent_journal(&sealed(file)),
        2 => exposures(file),
        3 => last_good(&String::from_utf8_lossy(file)),
        _ => last_good(&with_heading(&String::from_utf8_lossy(file))),
    }
}

fn agent_journal(file: &[u8]) {
    let written = match inputs::journal(file) {
        Ok(written) => written,
        Err(why) => return assert!(!why.is_empty()),
    };
    let again = inputs::journal(&written).expect("an agent reads what it writes");
    assert_eq!(
        String::from_utf8_lossy(&again),
        String::from_utf8_lossy(&written),
        "a journal that is read and written anew changes"
    );
}

fn exposures(file: &[u8]) {
    let path = Path::new("1.log");
    let entries = match exposure_log::parse(path, file) {
        Ok(entries) => entries,
        Err(why) => return assert!(why.to_string().contains("1.log:"), "{why}"),
    };
    let text = exposure_log::text_of(&entries).expect("JSON");
    let again = exposure_log::parse(path, &text).expect("it was just written");
    assert_eq!(again, entries);
}

fn last_good(file: &str) {
    let (state, problems) = match last_good::read(file) {
        Ok(read) => read,
        Err(why) => return assert!(!why.is_empty()),
    };
    assert!(problems.iter().all(|problem| !problem.message.is_empty()), "{problems:?}");
    let text = String::from_utf8(last_good::write(&state).expect("JSON")).expect("UTF-8");
    let (again, problems) = last_good::read(&text).expect("it was just written");
    assert_eq!(problems, [], "{text}");
    assert_eq!(again, state, "{text}");
}

/// A journal with these lines: each gets its checksum, and the first line says where it ends.
fn sealed(lines: &[u8]) -> Vec<u8> {
    let length = mark(0).len();
    let mut journal = mark(0);
    let mut sum = 0;
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        sum = checksum(sum, line);
        journal.extend(format!("{sum:08x} ").into_bytes());
        journal.extend(line);
        journal.push(b'\n');
    }
    let end = journal.len();
    journal[..length].copy_from_slice(&mark(end));
    journal
}

fn mark(end: usize) -> Vec<u8> {
    let bytes = format!("{end:016x}");
    let sum = checksum(FORMAT, bytes.as_bytes());
    format!("{{\"journal\":{FORMAT},\"bytes\":\"{bytes}\",\"sum\":\"{sum:08x}\"}}\n").into_bytes()
}

fn checksum(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_be_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// The text of a last good state with this body.
fn with_heading(body: &str) -> String {
    let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = body.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    format!("leasehold.dev/v1alpha1 last good state, format 1, checksum {sum:016x}\n{body}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the fuzzer would only ever see refusals.
    #[test]
    fn what_gets_its_checksums_here_is_read() {
        let header = br#"{"boot_id":"b","cluster":"ci","worker":"w"}"#;
        inputs::journal(&sealed(header)).expect("a journal");
        last_good::read(&with_heading("")).expect("a state");
    }
}
