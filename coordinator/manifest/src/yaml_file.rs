//! YAML files that are no manifests, read by the rules of manifests: whatever is wrong is named
//! with its file, line, column and field.

use serde::de::DeserializeOwned;

use super::decode::{FieldError, UnknownFields, decode, show};
use super::problem::Problem;
use super::tree::{self, Node, YamlError};

/// A file of one document, and where its values are.
#[derive(Debug)]
pub struct YamlFile<T> {
    /// What the document says.
    pub value: T,
    file: String,
    root: Node,
}

impl<T: DeserializeOwned> YamlFile<T> {
    /// Reads the text of a file that has this name in problems.
    ///
    /// # Errors
    /// Every value that does not fit.
    pub fn read(file: &str, text: &str) -> Result<Self, Vec<Problem>> {
        let documents = tree::parse(text).map_err(|YamlError { at, message }| {
            vec![Problem::new(file, at, "", format!("is not YAML: {message}"))]
        })?;
        let mut documents = documents.into_iter();
        let Some(mut root) = documents.next() else {
            return Err(vec![Problem::whole(file, "is empty: give its one document")]);
        };
        if let Some(second) = documents.next() {
            let message = "begins a second document, where one is read: remove it";
            return Err(vec![Problem::new(file, second.at, "", message)]);
        }
        let (value, errors) = decode(&mut root, UnknownFields::Refused);
        let problem =
            |error: FieldError| Problem::new(file, error.at, show(&error.path), error.message);
        match value {
            Some(value) if errors.is_empty() => Ok(Self { value, file: file.to_owned(), root }),
            _ => Err(errors.into_iter().map(problem).collect()),
        }
    }
}

impl<T> YamlFile<T> {
    /// A problem of a field, as in `clusters[0].workers`, at its place; at the value around it if
    /// the field is left out.
    pub fn problem(&self, field: &str, message: impl Into<String>) -> Problem {
        let (node, _) = self.value_of(field);
        Problem::new(&self.file, node.at, field, message)
    }

    /// Whether a field is written, as in `clusters[0].workers`.
    pub fn has(&self, field: &str) -> bool {
        let (_, is_written) = self.value_of(field);
        is_written
    }

    /// The value of a field, or the one around it if the field is left out; and whether it is not.
    fn value_of(&self, field: &str) -> (&Node, bool) {
        let mut node = &self.root;
        for step in field.split(['.', '[']) {
            let below = match step.strip_suffix(']') {
                Some(index) => index.parse().ok().and_then(|index| item(node, index)),
                None => node.get(step),
            };
            match below {
                Some(below) => node = below,
                None => return (node, false),
            }
        }
        (node, true)
    }
}

/// An item of a list.
fn item(list: &Node, index: usize) -> Option<&Node> {
    list.items().find(|(at, _)| *at == index).map(|(_, item)| item)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Shelf {
        parcels: Vec<Parcel>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Parcel {
        per_hour: f64,
        #[serde(default)]
        weight: Option<u32>,
    }

    const GOOD: &str = "parcels:\n- perHour: 2\n- perHour: 0.5\n  weight: 7\n";

    fn problems(text: &str) -> Vec<String> {
        let read = YamlFile::<Shelf>::read("shelf.yaml", text);
        read.unwrap_err().iter().map(Problem::to_string).collect()
    }

    #[test]
    fn numbers_may_be_whole_and_problems_have_the_place_of_their_field() {
        let shelf = YamlFile::<Shelf>::read("shelf.yaml", GOOD).unwrap();
        let parcels = &shelf.value.parcels;
        assert_eq!((parcels[0].per_hour, parcels[1].weight), (2.0, Some(7)));
        for (field, place) in [
            ("parcels[1].weight", "shelf.yaml:4:11: parcels[1].weight: is odd"),
            ("parcels[0].weight", "shelf.yaml:2:3: parcels[0].weight: is odd"),
            ("parcels[7]", "shelf.yaml:2:3: parcels[7]: is odd"),
        ] {
            assert_eq!(shelf.problem(field, "is odd").to_string(), place);
            assert_eq!(shelf.has(field), field == "parcels[1].weight", "{field}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_place_and_what_to_do() {
        for (text, problem) in [
            ("", "shelf.yaml: is empty: give its one document"),
            ("parcels: [\n", "shelf.yaml:"),
            (
                "parcels:\n- perHour: many\n",
                "shelf.yaml:2:12: parcels[0].perHour: is the text \"many\", but must be a number",
            ),
            (
                "parcels:\n- perHuor: 2\n  perHour: 1\n",
                "shelf.yaml:2:3: parcels[0].perHuor: is not a known field: remove it, or use one \
                 of: perHour, weight; did you mean perHour?",
            ),
            ("parcels: []\n---\nparcels: []\n", "begins a second document, where one is read"),
        ] {
            let found = problems(text);
            assert!(found.iter().any(|one| one.contains(problem)), "{text:?}: {found:?}");
        }
    }
}
