//! Clusters and pipelines by the names that a file has for them: the full name, or the name without
//! its namespace.
//!
//! **Invariant**: a name that several of them could have means none of them.

use leasehold_types::did_you_mean;

/// The most names that a message lists.
const NAMES_SHOWN_MAX: usize = 10;

/// Why a name does not mean one of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfound {
    /// None has it.
    Unknown,
    /// Several have it, in different namespaces. This is the message.
    Ambiguous(String),
}

/// The place of the one that has this full name, or else is the only one that has this name in its
/// namespace.
pub(super) fn find(name: &str, known: &[&str]) -> Result<usize, Unfound> {
    if let Some(place) = known.iter().position(|full| *full == name) {
        return Ok(place);
    }
    let mut named = known.iter().enumerate().filter(|(_, full)| without_namespace(full) == name);
    match (named.next(), named.next()) {
        (None, _) => Err(Unfound::Unknown),
        (Some((place, _)), None) => Ok(place),
        (Some((_, one)), Some((_, other))) => {
            let message = format!("is {name}, but there are {one} and {other}: name one of them");
            Err(Unfound::Ambiguous(message))
        }
    }
}

/// The end of a message about an unknown name: the one that may be meant, or else `or_use` and
/// those that are known, which are not none.
pub(super) fn known_names(name: &str, known: &[&str], or_use: &str) -> String {
    let has_namespace = name.contains('/');
    let names =
        known.iter().map(|full| if has_namespace { *full } else { without_namespace(full) });
    let near = did_you_mean(name, names);
    if !near.is_empty() {
        return near;
    }
    let shown: Vec<&str> = known.iter().take(NAMES_SHOWN_MAX).copied().collect();
    let left = known.len().saturating_sub(NAMES_SHOWN_MAX);
    let more = if left > 0 { format!(", and {left} more") } else { String::new() };
    format!("{or_use} one of: {}{more}", shown.join(", "))
}

fn without_namespace(full: &str) -> &str {
    full.split_once('/').map_or(full, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_the_only_cluster_that_has_it() {
        let known = ["ci/builds", "web/builds", "web/feeds"];
        assert_eq!(find("feeds", &known), Ok(2));
        assert_eq!(find("web/builds", &known), Ok(1));
        let ambiguous = "is builds, but there are ci/builds and web/builds: name one of them";
        assert_eq!(find("builds", &known), Err(Unfound::Ambiguous(ambiguous.to_owned())));
        assert_eq!(find("ci/feeds", &known), Err(Unfound::Unknown));
        assert_eq!(find("builds", &["ci/builds", "builds"]), Ok(1), "a full name comes first");
    }

    #[test]
    fn an_unknown_name_is_answered_with_a_similar_one_or_with_all() {
        let answer = |name: &str, known: &[&str]| known_names(name, known, ": use");
        assert_eq!(answer("buids", &["ci/builds"]), "; did you mean builds?");
        assert_eq!(answer("ci/buids", &["ci/builds"]), "; did you mean ci/builds?");
        assert_eq!(answer("x", &["ci/builds", "feeds"]), ": use one of: ci/builds, feeds");
        let many: Vec<String> = (0..12).map(|number| format!("fleet-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let text = answer("other", &many);
        assert!(text.ends_with("fleet-8, fleet-9, and 2 more"), "{text}");
    }
}
