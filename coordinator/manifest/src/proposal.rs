//! Edited manifests that are not in force: what they would define, by the rules by which manifests
//! come into force. It changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_types::limits::NamespaceShare;

use super::admission;
use super::catalog::{self, Definition, FileContent, Reading, bounded};
use super::check::{self, Document, ObjectId, Origin};
use super::collection::called;
use super::decode::UnknownFields;
use super::folder::is_yaml;
use super::manifest::{API_VERSION, ConfigMapKeyRef};
use super::problem::Problem;
use super::resolve::{MissingClass, Rules, StreamFiles, resolve};
use super::tree::{Node, Value};

/// The namespace of an object whose manifest names none.
const NAMESPACE: &str = "default";

/// What the files of a proposal stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All manifests of a folder: what they do not define goes.
    WholeFolder,
    /// Some manifests of a folder: everything else stays.
    SomeFiles,
    /// Objects for an API server: everything else stays, and documents of other kinds are left
    /// out.
    Objects,
    /// The same as people write them: a field that no type knows is wrong, as `kubectl apply` has
    /// it.
    WrittenObjects,
}

/// What files stand for, by their content: objects for an API server where a document belongs to
/// another API, or where none takes streams from a file, and one names its namespace or takes
/// streams from a ConfigMap; otherwise a whole folder.
#[must_use]
pub fn scope_of(files: &BTreeMap<String, String>) -> Scope {
    let (mut names_file, mut names_objects) = (false, false);
    for (file, text) in files.iter().filter(|(file, _)| is_yaml(file)) {
        let FileContent::Documents(nodes) = FileContent::of(file, text) else { continue };
        if nodes.iter().any(is_of_other_api) {
            return Scope::WrittenObjects;
        }
        names_file |= nodes.iter().any(|node| check::sources(node).next().is_some());
        names_objects |= nodes.iter().any(|node| has_namespace(node) || names_config_map(node));
    }
    if names_objects && !names_file { Scope::WrittenObjects } else { Scope::WholeFolder }
}

/// What would be in force, were these files applied: their text by their path.
#[must_use]
pub fn propose(in_force: &Arc<Desired>, files: &BTreeMap<String, String>, scope: Scope) -> Reading {
    let mut problems = Vec::new();
    let mut documents = Vec::new();
    for (file, text) in files.iter().filter(|(file, _)| is_yaml(file)) {
        match FileContent::of(file, text) {
            FileContent::Opaque(problem) => problems.extend(problem),
            FileContent::Documents(nodes) => {
                documents.extend(nodes.into_iter().map(|node| (file.as_str(), node)));
            }
        }
    }
    let lists = match scope {
        Scope::Objects | Scope::WrittenObjects => config_maps(&documents, &mut problems),
        Scope::WholeFolder | Scope::SomeFiles => stream_files(files, &mut documents, &mut problems),
    };
    match scope {
        Scope::Objects => {
            documents.retain(|(_, node)| text_of(node, "apiVersion") == Some(API_VERSION));
        }
        Scope::WrittenObjects => documents.retain(|(_, node)| is_of_own_api(node)),
        Scope::WholeFolder | Scope::SomeFiles => {}
    }
    let mut definitions: BTreeMap<ObjectId, Vec<Definition>> = BTreeMap::new();
    for (file, node) in documents {
        let document = checked(scope, file, node, &mut problems);
        if let Some(id) = document.id.clone() {
            let definition = Definition { file: file.to_owned(), document };
            definitions.entry(id).or_default().push(definition);
        }
    }
    let mut candidates = catalog::candidates(definitions, &BTreeMap::new(), &mut problems);
    if scope != Scope::WholeFolder {
        for (id, kept) in admission::candidates(in_force) {
            candidates.entry(id).or_insert(kept);
        }
        for id in in_force.sets.keys().cloned().map(ObjectId::Set) {
            let kept = admission::candidate(called(&id), None);
            candidates.entry(id).or_insert(kept);
        }
    }
    let rules = match scope {
        Scope::Objects | Scope::WrittenObjects => {
            Rules { missing: MissingClass::Awaited, share: NamespaceShare::WHOLE }
        }
        Scope::WholeFolder | Scope::SomeFiles => Rules::of_files(MissingClass::Refused),
    };
    let desired = resolve(candidates, &lists, rules, in_force, &mut problems);
    Reading { desired: Some(Arc::new(desired)), problems: bounded(problems), ignored: Vec::new() }
}

/// One document, by the rules of its scope.
fn checked(scope: Scope, file: &str, mut node: Node, problems: &mut Vec<Problem>) -> Document {
    let namespace = node.get("metadata").and_then(|metadata| metadata.get("namespace"));
    let namespace = namespace.and_then(Node::text).unwrap_or(NAMESPACE).to_owned();
    match scope {
        Scope::Objects => check::document(file, Origin::Namespace(&namespace), node, problems),
        Scope::WrittenObjects => {
            keep_own_metadata(&mut node);
            let origin = Origin::Namespace(&namespace);
            check::document_with(UnknownFields::Refused, file, origin, node, problems)
        }
        Scope::WholeFolder | Scope::SomeFiles => {
            check::document(file, Origin::File, node, problems)
        }
    }
}

/// The files of streams that these manifests name, as paths in the same folder.
#[must_use]
pub fn stream_files_of(files: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for (file, text) in files.iter().filter(|(file, _)| is_yaml(file)) {
        if let FileContent::Documents(nodes) = FileContent::of(file, text) {
            named.extend(nodes.iter().flat_map(|node| catalog::named_sources(file, node)));
        }
    }
    named
}

/// The lists in the files that documents name; removes these files from the documents.
fn stream_files(
    files: &BTreeMap<String, String>,
    documents: &mut Vec<(&str, Node)>,
    problems: &mut Vec<Problem>,
) -> StreamFiles {
    let named = documents.iter().flat_map(|(file, node)| catalog::named_sources(file, node));
    let sources: BTreeSet<String> = named.collect();
    documents.retain(|(file, _)| !sources.contains(*file));
    let mut lists = StreamFiles::new();
    // A file that is missing is reported by the set that names it.
    for (source, text) in sources.iter().filter_map(|source| files.get_key_value(source)) {
        let list = catalog::stream_list(source, text);
        let list = list.map_err(|wrong| problems.extend(wrong));
        lists.insert(source.clone(), list.ok());
    }
    lists
}

/// The lists in the ConfigMaps among the documents.
fn config_maps(documents: &[(&str, Node)], problems: &mut Vec<Problem>) -> StreamFiles {
    let mut lists = StreamFiles::new();
    let maps = documents.iter().filter(|(_, node)| text_of(node, "kind") == Some("ConfigMap"));
    for (_, node) in maps {
        let Some(metadata) = node.get("metadata") else { continue };
        let Some(name) = text_of(metadata, "name") else { continue };
        let namespace = text_of(metadata, "namespace").unwrap_or(NAMESPACE);
        let Some(Value::Map(data)) = node.get("data").map(|data| &data.value) else { continue };
        for (key, text) in data.iter().filter_map(|(key, value)| Some((key.text()?, value.text()?)))
        {
            let reference = ConfigMapKeyRef { name: name.to_owned(), key: key.to_owned() };
            let file = check::config_map(namespace, &reference);
            let list = catalog::stream_list(&file, text);
            let list = list.map_err(|wrong| problems.extend(wrong));
            lists.insert(file, list.ok());
        }
    }
    lists
}

/// Whether a document is a manifest, if perhaps with a mistyped version.
fn is_of_own_api(node: &Node) -> bool {
    let group = API_VERSION.split('/').next();
    let has_group =
        text_of(node, "apiVersion").is_some_and(|version| version.split('/').next() == group);
    // Other APIs have pipelines, too.
    let is_own_kind = |kind: &str| kind != "Pipeline" && check::KINDS.contains(&kind);
    has_group || text_of(node, "kind").is_some_and(is_own_kind)
}

fn is_of_other_api(node: &Node) -> bool {
    text_of(node, "apiVersion").is_some() && !is_of_own_api(node)
}

fn has_namespace(node: &Node) -> bool {
    node.get("metadata").is_some_and(|metadata| text_of(metadata, "namespace").is_some())
}

fn names_config_map(node: &Node) -> bool {
    check::stream_sources(node).any(|source| source.get("configMapKeyRef").is_some())
}

/// Leaves out the metadata that an API server adds.
fn keep_own_metadata(node: &mut Node) {
    const OWN: [&str; 4] = ["name", "namespace", "labels", "annotations"];
    let Value::Map(entries) = &mut node.value else { return };
    let metadata = entries.iter_mut().find(|(key, _)| key.text() == Some("metadata"));
    if let Some((_, Node { value: Value::Map(fields), .. })) = metadata {
        fields.retain(|(key, _)| key.text().is_some_and(|key| OWN.contains(&key)));
    }
}

fn text_of<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.get(key).and_then(Node::text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
                           metadata: {name: builds}\nspec: {maxJobs: 6, maxJobsPerWorker: 3}\n";
    const SET: &str = "apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\n\
                       metadata: {name: cars}\nspec: {cluster: builds, streamsFrom: [{SOURCE}]}\n";

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn in_force(scope: Scope, given: &[(&str, &str)]) -> Arc<Desired> {
        let Reading { desired, problems, .. } = propose(&Arc::default(), &files(given), scope);
        assert_eq!(problems, []);
        desired.unwrap()
    }

    #[test]
    fn what_a_whole_folder_does_not_define_goes_and_beside_some_files_all_stays() {
        let set = SET.replace("SOURCE", "file: list.txt");
        let all = [("a.yaml", CLUSTER), ("b.yaml", &set), ("list.txt", "one\ntwo\n")];
        assert_eq!(stream_files_of(&files(&all)), BTreeSet::from(["list.txt".to_owned()]));
        let before = in_force(Scope::WholeFolder, &all);
        assert_eq!(before.sets.values().next().unwrap().streams.len(), 2);

        let edited = CLUSTER.replace("maxJobs: 6", "maxJobs: 9");
        let edited = files(&[("edited.yaml", &edited)]);
        let budget = |desired: &Desired| desired.clusters.values().next().unwrap().jobs_max;
        for (scope, sets) in [(Scope::WholeFolder, 0), (Scope::SomeFiles, 1)] {
            let Reading { desired, problems, .. } = propose(&before, &edited, scope);
            let desired = desired.unwrap();
            assert_eq!(problems, []);
            assert_eq!((budget(&desired), desired.sets.len()), (9, sets), "{scope:?}");
        }
        assert_eq!(budget(&before), 6, "nothing is put in force");

        let invalid = CLUSTER.replace("maxJobs: 6", "maxJobs: many");
        let Reading { desired, problems, .. } =
            propose(&before, &files(&[("a.yaml", &invalid)]), Scope::SomeFiles);
        assert_eq!(budget(&desired.unwrap()), 6, "what is in force stays");
        assert_eq!((problems.len(), &*problems[0].file), (1, "a.yaml"), "{problems:?}");
        assert_eq!(problems[0].field, "spec.maxJobs");
    }

    #[test]
    fn objects_are_named_by_namespace_and_lists_are_in_config_maps() {
        let list = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lists, namespace: ci}\n\
                    data: {cars: \"one\\ntwo\\n\"}\n";
        let set = SET.replace("SOURCE", "configMapKeyRef: {name: lists, key: cars}");
        let set = set.replace("name: cars}\n", "name: cars, namespace: ci}\n");
        let cluster = CLUSTER.replace("name: builds", "name: builds, namespace: ci");
        let text = [cluster.as_str(), &set, list, "apiVersion: v1\nkind: Service\n"].join("---\n");
        let desired = in_force(Scope::Objects, &[("all.yaml", &text)]);
        let (name, set) = desired.sets.iter().next().unwrap();
        assert_eq!((name.as_str(), set.streams.len()), ("ci/cars", 2));

        let alone =
            propose(&Arc::default(), &files(&[("set.yaml", &set_alone(&text))]), Scope::Objects);
        let missing = alone.problems.iter().find(|problem| problem.message.contains("ConfigMap"));
        assert!(missing.is_some(), "{:?}", alone.problems);
    }

    #[test]
    fn files_are_objects_by_their_content() {
        let with = |source: &str| SET.replace("SOURCE", source);
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
        let config_map = with("configMapKeyRef: {name: lists, key: cars}");
        for (texts, expected) in [
            (vec![CLUSTER.to_owned()], Scope::WholeFolder),
            (vec![CLUSTER.replace("v1alpha1", "v1")], Scope::WholeFolder),
            (vec![CLUSTER.replace("leasehold.dev", "leashold.dev")], Scope::WholeFolder),
            (
                vec![with("file: list.txt").replace("cars}", "cars, namespace: ci}")],
                Scope::WholeFolder,
            ),
            (vec![with("file: list.txt"), service.to_owned()], Scope::WrittenObjects),
            (vec![CLUSTER.to_owned(), service.to_owned()], Scope::WrittenObjects),
            (vec![CLUSTER.replace("builds", "builds, namespace: ci")], Scope::WrittenObjects),
            (vec![CLUSTER.to_owned(), config_map], Scope::WrittenObjects),
        ] {
            let text = texts.join("---\n");
            assert_eq!(scope_of(&files(&[("all.yaml", &text)])), expected, "{text}");
        }
    }

    #[test]
    fn an_unknown_field_of_an_object_is_wrong_where_people_write_it() {
        let written = CLUSTER.replace("name: builds", "name: builds, uid: a, namespace: ci");
        let mistyped = written.replace("maxJobs: 6", "maxJobs: 6, leese: {ttl: 5s}");
        let version = written.replace("v1alpha1", "v1alpha7");
        for (text, scope, fields) in [
            (&written, Scope::WrittenObjects, vec![]),
            (&mistyped, Scope::WrittenObjects, vec!["spec.leese"]),
            (&mistyped, Scope::Objects, vec![]),
            (&version, Scope::WrittenObjects, vec!["apiVersion"]),
        ] {
            let proposal = propose(&Arc::default(), &files(&[("a.yaml", text)]), scope);
            let found: Vec<&str> =
                proposal.problems.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(found, fields, "{scope:?}: {text}");
        }
    }

    /// The cluster and the set, without the list.
    fn set_alone(text: &str) -> String {
        text.split("---\n").take(2).collect::<Vec<_>>().join("---\n")
    }
}
