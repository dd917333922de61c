//! Finds lines for messages.

use super::tree::{Kind, Node};

/// The line of what a message names, as in `spec.containers[0].env`: of as much of the path as is
/// there.
pub(crate) fn find(node: &Node, path: &str) -> Option<usize> {
    let line = |node: &Node| node.at.as_ref().map(|place| place.line);
    let mut here = node;
    let mut found = line(node);
    for step in steps(path) {
        let next = match &here.kind {
            Kind::List(items) => {
                step.parse().ok().and_then(|index: usize| items.get(index)).map(|it| (it, it))
            }
            Kind::Map(entries) => {
                let entry = entries.iter().find(|(key, _)| key.text() == Some(step));
                entry.map(|(key, value)| (key, value))
            }
            Kind::Scalar(..) | Kind::Alias(_) => None,
        };
        let Some((named, value)) = next else { break };
        found = line(named).or(found);
        here = value;
    }
    found
}

/// The steps of a path: names between dots, and indexes or whole keys in brackets.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(['.', ':', ' ']);
        let (step, after) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?,
            None => rest.split_at(rest.find(['.', '[', ':']).unwrap_or(rest.len())),
        };
        rest = after;
        (!step.is_empty()).then_some(step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_followed_as_far_as_they_go() {
        let source = "a:\n  b:\n    - c: 1\n    - x.y/z: 2\n";
        let documents = crate::yaml::read(source).expect("YAML");
        let line = |path: &str| find(&documents[0].root, path);
        assert_eq!(line("a"), Some(1));
        assert_eq!(line("a.b[1]"), Some(4));
        assert_eq!(line("a.b[1][x.y/z]"), Some(4));
        assert_eq!(line("a.b[7].c"), Some(2));
        assert_eq!(line("nowhere"), Some(1));
    }
}
