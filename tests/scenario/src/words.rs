//! The words of one command.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use leasehold_types::duration;

use crate::legend::literals;

/// The words of one command behind its verb. Every argument is read by the name that it has in the
/// verb's usage; what is left in the end is an error that names file and line.
pub struct Words<'a> {
    /// File and line, for errors.
    place: &'a str,
    line: &'a str,
    usage: &'a str,
    plain: Vec<&'a str>,
    pairs: Vec<(&'a str, &'a str)>,
    /// The keys, with their `=`, and the literal words that were asked for.
    read: Vec<String>,
}

impl<'a> Words<'a> {
    pub(crate) fn new(place: &'a str, line: &'a str, usage: &'a str) -> Self {
        let (mut plain, mut pairs) = (Vec::new(), Vec::new());
        for word in line.split_whitespace().skip(1) {
            match word.split_once('=') {
                Some(pair) => pairs.push(pair),
                None => plain.push(word),
            }
        }
        Self { place, line, usage, plain, pairs, read: Vec::new() }
    }

    /// Checks that the command has no other arguments, and the usage lists no other ones.
    pub(crate) fn finish(self) {
        let keys = self.pairs.iter().map(|(key, _)| format!("{key}="));
        let left: Vec<String> = keys.chain(self.plain.iter().map(ToString::to_string)).collect();
        if !left.is_empty() {
            self.fail(format_args!("unknown argument {}", left.join(" ")));
        }
        let unread = |literal: &&str| !self.read.iter().any(|read| read == literal);
        if let Some(literal) = literals(self.usage).find(unread) {
            self.fail(format_args!("the verb does not read {literal:?}, which its usage lists"));
        }
    }

    /// Fails the test with a message that names file, line and usage.
    ///
    /// # Panics
    /// Always.
    pub fn fail(&self, problem: impl Display) -> ! {
        panic!("{}: {}: {problem}\nusage: {}", self.place, self.line, self.usage)
    }

    /// The next word, if there is one.
    pub fn next_if_any(&mut self, name: &str) -> Option<&'a str> {
        assert!(self.usage.contains(name), "{name} is not in the usage {:?}", self.usage);
        (!self.plain.is_empty()).then(|| self.plain.remove(0))
    }

    /// The next word.
    pub fn next(&mut self, name: &str) -> &'a str {
        let Some(word) = self.next_if_any(name) else { self.fail(format_args!("no {name}")) };
        word
    }

    /// The next word, parsed.
    pub fn parse<T: FromStr<Err: Display>>(&mut self, name: &str) -> T {
        let word = self.next(name);
        self.parsed(name, word)
    }

    /// The next word as a duration.
    pub fn time(&mut self, name: &str) -> Duration {
        let word = self.next(name);
        duration::parse(word).unwrap_or_else(|error| self.fail(error))
    }

    /// All words that are left.
    pub fn rest(&mut self, name: &str) -> Vec<&'a str> {
        let first = self.next_if_any(name);
        first.into_iter().chain(std::mem::take(&mut self.plain)).collect()
    }

    /// Whether the command has this literal word.
    pub fn flag(&mut self, word: &'static str) -> bool {
        self.choice([word]).is_some()
    }

    /// Which of these literal words the command has, if any.
    pub fn choice<const N: usize>(&mut self, words: [&'static str; N]) -> Option<&'static str> {
        for word in words {
            self.note(word.to_owned());
        }
        let at = self.plain.iter().position(|word| words.contains(word))?;
        let found = self.plain.remove(at);
        words.into_iter().find(|word| *word == found)
    }

    /// The value of a key, if the command has it.
    pub fn value(&mut self, key: &str) -> Option<&'a str> {
        self.note(format!("{key}="));
        let at = self.pairs.iter().position(|(found, _)| *found == key)?;
        Some(self.pairs.remove(at).1)
    }

    /// The value of a key that the command must have.
    pub fn required<T: FromStr<Err: Display>>(&mut self, key: &str) -> T {
        let Some(value) = self.parse_value(key) else { self.fail(format_args!("no {key}=")) };
        value
    }

    /// The value of a key, parsed.
    pub fn parse_value<T: FromStr<Err: Display>>(&mut self, key: &str) -> Option<T> {
        self.value(key).map(|value| self.parsed(key, value))
    }

    /// The value of a key as a duration.
    pub fn duration(&mut self, key: &str) -> Option<Duration> {
        let parsed = duration::parse(self.value(key)?);
        Some(parsed.unwrap_or_else(|error| self.fail(error)))
    }

    /// The value of a key as a list with commas; empty without the key.
    pub fn list(&mut self, key: &str) -> Vec<&'a str> {
        self.value(key).map_or_else(Vec::new, |list| list.split(',').collect())
    }

    /// Whether the command has this key; it may have no other value.
    pub fn is(&mut self, key: &str, only: &str) -> bool {
        let value = self.value(key);
        if value.is_some_and(|value| value != only) {
            self.fail(format_args!("{key}= can be {only} only"));
        }
        value.is_some()
    }

    fn parsed<T: FromStr<Err: Display>>(&self, name: &str, text: &str) -> T {
        text.parse().unwrap_or_else(|error| self.fail(format_args!("{name}: {text:?}: {error}")))
    }

    fn note(&mut self, literal: String) {
        let is_listed = literals(self.usage).any(|listed| listed == literal);
        assert!(is_listed, "{literal:?} is not in the usage {:?}", self.usage);
        self.read.push(literal);
    }
}
