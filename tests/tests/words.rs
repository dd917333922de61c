//! One concept has one name: words that this project has replaced do not come back, neither in
//! names nor in texts. `docs/STYLE.md` says how names are chosen; ARCHITECTURE's "Words" has them.

use std::path::{Path, PathBuf};

use tests::tracked_files::{has_extension, text, tracked};

/// Words that are not used, and those that are used in their place.
const REPLACED: [(&str, &str); 36] = [
    ("as far as anyone can know", "upper bound"),
    ("asked back", "revoked"),
    ("asks back", "revokes"),
    ("attend", "handle sender"),
    ("beats behind", "ticks behind"),
    ("binding lease", "share lease"),
    ("another life", "another account"),
    ("held clusters", "clusters on hold"),
    ("rooms", "free capacity"),
    ("cling", "keep"),
    ("clings", "keeps"),
    ("keeper", "owner"),
    ("let go", "release, stop"),
    ("lets go", "releases, stops"),
    ("misfit", "unplaceable"),
    ("misfits", "unplaceable"),
    ("no time ends", "never expires"),
    ("nobody says", "unknown, empty"),
    ("node wish", "node request"),
    ("offence", "protocol violation"),
    ("offences", "protocol violations"),
    ("outcome of hello", "answer"),
    ("outlook", "published state"),
    ("pulse", "read watermark"),
    ("scene", "scenario"),
    ("speak for", "act for"),
    ("speaks for", "acts for"),
    ("tells everything", "is complete"),
    ("things wrong", "problems"),
    ("told most", "bytes max"),
    ("unheard", "unreported"),
    ("unproven", "unauthenticated"),
    ("upset", "disruption"),
    ("whereupon", "then"),
    ("whoever", "anyone who, the one who"),
    ("written down", "stored, recorded"),
];

/// Where such a word is a part of the released contract.
const RELEASED: [(&str, &str); 4] = [
    ("proto/leasehold/admin/v1/admin.proto", "offence"),
    ("docs/reference/api-admin.md", "offence"),
    ("coordinator/server/src/admin/changes.rs", "offence"),
    ("coordinator/http-api/page/kinds.js", "offence"),
];

/// Not searched: what is made from other files, what others have written, decisions, which keep the
/// words of their time, and this file.
const LEFT_OUT: [&str; 7] = [
    "CHANGELOG.md",
    "coordinator/platform-etcd/src/gen/",
    "docs/adr/",
    "proto/src/gen/",
    "tests/fuzz/corpus/",
    "tests/tests/words.rs",
    "tests/vendor/",
];
const SEARCHED: [&str; 9] = ["rs", "proto", "md", "py", "ts", "js", "yaml", "txt", "go"];

/// The replaced words in a text. Names are split into their words, and lines of a comment joined.
fn replaced_words(text: &str) -> Vec<(&'static str, &'static str)> {
    let words = words(text);
    let is_used = |phrase: &str| {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        words.windows(phrase.len()).any(|window| window == phrase)
    };
    REPLACED.into_iter().filter(|(phrase, _)| is_used(phrase)).collect()
}

/// The words of a text in lower case: `NodeWish`, `node_wish` and `node-wish` have the same two. A
/// phrase does not go beyond a mark such as a comma, which is a word of its own here.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for character in text.chars() {
        let is_hump = character.is_uppercase() && before.is_lowercase();
        if !character.is_alphanumeric() || is_hump {
            words.push(String::new());
        }
        // Those that begin a line of a comment join it to the line before.
        if !" \n_-/!#*".contains(character) {
            let word = words.last_mut().expect("there is one from the beginning");
            word.extend(character.to_lowercase());
        }
        if !character.is_alphanumeric() {
            words.push(String::new());
        }
        before = character;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn is_searched(path: &Path) -> bool {
    let is_left_out = LEFT_OUT.iter().any(|left_out| path.to_string_lossy().starts_with(left_out));
    !is_left_out && has_extension(path, &SEARCHED)
}

#[test]
fn replaced_words_do_not_come_back() {
    let mut found = Vec::new();
    let paths: Vec<PathBuf> = tracked().into_iter().filter(|path| is_searched(path)).collect();
    for path in &paths {
        let Some(text) = text(path) else { continue };
        for (phrase, instead) in replaced_words(&text) {
            if !RELEASED.contains(&(&path.to_string_lossy(), phrase)) {
                found.push(format!("{}: \"{phrase}\", use \"{instead}\"", path.display()));
            }
        }
    }
    assert!(paths.len() > 1_000, "only {} files are searched", paths.len());
    assert!(found.is_empty(), "replaced words:\n{}", found.join("\n"));
}

#[test]
fn finds_planted_words_in_names_messages_and_wrapped_comments() {
    for planted in [
        "struct NodeWish;",
        "let node_wish = 1;",
        "- name: node-wish",
        "\"a NODE wish\"",
        "    /// Each node\n    /// wish has a load.",
        "# a node\n# wish",
    ] {
        assert_eq!(replaced_words(planted), [("node wish", "node request")], "{planted:?}");
    }
    for innocent in ["NodeWishes", "a node, wished", "snodewish"] {
        assert_eq!(replaced_words(innocent), [], "{innocent:?}");
    }
}
