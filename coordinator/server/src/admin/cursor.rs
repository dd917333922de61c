//! Pages of long lists. A page token names the list and the entry after which the next page begins;
//! a token of another list is refused.

use leasehold_coordinator_core::view::{PipelineView, StreamView, WorkerView};
use leasehold_types::{ClusterName, PipelineName, SetName, StreamName, WorkerName};

use super::error::AdminError;

/// The default page size.
const DEFAULT: usize = 1_000;
/// The largest page size.
const MAX: usize = 10_000;
/// The longest token in bytes: three names and a text to search for fit in hexadecimal.
const TOKEN_BYTES_MAX: usize = 4_096;
/// The longest text to search for in bytes: no name is longer.
const SEARCH_BYTES_MAX: usize = 512;
/// The most streams that are looked at for one page: a set may have a million, and the leader does
/// nothing else meanwhile.
const EXAMINED_MAX: usize = 20_000;
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

    /// The worker that the page begins after.
    pub(super) fn after(&self) -> Option<&WorkerName> {
        self.after.as_ref()
    }

    /// The page out of the workers after [`Self::after`], and the token of the next.
    pub(super) fn cut(
        &self,
        workers: impl Iterator<Item = WorkerView>,
        size: PageSize,
    ) -> (Vec<WorkerView>, String) {
        let mut page: Vec<_> = workers.take(size.0 + 1).collect();
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

/// Which streams of a set are asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamFilter {
    /// Only those that this worker holds or is planned to get.
    pub(super) worker: Option<WorkerName>,
    /// Only those whose names contain this.
    pub(super) search: String,
    /// Only those without an owner.
    pub(super) unowned: bool,
}

impl StreamFilter {
    fn wants(&self, stream: &StreamView) -> bool {
        let is_workers = self.worker.as_ref().is_none_or(|worker| {
            stream.planned.as_ref() == Some(worker)
                || stream.claims.iter().any(|claim| claim.worker.worker == *worker)
        });
        is_workers
            && stream.key.stream.as_str().contains(&self.search)
            && (!self.unowned || stream.claims.is_empty())
    }

    /// What of a token depends on it.
    fn parts(&self) -> [&str; 3] {
        let worker = self.worker.as_ref().map_or("", WorkerName::as_str);
        [worker, &self.search, if self.unowned { "unowned" } else { "" }]
    }
}

/// A page of those streams of a set that a filter wants.
#[derive(Debug)]
pub(super) struct StreamCursor {
    set: SetName,
    filter: StreamFilter,
    after: Option<StreamName>,
}

impl StreamCursor {
    pub(super) fn parse(
        set: &SetName,
        filter: StreamFilter,
        token: &str,
    ) -> Result<Self, AdminError> {
        if filter.search.len() > SEARCH_BYTES_MAX || filter.search.contains(SEPARATOR) {
            return Err(AdminError::Invalid(format!(
                "search: expected a part of a stream's name, in one line of at most \
                 {SEARCH_BYTES_MAX} bytes"
            )));
        }
        let after = match parts(token)? {
            None => None,
            Some(parts) => match parts.as_slice() {
                [kind, of, by @ .., after]
                    if kind == "s" && of == set.as_str() && *by == filter.parts() =>
                {
                    Some(StreamName::new(after).map_err(|_| wrong_token())?)
                }
                _ => return Err(wrong_token()),
            },
        };
        Ok(Self { set: set.clone(), filter, after })
    }

    /// The stream that the page begins after.
    pub(super) fn after(&self) -> Option<&StreamName> {
        self.after.as_ref()
    }

    /// The page out of the streams after [`Self::after`], and the token of the next page. It is
    /// empty if that stream no longer exists. A page has fewer streams than asked for where the
    /// filter wants few.
    pub(super) fn cut(
        &self,
        streams: impl Iterator<Item = StreamView>,
        size: PageSize,
    ) -> (Vec<StreamView>, String) {
        let mut page = Vec::new();
        // The last stream that was looked at.
        let mut last = None;
        for (examined, stream) in streams.enumerate() {
            if page.len() == size.0 || examined == EXAMINED_MAX {
                return (page, last.map_or_else(String::new, |last| self.token_after(&last)));
            }
            last = Some(stream.key.stream.clone());
            if self.filter.wants(&stream) {
                page.push(stream);
            }
        }
        (page, String::new())
    }

    fn token_after(&self, last: &StreamName) -> String {
        let [worker, search, unowned] = self.filter.parts();
        token(&["s", self.set.as_str(), worker, search, unowned, last.as_str()])
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
            unplaced: None,
            claims: Vec::new(),
        };
        names.iter().map(stream).collect()
    }

    fn of(worker: Option<&str>) -> StreamFilter {
        let worker = worker.map(|name| WorkerName::new(name).expect("a name"));
        StreamFilter { worker, ..StreamFilter::default() }
    }

    fn pages(filter: &StreamFilter, size: u32) -> Vec<Vec<String>> {
        let set = SetName::new("set").expect("a name");
        let mut pages = Vec::new();
        let mut token = String::new();
        loop {
            let page = StreamCursor::parse(&set, filter.clone(), &token).expect("a token of ours");
            let mut all = streams(&["w1", "b", "w2", "a:x", "w3"]).into_iter();
            if let Some(after) = page.after() {
                all.find(|stream| stream.key.stream == *after).expect("a stream of the list");
            }
            let (cut, next) = page.cut(all, PageSize::new(size).expect("a size"));
            pages.push(cut.iter().map(|stream| stream.key.stream.to_string()).collect());
            if next.is_empty() { return pages } else { token = next }
        }
    }

    #[test]
    fn the_pages_contain_the_whole_list_in_order() {
        assert_eq!(pages(&of(None), 2), [vec!["w1", "b"], vec!["w2", "a:x"], vec!["w3"]]);
        assert_eq!(pages(&of(None), 5).len(), 1);
        assert_eq!(pages(&of(None), 0).len(), 1);
        assert_eq!(pages(&of(Some("w")), 2), [vec!["w1", "w2"], vec!["w3"]]);
        assert_eq!(pages(&of(Some("nobody")), 2), [Vec::<String>::new()]);
        let search = |search: &str| StreamFilter { search: search.into(), ..of(None) };
        assert_eq!(pages(&search("w"), 2), [vec!["w1", "w2"], vec!["w3"]]);
        assert_eq!(pages(&search(":"), 5), [["a:x"]]);
        assert_eq!(pages(&StreamFilter { unowned: true, ..of(None) }, 5)[0].len(), 5);
    }

    #[test]
    fn a_page_ends_after_so_many_streams_even_if_it_wants_none_of_them() {
        let names: Vec<_> = (0..=EXAMINED_MAX).map(|number| format!("s{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let last = names[EXAMINED_MAX];
        let filter = StreamFilter { search: last.into(), ..of(None) };
        let set = SetName::new("set").expect("a name");
        let size = PageSize::new(5).expect("a size");
        let first = StreamCursor::parse(&set, filter.clone(), "").expect("no token");
        let (page, next) = first.cut(streams(&names).into_iter(), size);
        assert!(page.is_empty() && !next.is_empty());
        let second = StreamCursor::parse(&set, filter, &next).expect("a token of ours");
        assert_eq!(second.after().map(StreamName::as_str), Some(names[EXAMINED_MAX - 1]));
        let (page, next) = second.cut(streams(&[last]).into_iter(), size);
        assert!(page.len() == 1 && next.is_empty());
    }

    #[test]
    fn rejects_tokens_of_other_lists_and_malformed_tokens() {
        let set = SetName::new("set").expect("a name");
        let other = token(&["s", "other", "", "", "", "a"]);
        let filtered = token(&["s", "set", "w", "", "", "a"]);
        let workers = token(&["w", "set", "a"]);
        for bad in [other.as_str(), &filtered, &workers, "zz", "abc", "ü", &"aa".repeat(3_000)] {
            let error = StreamCursor::parse(&set, of(None), bad).expect_err(bad);
            assert!(error.to_string().starts_with("page_token: "), "{error}");
        }
        for bad in ["a\nb", &"a".repeat(513)] {
            let filter = StreamFilter { search: bad.into(), ..of(None) };
            let error = StreamCursor::parse(&set, filter, "").expect_err(bad);
            assert!(error.to_string().starts_with("search: "), "{error}");
        }
        let cluster = ClusterName::new("c").expect("a name");
        assert!(WorkerCursor::parse(&cluster, &token(&["w", "c", "a"])).is_ok());
        assert!(WorkerCursor::parse(&cluster, &token(&["w", "d", "a"])).is_err());
        assert!(PageSize::new(10_001).is_err());
    }
}
