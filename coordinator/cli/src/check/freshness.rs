//! The freshness of the leader's desired state. The leader serves what it has read as long as it
//! cannot read again, so an edit that has no effect is all that shows from outside.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use leasehold_http_api::READY_BUT;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::api::ApiClient;
use super::installation::Installation;
use super::report::{Finding, Problem, Report};

const CHECK: &str = "the leader's desired state is up to date";
/// How long the leader's answer may take: a node that does not answer must not use up the time of
/// the other checks.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Asks the leader, by a port-forward to its pod; none if no replica leads.
pub(super) async fn look(
    api: &ApiClient,
    installation: &Installation,
    leader: Option<String>,
    report: &mut Report,
) {
    report.add(match leader {
        None => Finding::skipped("desired-state", CHECK, "no replica leads"),
        Some(pod) => {
            let asked = timeout(ANSWER_TIMEOUT, readyz(api, installation, &pod)).await;
            let silent = |_| Err(format!("no answer within {ANSWER_TIMEOUT:?}"));
            match asked.unwrap_or_else(silent) {
                Ok(answer) => of_answer(installation, &pod, &answer),
                Err(why) => {
                    Finding::skipped("desired-state", CHECK, format!("cannot ask {pod}: {why}"))
                }
            }
        }
    });
}

/// A replica's answer at `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    is_ready: bool,
    text: String,
}

async fn readyz(api: &ApiClient, installation: &Installation, pod: &str) -> Result<Answer, String> {
    let stream = api.forward(&installation.namespace, pod, installation.http_port()).await;
    let stream = stream.map_err(|error| error.text().to_owned())?;
    ask(stream).await.map_err(|error| error.to_string())
}

async fn ask<S>(stream: S) -> anyhow::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the sender.
    tokio::spawn(connection);
    let request = Request::get("/readyz").header(header::HOST, "localhost");
    let response = sender.send_request(request.body(Body::empty())?).await?;
    let is_ready = response.status() == StatusCode::OK;
    let body = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await?;
    Ok(Answer { is_ready, text: String::from_utf8_lossy(&body).trim().to_owned() })
}

fn of_answer(installation: &Installation, pod: &str, answer: &Answer) -> Finding {
    let mut finding = Finding::new("desired-state", CHECK);
    let Answer { is_ready, text } = answer;
    if !is_ready {
        // The check of the replicas reports it.
        finding.skip(format!("{pod} is not ready: {text}"));
    } else if let Some(why) = text.strip_prefix(READY_BUT) {
        let wrong = format!("the leader {pod}: {why}; what was edited since has no effect");
        let fix = "give the coordinator the rights that it lacks (coordinator-rights); if it lacks \
                   none, see why the API server does not answer it";
        let namespace = &installation.namespace;
        finding.warn(
            Problem::new(wrong, fix).run(format!("kubectl -n {namespace} logs {pod} --tail=20")),
        );
    } else {
        finding.note(format!("{pod} has read it lately"));
    }
    finding
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn of(is_ready: bool, text: &str) -> Finding {
        let answer = Answer { is_ready, text: text.to_owned() };
        of_answer(&Installation::example(), "coordinator-a", &answer)
    }

    #[test]
    fn a_stale_desired_state_is_reported_with_its_age_and_cause() {
        assert!(of(true, "ok").is_ok());
        let why = "the desired state has not been confirmed for 42 s: forbidden";
        let stale = of(true, &format!("ok, but {why}"));
        let text = format!("{stale:?}");
        assert!(!stale.is_ok() && text.contains(why) && text.contains("no effect"), "{text}");
        assert!(
            text.contains("logs coordinator-a") && text.contains("coordinator-rights"),
            "{text}"
        );
        let ending = format!("{:?}", of(false, "it is ending"));
        assert!(ending.contains("verdict: Skip") && ending.contains("is ending"), "{ending}");
    }

    #[tokio::test]
    async fn the_answer_of_a_replica_is_read_as_it_comes() {
        for (status, is_ready) in [("200 OK", true), ("503 Service Unavailable", false)] {
            let (own, mut replica) = tokio::io::duplex(4096);
            let answered = tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let read = replica.read(&mut request).await.expect("a request");
                let body = "ok, but old\n";
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                replica.write_all(format!("{head}{body}").as_bytes()).await.expect("written");
                String::from_utf8_lossy(&request[..read]).into_owned()
            });
            let answer = ask(own).await.expect("an answer");
            assert_eq!(answer, Answer { is_ready, text: "ok, but old".into() });
            let request = answered.await.expect("it has answered");
            assert!(request.starts_with("GET /readyz HTTP/1.1\r\n"), "{request}");
        }
    }
}
