//! A session of chromedriver: WebDriver is JSON over HTTP, one call a command. Libraries for it
//! bring dozens of crates, and other features of those that the programs are built from.

use std::net::SocketAddr;

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// The name that an element's id has (WebDriver, 11).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// An open session: a browser that runs until [`Self::close`].
#[derive(Debug)]
pub(super) struct Session {
    runtime: Runtime,
    client: Client<HttpConnector, Full<Bytes>>,
    driver: SocketAddr,
    id: String,
}

impl Session {
    /// Starts a browser with these capabilities.
    ///
    /// # Errors
    /// What the driver answers.
    pub(super) fn open(driver: SocketAddr, capabilities: &Value) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut session = Self { runtime, client, driver, id: String::new() };
        let body = json!({"capabilities": {"alwaysMatch": capabilities}});
        let answer = session.ask("POST", "/session", &body)?;
        answer["sessionId"].as_str().ok_or("no session")?.clone_into(&mut session.id);
        Ok(session)
    }

    /// Ends the browser.
    ///
    /// # Errors
    /// What the driver answers.
    pub(super) fn close(&self) -> Result<(), String> {
        self.ask("DELETE", &format!("/session/{}", self.id), &Value::Null).map(|_| ())
    }

    /// Gives a command of this session.
    ///
    /// # Errors
    /// What the driver answers.
    pub(super) fn command(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.ask("POST", &format!("/session/{}/{path}", self.id), body)
    }

    /// The path of the element that a selector finds.
    ///
    /// # Errors
    /// What the driver answers if no element matches.
    pub(super) fn element(&self, selector: &str) -> Result<String, String> {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.command("element", &body)?;
        let id = found[ELEMENT].as_str().ok_or("no element")?;
        Ok(format!("element/{id}"))
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let answer = self.runtime.block_on(self.call(method, path, body));
        let (is_ok, answer) = answer.map_err(|why| format!("chromedriver: {why}"))?;
        if is_ok {
            Ok(answer["value"].clone())
        } else {
            Err(answer["value"]["message"].as_str().unwrap_or("no message").to_owned())
        }
    }

    async fn call(&self, method: &str, path: &str, body: Bytes) -> anyhow::Result<(bool, Value)> {
        let address = format!("http://{}{path}", self.driver);
        let request = Request::builder().method(method).uri(address);
        let request = request.header("content-type", "application/json").body(Full::new(body))?;
        let answer = self.client.request(request).await?;
        let is_ok = answer.status().is_success();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((is_ok, serde_json::from_slice(&body)?))
    }
}
