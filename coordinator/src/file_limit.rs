//! How many files this process may open (`ulimit -n`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, as programs may that do not use `select`: the soft one is
/// often 1,024, also in containers, and each agent is a connection. Returns the limit in force,
/// if the files are limited.
pub(crate) fn raise() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            tracing::warn!(files = limit.current, %error, "cannot raise the limit of open files");
            limit.current
        }
    };
    files.and_then(|files| usize::try_from(files).ok())
}
