//! Edits as a JSON patch (RFC 6902).

use leasehold_injection::{Change, Edit, Step};
use serde_json::{Value, json};

/// The patch that makes these edits, one after the other.
pub(super) fn patch(edits: &[Edit]) -> Value {
    edits.iter().map(operation).collect()
}

fn operation(edit: &Edit) -> Value {
    let path = pointer(&edit.path);
    match &edit.change {
        Change::Insert(value) => json!({ "op": "add", "path": path, "value": value }),
        Change::Replace(value) => json!({ "op": "replace", "path": path, "value": value }),
        Change::Remove => json!({ "op": "remove", "path": path }),
    }
}

/// A place as a JSON pointer (RFC 6901).
fn pointer(path: &[Step]) -> String {
    path.iter().fold(String::new(), |pointer, step| match step {
        Step::Key(key) => pointer + "/" + &key.replace('~', "~0").replace('/', "~1"),
        Step::Index(index) => pointer + "/" + &index.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_slashes_and_tildes_and_places_in_lists_are_found() {
        let at = |path: &[Step], change| Edit { path: path.to_vec(), change };
        let key = |key: &str| Step::Key(key.to_owned());
        let label = [key("metadata"), key("labels"), key("a.dev/x~y")];
        let edits = [
            at(&label, Change::Insert(json!("v"))),
            at(&[key("spec"), key("initContainers"), Step::Index(0)], Change::Insert(json!({}))),
            at(&label, Change::Replace(json!("w"))),
            at(&label, Change::Remove),
        ];
        let path = "/metadata/labels/a.dev~1x~0y";
        let wanted = json!([
            { "op": "add", "path": path, "value": "v" },
            { "op": "add", "path": "/spec/initContainers/0", "value": {} },
            { "op": "replace", "path": path, "value": "w" },
            { "op": "remove", "path": path },
        ]);
        assert_eq!(patch(&edits), wanted);
    }
}
