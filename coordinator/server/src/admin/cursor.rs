//! Pages of long lists. A page token names the list and the entry after which the next page begins;
//! a token of another list is refused.

use leasehold_coordinator_core::view::{PipelineView, StreamView, WorkerView};
use leasehold_types::{ClusterName, PipelineName, SetName, StreamName, WorkerName};

use super::error::AdminError;

/// The default page size.
const DEFAULT: usize = 1_000;
/// The largest page size.
const MAX: usize = 10_000;
/// The longest token in bytes: three names in hexadecimal fit.
const TOKEN_BYTES_MAX: usize = 2_048;
/// Separates the parts of a token; no name contains it.
const SEPARATOR: char = '\n';

/// How many entries a page has at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageSize(usize);

impl PageSize {
    pub(super) fn new(asked: u32) -> Result<Self, AdminError> {
        match asked as usize {
            0 => Ok(Self(DEFAULT)),
            size if size <= MAX => Ok(Self(size)),
            _ => Err(AdminError::Invalid(format!(
                "page_size: {asked} is too large: use at most {MAX}"
            ))),
        }
    }
}

/// A page of a cluster's workers.
#[derive(Debug)]
pub(super) struct WorkerCursor {
    cluster: ClusterName,
    after: Option<WorkerName>,
}

impl WorkerCursor {
    pub(super) fn parse(cluster: &ClusterName, token: &str) -> Result<Self, AdminError> {
        let after = match parts(token)? {
            None => None,
            Some(parts) => match parts.as_slice() {
                [kind, of, after] if kind == "w" && of == cluster.as_str() => {
                    Some(WorkerName::new(after).map_err(|_| wrong_token())?)
                }
                _ => return Err(wrong_token()),
            },
        };
        Ok(Self { cluster: cluster.clone(), after })
    }

    /// The page out of all workers, sorted by name, and the token of the next.
    pub(super) fn cut(
        &self,
        workers: Vec<WorkerView>,
        size: PageSize,
    ) -> (Vec<WorkerView>, String) {
        let start = self
            .after
            .as_ref()
            .map_or(0, |after| workers.partition_point(|worker| worker.key.worker <= *after));
        let mut page: Vec<_> = workers.into_iter().skip(start).take(size.0 + 1).collect();
        let more = page.len() > size.0;
        page.truncate(size.0);
        let next = match page.last() {
            Some(last) if more => token(&["w", self.cluster.as_str(), last.key.worker.as_str()]),
            Some(_) | None => String::new(),
        };
        (page, next)
    }
}

/// A page of the pipelines.
#[derive(Debug)]
pub(super) struct PipelineCursor {
    after: Option<PipelineName>,
}

impl PipelineCursor {
    pub(super) fn parse(token: &str) -> Result<Self, AdminError> {
        let after = match parts(token)?.as_deref() {
            None => None,
            Some([kind, after]) if kind == "p" => {
                Some(PipelineName::new(after).map_err(|_| wrong_token())?)
            }
            Some(_) => return Err(wrong_token()),
        };
        Ok(Self { after })
    }

    /// The pipeline that the page begins after.
    pub(super) fn after(&self) -> Option<&PipelineName> {
        self.after.as_ref()
    }

    /// The page out of the pipelines after [`Self::after`], and the token of the next.
    pub(super) fn cut(
        &self,
        pipelines: impl Iterator<Item = PipelineView>,
        size: PageSize,
    ) -> (Vec<PipelineView>, String) {
        let mut page: Vec<_> = pipelines.take(size.0 + 1).collect();
        let more = page.len() > size.0;
        page.truncate(size.0);
        let next = match page.last() {
            Some(last) if more => token(&["p", last.name.as_str()]),
            Some(_) | None => String::new(),
        };
        (page, next)
    }
}

/// A page of a set's streams: all, or those that one worker holds or is planned to get.
#[derive(Debug)]
pub(super) struct StreamCursor {
    set: SetName,
    worker: Option<WorkerName>,
    after: Option<StreamName>,
}

impl StreamCursor {
    pub(super) fn parse(
        set: &SetName,
        worker: Option<WorkerName>,
        token: &str,
    ) -> Result<Self, AdminError> {
        let filter = worker.as_ref().map_or("", WorkerName::as_str);
        let after = match parts(token)? {
            None => None,
            Some(parts) => match parts.as_slice() {
                [kind, of, by, after] if kind == "s" && of == set.as_str() && by == filter => {
                    Some(StreamName::new(after).map_err(|_| wrong_token())?)
                }
                _ => return Err(wrong_token()),
            },
        };
        Ok(Self { set: set.clone(), worker, after })
    }

    /// The stream that the page begins after.
    pub(super) fn after(&self) -> Option<&StreamName> {
        self.after.as_ref()
    }

    /// The page out of the streams after [`Self::after`], and the token of the next page. It is
    /// empty if that stream no longer exists.
    pub(super) fn cut(
        &self,
        streams: impl Iterator<Item = StreamView>,
        size: PageSize,
    ) -> (Vec<StreamView>, String) {
        let wanted = streams.filter(|stream| self.wants(stream));
        let mut page: Vec<_> = wanted.take(size.0 + 1).collect();
        let more = page.len() > size.0;
        page.truncate(size.0);
        let filter = self.worker.as_ref().map_or("", WorkerName::as_str);
        let next = match page.last() {
            Some(last) if more => {
                token(&["s", self.set.as_str(), filter, last.key.stream.as_str()])
            }
            Some(_) | None => String::new(),
        };
        (page, next)
    }

    fn wants(&self, stream: &StreamView) -> bool {
        let Some(worker) = &self.worker else { return true };
        stream.planned.as_ref() == Some(worker)
            || stream.claims.iter().any(|claim| claim.worker.worker == *worker)
    }
}

fn token(parts: &[&str]) -> String {
    let text = parts.join(&SEPARATOR.to_string());
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// A token's parts; `None` for the first page.
fn parts(token: &str) -> Result<Option<Vec<String>>, AdminError> {
    if token.is_empty() {
        return Ok(None);
    }
    if token.len() > TOKEN_BYTES_MAX || !token.len().is_multiple_of(2) || !token.is_ascii() {
        return Err(wrong_token());
    }
    let bytes = (0..token.len()).step_by(2).map(|at| u8::from_str_radix(&token[at..at + 2], 16));
    let bytes = bytes.collect::<Result<Vec<u8>, _>>().map_err(|_| wrong_token())?;
    let text = String::from_utf8(bytes).map_err(|_| wrong_token())?;
    Ok(Some(text.split(SEPARATOR).map(ToOwned::to_owned).collect()))
}

fn wrong_token() -> AdminError {
    let why = "page_token: invalid token: use the next_page_token of an answer to the same \
               request, or leave it empty";
    AdminError::Invalid(why.into())
}

#[cfg(test)]
mod tests {
    use leasehold_types::StreamKey;

    use super::*;

    fn streams(names: &[&str]) -> Vec<StreamView> {
        let stream = |name: &&str| StreamView {
            cluster: ClusterName::new("c").expect("a name"),
            key: StreamKey {
                set: SetName::new("set").expect("a name"),
                stream: StreamName::new(name).expect("a name"),
            },
            weight: 1,
            dedicated: false,
            planned: name.starts_with('w').then(|| WorkerName::new("w").expect("a name")),
            claims: Vec::new(),
        };
        names.iter().map(stream).collect()
    }

    fn pages(worker: Option<&str>, size: u32) -> Vec<Vec<String>> {
        let set = SetName::new("set").expect("a name");
        let worker = worker.map(|name| WorkerName::new(name).expect("a name"));
        let mut pages = Vec::new();
        let mut token = String::new();
        loop {
            let page = StreamCursor::parse(&set, worker.clone(), &token).expect("a token of ours");
            let mut all = streams(&["w1", "b", "w2", "a:x", "w3"]).into_iter();
            if let Some(after) = page.after() {
                all.find(|stream| stream.key.stream == *after).expect("a stream of the list");
            }
            let (cut, next) = page.cut(all, PageSize::new(size).expect("a size"));
            pages.push(cut.iter().map(|stream| stream.key.stream.to_string()).collect());
            match next.is_empty() {
                true => return pages,
                false => token = next,
            }
        }
    }

    #[test]
    fn the_pages_contain_the_whole_list_in_order() {
        assert_eq!(pages(None, 2), [vec!["w1", "b"], vec!["w2", "a:x"], vec!["w3"]]);
        assert_eq!(pages(None, 5).len(), 1);
        assert_eq!(pages(None, 0).len(), 1);
        assert_eq!(pages(Some("w"), 2), [vec!["w1", "w2"], vec!["w3"]]);
        assert_eq!(pages(Some("nobody"), 2), [Vec::<String>::new()]);
    }

    #[test]
    fn rejects_tokens_of_other_lists_and_malformed_tokens() {
        let set = SetName::new("set").expect("a name");
        let other = token(&["s", "other", "", "a"]);
        let filtered = token(&["s", "set", "w", "a"]);
        let workers = token(&["w", "set", "a"]);
        for bad in [other.as_str(), &filtered, &workers, "zz", "abc", "ü", &"aa".repeat(2_000)] {
            let error = StreamCursor::parse(&set, None, bad).expect_err(bad);
            assert!(error.to_string().starts_with("page_token: "), "{error}");
        }
        let cluster = ClusterName::new("c").expect("a name");
        assert!(WorkerCursor::parse(&cluster, &token(&["w", "c", "a"])).is_ok());
        assert!(WorkerCursor::parse(&cluster, &token(&["w", "d", "a"])).is_err());
        assert!(PageSize::new(10_001).is_err());
    }
}
