//! The rules on single values of a StreamSet, and where its streams are.

use std::sync::Arc;

use leasehold_coordinator_core::desired::{Mode, Moves, Policy, StreamSet};

use super::super::manifest::{
    ConfigMapKeyRef, ModeSpec, PolicySpec, STREAM_LIST_LABEL, StreamSetSpec, StreamsSource,
};
use super::super::streams::{self, ListDraft};
use super::super::tree::{Node, Position};
use super::{Checker, Origin, SOURCES_MAX, SetDraft, Source, is_given};

impl Checker<'_> {
    pub(super) fn set(&mut self, root: &Node, spec: &StreamSetSpec) -> Option<SetDraft> {
        let cluster = match self.home.cluster(&spec.cluster) {
            Ok(cluster) => Some(cluster),
            Err(error) => {
                self.blame(root, "spec.cluster", error);
                None
            }
        };
        if spec.moves.per_round == Some(0) {
            let message = "is 0, so that no stream could ever move: raise it, or leave it out";
            self.blame(root, "spec.moves.perRound", message);
        }
        if !is_given(root, "streams") && !is_given(root, "streamsFrom") {
            self.blame(root, "spec", "names no stream: add streams or streamsFrom");
        }
        let body = root.get("spec")?;
        let list = self.inline(body, spec);
        let sources = self.files(body, spec);
        let per_round = spec.moves.per_round.and_then(|n| usize::try_from(n).ok());
        let set = StreamSet {
            cluster: cluster?,
            streams: Arc::new(list.streams),
            policy: match spec.policy {
                PolicySpec::Sticky => Policy::Sticky,
                PolicySpec::Contiguous => Policy::Contiguous,
            },
            mode: match spec.mode {
                ModeSpec::Expiring => Mode::Expiring,
                ModeSpec::Pinned => Mode::Pinned,
            },
            handover_deadline: spec.handover.deadline.0,
            moves: Moves {
                per_round_max: per_round.unwrap_or(usize::MAX),
                cooldown: spec.moves.cooldown.0,
                settle: spec.moves.settle.0,
            },
        };
        let cluster_at = body.get("cluster").map_or(body.at, |node| node.at);
        Some(SetDraft { set: Arc::new(set), marks: list.marks, sources, cluster_at })
    }

    fn inline(&mut self, body: &Node, spec: &StreamSetSpec) -> ListDraft {
        let mut list = ListDraft::default();
        let Some(node) = body.get("streams") else { return list };
        for ((index, item), entry) in node.items().zip(&spec.streams) {
            match streams::check(entry) {
                Ok(stream) => list.push(stream, item.at),
                Err((field, message)) => {
                    let at = item.get(field).map_or(item.at, |node| node.at);
                    self.report(at, format!("spec.streams[{index}].{field}"), message);
                }
            }
        }
        list
    }

    fn files(&mut self, body: &Node, spec: &StreamSetSpec) -> Vec<Source> {
        let mut sources = Vec::new();
        let Some(node) = body.get("streamsFrom") else { return sources };
        if spec.streams_from.len() > SOURCES_MAX {
            let message = format!("names more than {SOURCES_MAX} files: join them");
            self.report(node.at, "spec.streamsFrom", message);
        }
        for ((index, item), source) in node.items().zip(&spec.streams_from) {
            match self.source(index, item, source) {
                Ok(source) => sources.push(source),
                Err((at, field, message)) => self.report(at, field, message),
            }
        }
        sources
    }

    /// Where one list of streams is, or what is wrong with its name.
    fn source(
        &self,
        index: usize,
        item: &Node,
        source: &StreamsSource,
    ) -> Result<Source, (Position, String, String)> {
        let below = |field: &str| format!("spec.streamsFrom[{index}].{field}");
        match (self.home, &source.file, &source.config_map_key_ref) {
            (Origin::File, Some(file), None) => {
                let base = self.file.rsplit_once('/').map_or("", |(folder, _)| folder);
                let at = item.get("file").map_or(item.at, |node| node.at);
                let outside = || {
                    let message =
                        format!("is {file:?}, outside the manifests' folder: give a path below it");
                    (at, below("file"), message)
                };
                let file = resolve(base, file).ok_or_else(outside)?;
                Ok(Source { file, at, field: below("file"), remedy: "create it".into() })
            }
            (Origin::Namespace(namespace), None, Some(key)) => {
                let file = config_map(namespace, key);
                let remedy = format!("create it, with the label {STREAM_LIST_LABEL}=true");
                Ok(Source { file, at: item.at, field: below("configMapKeyRef"), remedy })
            }
            (Origin::File, None, Some(_)) => {
                let message = "is read on Kubernetes only: name a file here".into();
                Err((item.at, below("configMapKeyRef"), message))
            }
            (Origin::Namespace(_), Some(_), None) => {
                let message = "is read in standalone mode only: put the streams into a ConfigMap \
                               and give configMapKeyRef";
                Err((item.at, below("file"), message.into()))
            }
            (_, Some(_), Some(_)) | (_, None, None) => {
                let message = "give exactly one of file and configMapKeyRef".into();
                Err((item.at, below("file"), message))
            }
        }
    }
}

/// The name of a ConfigMap's key in problems; its list has the same name.
pub(crate) fn config_map(namespace: &str, key: &ConfigMapKeyRef) -> String {
    format!("ConfigMap {namespace}/{}[{}]", key.name, key.key)
}

/// A path below the manifests' folder, resolved from one of its folders; `None` if it is outside.
pub(crate) fn resolve(base: &str, file: &str) -> Option<String> {
    if file.is_empty() || file.starts_with('/') || file.contains('\0') {
        return None;
    }
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}
