//! The page that shows the fleet: its files, as they lie in `page/`, within this program. They may
//! load nothing from elsewhere.

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};

use super::Page;
use super::guard::Host;
use super::routes::ROUTES;

/// A file of the page.
struct File {
    /// Its path below the folder.
    path: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        [$(File { path: $path, text: include_str!(concat!("../page/", $path)) }),*]
    };
}

/// The one that is served at `/`.
const INDEX: &str = "index.html";

/// All of them.
static FILES: [File; 42] = files![
    "api.js",
    "app.js",
    "changeline.js",
    "changes.js",
    "chart.js",
    "dom.js",
    "explanation.js",
    "feed.js",
    "fills.js",
    "format.js",
    "graph.js",
    "grid.js",
    "index.html",
    "kinds.js",
    "main.js",
    "parts.js",
    "phases.js",
    "planresult.js",
    "prose.js",
    "router.js",
    "shell.js",
    "sse.js",
    "state.js",
    "streamlist.js",
    "style.css",
    "vendor/README.md",
    "vendor/dagre.LICENSE",
    "vendor/dagre.esm.js",
    "vendor/uPlot.LICENSE",
    "vendor/uPlot.iife.min.js",
    "views.css",
    "views/cluster.js",
    "views/fleet.js",
    "views/pipeline.js",
    "views/pipelines.js",
    "views/plan.js",
    "views/set.js",
    "views/streams.js",
    "views/timeline.js",
    "views/waiting.js",
    "whatif.js",
    "workers.js",
];

/// The text at `/` where the page is elsewhere.
const ELSEWHERE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
<title>Leasehold coordinator</title><h1>Leasehold coordinator</h1>\
<p>To see the fleet in a browser: <code>leasehold dashboard</code>, which proves who you are. On a \
terminal: <code>leasehold status</code>. As JSON:<ul>";
/// Its end.
const ELSEWHERE_END: &str = "</ul></html>";

/// The paths of the page.
pub(super) fn router<S: Clone + Send + Sync + 'static>(page: &Page) -> Router<S> {
    let connects = match page {
        Page::Elsewhere => return Router::new().route("/", get(elsewhere)),
        Page::Alone => Connects::Own,
        Page::WithReplicas(_) => Connects::Replicas,
    };
    FILES.iter().fold(Router::new(), |router, file| {
        let path = match file.path {
            INDEX => "/".to_owned(),
            path => format!("/page/{path}"),
        };
        let answer = async move |Extension(host): Extension<Host>| file.answer(connects, &host);
        router.route(&path, get(answer))
    })
}

/// Where the page may connect to.
#[derive(Clone, Copy)]
enum Connects {
    /// To its own server.
    Own,
    /// To the other replicas as well, which are on the same host.
    Replicas,
}

impl File {
    fn answer(&self, connects: Connects, host: &Host) -> Response {
        let headers = [
            (header::CONTENT_TYPE, self.content_type().to_owned()),
            (header::CONTENT_SECURITY_POLICY, policy(connects, host)),
            (header::CACHE_CONTROL, "no-cache".to_owned()),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
            (header::REFERRER_POLICY, "no-referrer".to_owned()),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin".to_owned()),
        ];
        (StatusCode::OK, headers, self.text).into_response()
    }

    fn content_type(&self) -> &'static str {
        match self.path.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        }
    }
}

/// What the page may load and do.
fn policy(connects: Connects, Host(host): &Host) -> String {
    let connects = match connects {
        Connects::Own => String::new(),
        Connects::Replicas => format!(" http://{}:*", host.host()),
    };
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'{connects}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

async fn elsewhere() -> Html<String> {
    let routes = ROUTES.iter().map(|route| format!("<li>/api/v1/{}: {}", route.path, route.what));
    let routes: String = routes.collect();
    Html(format!("{ELSEWHERE}{routes}{ELSEWHERE_END}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    /// The most bytes of all files together.
    const BYTES_MAX: usize = 300_000;

    fn below(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("the folder is there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn every_file_of_the_folder_is_served_and_all_are_small() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let there: BTreeSet<_> = below(&folder)
            .into_iter()
            .map(|path| {
                path.strip_prefix(&folder).expect("below").to_str().expect("UTF-8").to_owned()
            })
            .collect();
        let served: BTreeSet<_> = FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(served, there);
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes < BYTES_MAX, "{bytes}");
    }

    #[test]
    fn only_a_page_with_replicas_may_connect_elsewhere_and_on_its_host_only() {
        let host = Host("127.0.0.1:7401".parse().expect("a host"));
        assert!(policy(Connects::Own, &host).contains("connect-src 'self';"));
        let policy = policy(Connects::Replicas, &host);
        assert!(policy.contains("connect-src 'self' http://127.0.0.1:*;"), "{policy}");
    }
}
