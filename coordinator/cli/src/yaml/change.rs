//! Makes edits on a tree. What an edit touches stands for itself afterwards: an alias on the way
//! becomes a copy of what it refers to, other aliases of what is changed become copies of what
//! it was, and a merged key becomes the map's own.

use leasehold_injection::{Change, Edit, Step};

use super::tree::{Kind, Node};
use super::value::{from_json, merged, text_node};

/// Makes the edits below `base`, in order. `None` where a place is not there, or copies grow beyond
/// all bounds.
pub(crate) fn apply(root: &mut Node, base: &[Step], edits: &[Edit]) -> Option<()> {
    for edit in edits {
        let path = [base, &edit.path].concat();
        let (last, parent) = path.split_last()?;
        clear(root, parent)?;
        if edit.change != Change::Remove && !matches!(edit.change, Change::Insert(_)) {
            own(root, parent, last)?;
        }
        let node = at(root, parent)?;
        match (&edit.change, last, &mut node.kind) {
            (Change::Insert(value), Step::Key(key), Kind::Map(entries)) => {
                entries.push((text_node(key), from_json(value)));
            }
            (Change::Insert(value), Step::Index(index), Kind::List(items)) => {
                (*index <= items.len()).then(|| items.insert(*index, from_json(value)))?;
            }
            (Change::Replace(value), last, _) => {
                *at(node, std::slice::from_ref(last))? = from_json(value);
            }
            (Change::Remove, Step::Key(key), Kind::Map(entries)) => {
                entries.retain(|(name, _)| name.text() != Some(key));
            }
            (Change::Remove, Step::Index(index), Kind::List(items)) => {
                (*index < items.len()).then(|| drop(items.remove(*index)))?;
            }
            _ => return None,
        }
    }
    Some(())
}

fn at<'a>(root: &'a mut Node, path: &[Step]) -> Option<&'a mut Node> {
    path.iter().try_fold(root, |node, step| match (step, &mut node.kind) {
        (Step::Key(key), Kind::Map(entries)) => {
            let found = entries.iter_mut().find(|(name, _)| name.text() == Some(key));
            found.map(|(_, value)| value)
        }
        (Step::Index(index), Kind::List(items)) => items.get_mut(*index),
        _ => None,
    })
}

/// Sees to it that every node on the way, the last too, is the document's own and nobody else's.
fn clear(root: &mut Node, path: &[Step]) -> Option<()> {
    for length in 0..=path.len() {
        if let Some((step, before)) = path[..length].split_last() {
            own(root, before, step)?;
        }
        let node = at(root, &path[..length])?;
        if let Kind::Alias(number) = node.kind {
            let alias = node.at.as_ref().map(|place| place.range.clone());
            let copy = copy_of(root, number)?;
            *at(root, &path[..length])? = Node { alias, ..copy };
        } else if let Some(number) = node.anchor {
            let copy = copy_of(root, number)?;
            set_free(root, number, &copy);
        }
    }
    Some(())
}

fn copy_of(root: &Node, number: usize) -> Option<Node> {
    let anchors = root.anchors();
    Some(anchors.get(&number)?.copied(&anchors)?.placeless())
}

/// Gives all aliases of a node copies of it, so that they do not change with it.
fn set_free(node: &mut Node, number: usize, copy: &Node) {
    if matches!(node.kind, Kind::Alias(other) if other == number) {
        let alias = node.at.as_ref().map(|place| place.range.clone());
        *node = Node { alias, ..copy.clone() };
    }
    node.below_mut().into_iter().for_each(|node| set_free(node, number, copy));
}

/// Makes a key that a map has by merging its own.
fn own(root: &mut Node, map: &[Step], step: &Step) -> Option<()> {
    let Step::Key(key) = step else { return Some(()) };
    let node = at(root, map)?;
    if node.get(key).is_some() {
        return Some(());
    }
    let whole = node.clone();
    let copy = whole.copied(&root.anchors())?;
    let found = merged(&copy).into_iter().find(|(name, _)| name == key)?;
    let value = found.1.clone().placeless();
    if let Kind::Map(entries) = &mut at(root, map)?.kind {
        entries.push((text_node(key), value));
    }
    Some(())
}
