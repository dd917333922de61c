//! A real Chromium without a window, driven by chromedriver: a page as people see it. What the page
//! shows is waited for; when a test fails, the browser's console, the page's text and a picture of
//! it are kept.

mod session;

use std::fmt;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use self::session::Session;
use crate::process::{Process, eventually, free_address, until_ok};
use crate::toolbox::{self, Missing};

/// How long a script may take, or a page to be loaded, in milliseconds.
const TIMEOUT_MS: u32 = 120_000;

/// The window of a desk.
pub const DESK: Window = Window { width: 1280, height: 900, is_phone: false };
/// The window of a phone.
pub const PHONE: Window = Window { width: 390, height: 844, is_phone: true };

/// The size of a window, in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its width.
    pub width: u32,
    /// Its height.
    pub height: u32,
    /// It is a phone's: touched, and with two device pixels for each of CSS.
    pub is_phone: bool,
}

/// The colours that a person prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Dark text.
    Light,
    /// Light text.
    Dark,
}

impl Scheme {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Light, Self::Dark];
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Light => "light",
            Self::Dark => "dark",
        })
    }
}

/// Keys that have no letter, by their code points in WebDriver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// To the next stop.
    Tab = 0xe004,
    /// Asks for what is focused.
    Enter = 0xe007,
    /// Closes what is open.
    Escape = 0xe00c,
    /// An arrow key.
    Left = 0xe012,
    /// An arrow key.
    Up = 0xe013,
    /// An arrow key.
    Right = 0xe014,
    /// An arrow key.
    Down = 0xe015,
}

/// A browser with one window. It ends when it is dropped.
#[derive(Debug)]
pub struct Browser {
    session: Session,
    driver: Process,
    // The last field: the browser writes there until it has ended.
    _folder: tempfile::TempDir,
}

/// The browser and its driver.
struct Programs {
    chromium: PathBuf,
    chromedriver: PathBuf,
}

impl Browser {
    /// Starts a browser, or notes that `what` is left out because no browser is installed.
    ///
    /// # Panics
    /// If it cannot be started, or if no browser is installed and `CI=true`.
    #[must_use]
    pub fn start(what: &str) -> Option<Self> {
        Self::start_with(what, None)
    }

    /// The same, with a trace of what its threads do, of these categories; see [`Self::trace`].
    ///
    /// # Panics
    /// As [`Self::start`] does.
    #[must_use]
    pub fn start_traced(what: &str, categories: &str) -> Option<Self> {
        Self::start_with(what, Some(categories))
    }

    fn start_with(what: &str, traced: Option<&str>) -> Option<Self> {
        let Some(programs) = programs() else {
            let why = "Debian's packages chromium and chromium-driver are missing: `make tools` \
                       installs them as root";
            toolbox::leave_out(what, why, Missing::Installable);
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = free_address();
        let mut command = Command::new(&programs.chromedriver);
        command.arg(format!("--port={}", address.port()));
        // Debian's chromium writes below these, too.
        command.env("TMPDIR", folder.path()).env("HOME", folder.path());
        let driver = Process::start(&mut command, &folder.path().join("chromedriver.log"));
        eventually("chromedriver", || TcpStream::connect(address).ok());
        let wanted = capabilities(&programs.chromium, folder.path(), traced);
        let session = Session::open(address, &wanted)
            .unwrap_or_else(|why| panic!("cannot start {}: {why}", programs.chromium.display()));
        let browser = Self { session, driver, _folder: folder };
        browser.resize(DESK);
        Some(browser)
    }

    /// Opens an address as a new page.
    ///
    /// # Panics
    /// If it cannot be loaded.
    pub fn open(&self, address: &str) {
        let opened = self.session.command("url", &json!({"url": address}));
        opened.unwrap_or_else(|why| panic!("cannot open {address}: {why}"));
    }

    /// Gives the window another size.
    ///
    /// # Panics
    /// If the browser refuses.
    pub fn resize(&self, window: Window) {
        let Window { width, height, is_phone } = window;
        let scale = if is_phone { 2 } else { 1 };
        let metrics = json!({
            "width": width, "height": height, "mobile": is_phone, "deviceScaleFactor": scale,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics);
        let touch = json!({"enabled": is_phone});
        self.devtools("Emulation.setTouchEmulationEnabled", touch);
    }

    /// Prefers these colours from now on.
    ///
    /// # Panics
    /// If the browser refuses.
    pub fn prefer(&self, scheme: Scheme) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme.to_string()});
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    /// Runs a script at the beginning of each page that is opened from now on.
    ///
    /// # Panics
    /// If the browser refuses.
    pub fn run_first(&self, script: &str) {
        let source = json!({"source": script});
        self.devtools("Page.addScriptToEvaluateOnNewDocument", source);
    }

    /// What a script returns: the body of a function whose parameters are `arguments`.
    ///
    /// # Errors
    /// What it throws.
    pub fn try_script(&self, script: &str, arguments: &[Value]) -> Result<Value, String> {
        self.session.command("execute/sync", &json!({"script": script, "args": arguments}))
    }

    /// What a script returns.
    ///
    /// # Panics
    /// If it throws.
    #[must_use]
    pub fn script(&self, script: &str, arguments: &[Value]) -> Value {
        let returned = self.try_script(script, arguments);
        returned.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// What a script hands to the function that is its last argument.
    ///
    /// # Panics
    /// If it throws, or never does.
    #[must_use]
    pub fn script_that_calls(&self, script: &str, arguments: &[Value]) -> Value {
        let body = json!({"script": script, "args": arguments});
        let called = self.session.command("execute/async", &body);
        called.unwrap_or_else(|why| panic!("{script}: {why}"))
    }

    /// Waits until a script returns something else than null and false; returns that.
    ///
    /// # Panics
    /// After [`crate::process::HANG`], with `what`.
    pub fn until(&self, what: &str, script: &str, arguments: &[Value]) -> Value {
        until_ok(what, || match self.try_script(script, arguments) {
            Ok(Value::Null | Value::Bool(false)) => Err("not yet".to_owned()),
            Ok(value) => Ok(value),
            Err(why) => Err(why),
        })
    }

    /// Clicks on the element that a selector finds, as soon as it can be clicked on.
    ///
    /// # Panics
    /// If it never can.
    pub fn click(&self, selector: &str) {
        // An element may be replaced, or move, between the two steps.
        until_ok(&format!("{selector} to be clicked on"), || {
            let element = self.session.element(selector)?;
            self.session.command(&format!("{element}/click"), &json!({}))
        });
    }

    /// Types into a field after what is there was removed.
    ///
    /// # Panics
    /// If that is never possible.
    pub fn fill(&self, selector: &str, text: &str) {
        until_ok(&format!("{selector} to be filled"), || {
            let element = self.session.element(selector)?;
            self.session.command(&format!("{element}/clear"), &json!({}))?;
            self.session.command(&format!("{element}/value"), &json!({"text": text}))
        });
    }

    /// Presses a key and lets it go, wherever the focus is.
    ///
    /// # Panics
    /// If the browser refuses.
    pub fn press(&self, key: Key) {
        let key = char::from_u32(key as u32).expect("a code point");
        let presses = ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key}));
        let actions = json!({"actions": [{"type": "key", "id": "keys", "actions": presses}]});
        let pressed = self.session.command("actions", &actions);
        pressed.unwrap_or_else(|why| panic!("cannot press {key:?}: {why}"));
    }

    /// A picture of the window, as PNG.
    ///
    /// # Panics
    /// If the browser refuses.
    #[must_use]
    pub fn picture(&self) -> Vec<u8> {
        let answer = self.devtools("Page.captureScreenshot", json!({"format": "png"}));
        let data = answer["data"].as_str().expect("a picture");
        STANDARD.decode(data).expect("base64")
    }

    /// What the browser has logged since the last call: errors of scripts, what was refused by a
    /// policy, failed requests.
    ///
    /// # Errors
    /// What the browser answers.
    pub fn console(&self) -> Result<Vec<String>, String> {
        let lines = self.session.command("se/log", &json!({"type": "browser"}))?;
        let text = |line: &Value| format!("{} {}", line["level"], line["message"]);
        Ok(lines.as_array().into_iter().flatten().map(text).collect())
    }

    /// Ends the page that is open, and returns the events of the trace since the last call, as the
    /// Trace Event Format has them.
    ///
    /// # Panics
    /// If the browser has no trace.
    #[must_use]
    pub fn trace(&self) -> Vec<Value> {
        // The driver collects the events when a page is opened.
        self.open("about:blank");
        let lines = self.session.command("se/log", &json!({"type": "performance"}));
        let lines = lines.unwrap_or_else(|why| panic!("no trace: {why}"));
        let event = |line: &Value| {
            let line: Value = serde_json::from_str(line["message"].as_str()?).ok()?;
            let message = &line["message"];
            (message["method"] == "Tracing.dataCollected").then(|| message["params"].clone())
        };
        lines.as_array().into_iter().flatten().filter_map(event).collect()
    }

    /// A command of Chromium's own protocol.
    fn devtools(&self, name: &str, parameters: Value) -> Value {
        let body = json!({"cmd": name, "params": parameters});
        let answer = self.session.command("goog/cdp/execute", &body);
        answer.unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    /// Prints and saves what a person needs to understand a failure.
    fn show_evidence(&self) -> Result<(), String> {
        let text = "return location.href + '\\n' + document.body.innerText";
        let text = self.try_script(text, &[])?;
        eprintln!("--- the page\n{}", text.as_str().unwrap_or_default());
        eprintln!("--- the console\n{}", self.console()?.join("\n"));
        let picture = self.session.command(
            "goog/cdp/execute",
            &json!({"cmd": "Page.captureScreenshot", "params": {"format": "png"}}),
        )?;
        save_evidence(picture["data"].as_str().unwrap_or_default())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Err(why) = self.show_evidence()
        {
            eprintln!("--- the browser does not answer: {why}");
        }
        // The driver ends the browser, and removes its files, when its session is closed. A browser
        // that does not answer ends with the driver.
        let _ = self.session.close();
        self.driver.kill();
    }
}

/// What the driver starts: a browser without a window that writes below `folder` only.
fn capabilities(chromium: &Path, folder: &Path, traced: Option<&str>) -> Value {
    let mut arguments = vec![
        "--headless=new".to_owned(),
        format!("--user-data-dir={}", folder.join("profile").display()),
        "--no-first-run".to_owned(),
        "--disable-gpu".to_owned(),
        // A container's /dev/shm may be too small.
        "--disable-dev-shm-usage".to_owned(),
        "--force-color-profile=srgb".to_owned(),
        // Nothing is asked of other machines, whatever the browser would like to update.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1".to_owned(),
        "--no-proxy-server".to_owned(),
        "--disable-background-networking".to_owned(),
        "--disable-component-update".to_owned(),
    ];
    if rustix::process::geteuid().is_root() {
        // Chromium refuses to make its sandbox as root.
        arguments.push("--no-sandbox".to_owned());
    }
    let mut wanted = json!({
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": chromium, "args": arguments},
        "goog:loggingPrefs": {"browser": "ALL"},
        "timeouts": {"script": TIMEOUT_MS, "pageLoad": TIMEOUT_MS},
    });
    if let Some(categories) = traced {
        wanted["goog:loggingPrefs"]["performance"] = json!("ALL");
        wanted["goog:chromeOptions"]["perfLoggingPrefs"] =
            json!({"enableNetwork": false, "enablePage": false, "traceCategories": categories});
    }
    wanted
}

fn programs() -> Option<Programs> {
    let [chromium, chromedriver] = ["chromium", "chromedriver"].map(toolbox::on_path);
    Some(Programs { chromium: chromium?, chromedriver: chromedriver? })
}

/// Saves a picture under the name of the test.
fn save_evidence(picture: &str) -> Result<(), String> {
    let picture = STANDARD.decode(picture).map_err(|error| error.to_string())?;
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("page").replace("::", "-");
    let folder = toolbox::root().join(".cache/page");
    let path = folder.join(name).with_extension("png");
    let saved = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, picture));
    saved.map_err(|error| format!("{}: {error}", path.display()))?;
    eprintln!("--- a picture of it: {}", path.display());
    Ok(())
}
