//! KEDA as a coordinator sees it: a client made from KEDA's proto that asks one replica everything,
//! over and over, and keeps count of every answer. An answer is right, or an error that says that
//! the replica cannot know, or wrong.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_proto::externalscaler::external_scaler_client::ExternalScalerClient;
use leasehold_proto::externalscaler::{GetMetricsRequest, ScaledObjectRef};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Response, Status, Streaming};

use crate::process::soon;

/// How long one call may take; KEDA waits so long for one, about.
const CALL_WITHIN: Duration = Duration::from_secs(2);
/// Between two rounds of calls, and before a stream is opened again.
const PAUSE: Duration = Duration::from_millis(20);
/// Calls of one round: whether the class is active, its metrics, and the value of each.
const CALLS: [&str; 4] =
    ["IsActive", "GetMetricSpec", "workerclass_request", "workerclass_workers_needed"];

/// What the class is asked for: the only right answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Right {
    /// Documents per second.
    pub request: f64,
    /// What one worker is to have of them.
    pub target: f64,
    /// The workers that its pipelines need.
    pub needed: f64,
}

/// What a TriggerAuthentication of KEDA has.
#[derive(Clone, Copy, Debug)]
pub struct Authentication<'a> {
    /// The authority to trust, as PEM (`caCert`).
    pub authority: &'a str,
    /// The name in the replica's certificate.
    pub server_name: &'a str,
    /// The client's certificate and key, as PEM (`tlsClientCert`, `tlsClientKey`).
    pub client: Option<&'a (String, String)>,
}

/// The answers so far.
#[derive(Clone, Debug, Default)]
pub struct ScalerAnswers {
    /// Right answers, by call.
    pub right: BTreeMap<&'static str, usize>,
    /// Errors that say that the replica cannot know, or that show that it does not answer.
    pub refused: usize,
    /// The newest of them.
    pub newest_refusal: String,
    /// All else.
    pub wrong: Vec<String>,
}

/// Asks one replica until it is dropped.
#[derive(Debug)]
pub struct Keda {
    name: &'static str,
    answers: Arc<Mutex<ScalerAnswers>>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Keda {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Keda {
    /// Asks the replica at `address` for a class, as a ScaledObject of this namespace; in plain
    /// text without `authentication`.
    ///
    /// # Panics
    /// If the address or the certificate is invalid.
    #[must_use]
    pub fn start(
        name: &'static str,
        address: &str,
        authentication: Option<Authentication<'_>>,
        object: &ScaledObjectRef,
        right: Right,
    ) -> Self {
        let client = ExternalScalerClient::new(channel(address, authentication));
        let answers = Arc::new(Mutex::new(ScalerAnswers::default()));
        let asker =
            ScalerPoller { client, object: object.clone(), right, answers: Arc::clone(&answers) };
        let tasks = vec![
            tokio::spawn(asker.clone().calls()).abort_handle(),
            tokio::spawn(asker.clone().activity()).abort_handle(),
            tokio::spawn(asker.specs()).abort_handle(),
        ];
        Self { name, answers, tasks }
    }

    /// The answers so far.
    ///
    /// # Panics
    /// If any answer was wrong.
    #[must_use]
    pub fn answers(&self) -> ScalerAnswers {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(answers.wrong.is_empty(), "{}: {:#?}", self.name, answers.wrong);
        answers
    }

    /// Waits until every call and both streams were answered, each after this was asked.
    pub async fn until_right(&self) {
        let before = self.answers();
        // A call that was under way may have been answered before; the next one was not. A stream
        // that is open says nothing more while nothing changes.
        soon(&format!("right answers of the {}", self.name), || {
            let now = self.answers();
            let count = |answers: &ScalerAnswers, call: &str| {
                answers.right.get(call).copied().unwrap_or_default()
            };
            let has = |call: &&str| count(&now, call) >= count(&before, call) + 2;
            let streams = ["StreamIsActive", "StreamMetricSpec"];
            let told = |call: &&str| count(&now, call) > 0;
            (CALLS.iter().all(has) && streams.iter().all(told)).then_some(())
        })
        .await;
    }

    /// Waits until it refuses with a reason that has this in it.
    pub async fn until_refused(&self, why: &str) {
        let before = self.answers().refused;
        soon(&format!("the {} to say {why:?}", self.name), || {
            let now = self.answers();
            (now.refused > before + 1 && now.newest_refusal.contains(why)).then_some(())
        })
        .await;
    }

    /// Waits for this many more refusals.
    pub async fn until_refusals(&self, more: usize) {
        let before = self.answers().refused;
        soon(&format!("{more} refusals of the {}", self.name), || {
            (self.answers().refused >= before + more).then_some(())
        })
        .await;
    }
}

/// A connection to the replica at `address`, which is made when it is needed.
///
/// # Panics
/// If the address or a certificate is invalid.
#[must_use]
pub fn channel(address: &str, authentication: Option<Authentication<'_>>) -> Channel {
    let scheme = if authentication.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).expect("an address");
    if let Some(Authentication { authority, server_name, client }) = authentication {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority))
            .domain_name(server_name);
        if let Some((certificate, key)) = client {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        endpoint = endpoint.tls_config(tls).expect("a certificate");
    }
    endpoint.connect_lazy()
}

/// One of the tasks that ask.
#[derive(Clone)]
struct ScalerPoller {
    client: ExternalScalerClient<Channel>,
    object: ScaledObjectRef,
    right: Right,
    answers: Arc<Mutex<ScalerAnswers>>,
}

impl ScalerPoller {
    async fn calls(mut self) {
        loop {
            for call in CALLS {
                let answer = timeout(CALL_WITHIN, self.call(call)).await;
                let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")));
                self.note(call, answer);
            }
            sleep(PAUSE).await;
        }
    }

    /// Makes one call; the answer as text, and the right one.
    async fn call(&mut self, call: &'static str) -> Result<(String, String), Status> {
        let object = self.object.clone();
        match call {
            "IsActive" => {
                let answer = self.client.is_active(object).await?.into_inner();
                Ok((format!("{:?}", answer.result), "true".into()))
            }
            "GetMetricSpec" => {
                let answer = self.client.get_metric_spec(object).await?.into_inner();
                Ok((specs(&answer), self.right_specs()))
            }
            metric => {
                let request = GetMetricsRequest {
                    scaled_object_ref: Some(object),
                    metric_name: metric.into(),
                };
                let answer = self.client.get_metrics(request).await?.into_inner();
                let right = match metric {
                    "workerclass_request" => self.right.request,
                    _ => self.right.needed,
                };
                let value = |metric: &leasehold_proto::externalscaler::MetricValue| {
                    tell(&metric.metric_name, metric.metric_value, metric.metric_value_float)
                };
                let answer: Vec<String> = answer.metric_values.iter().map(value).collect();
                Ok((answer.join(", "), right_of(metric, right)))
            }
        }
    }

    fn right_specs(&self) -> String {
        let request = right_of("workerclass_request", self.right.target);
        format!("{request}, {}", right_of("workerclass_workers_needed", 1.0))
    }

    async fn activity(mut self) {
        loop {
            let stream = self.client.stream_is_active(self.object.clone()).await;
            let tell = |answer: leasehold_proto::externalscaler::IsActiveResponse| {
                format!("{:?}", answer.result)
            };
            self.follow("StreamIsActive", stream, tell, "true").await;
        }
    }

    async fn specs(mut self) {
        let right = self.right_specs();
        loop {
            let stream = self.client.stream_metric_spec(self.object.clone()).await;
            self.follow("StreamMetricSpec", stream, |answer| specs(&answer), &right).await;
        }
    }

    /// Notes what a stream says until its end.
    async fn follow<T: Debug>(
        &self,
        call: &'static str,
        stream: Result<Response<Streaming<T>>, Status>,
        tell: impl Fn(T) -> String,
        right: &str,
    ) {
        match stream {
            Err(status) => self.note(call, Err(status)),
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(answer)) => self.note(call, Ok((tell(answer), right.to_owned()))),
                        Ok(None) => break,
                        Err(status) => {
                            self.note(call, Err(status));
                            break;
                        }
                    }
                }
            }
        }
        sleep(PAUSE).await;
    }

    fn note(&self, call: &'static str, answer: Result<(String, String), Status>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok((answer, right)) if answer == right => {
                *answers.right.entry(call).or_default() += 1;
            }
            Ok((answer, right)) => answers.wrong.push(format!("{call}: {answer} is not {right}")),
            Err(status) => match status.code() {
                // Transports report broken connections with several codes.
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                    answers.refused += 1;
                    answers.newest_refusal = status.message().to_owned();
                }
                _ => answers.wrong.push(format!("{call}: {status:?}")),
            },
        }
    }
}

fn specs(answer: &leasehold_proto::externalscaler::GetMetricSpecResponse) -> String {
    let spec = |metric: &leasehold_proto::externalscaler::MetricSpec| {
        tell(&metric.metric_name, metric.target_size, metric.target_size_float)
    };
    let specs: Vec<String> = answer.metric_specs.iter().map(spec).collect();
    specs.join(", ")
}

fn tell(name: &str, whole: i64, exact: f64) -> String {
    format!("{name} {whole} {exact}")
}

fn right_of(name: &str, value: f64) -> String {
    format!("{name} {:.0} {value}", value.ceil())
}

/// What KEDA sends for a ScaledObject whose trigger names this class.
#[must_use]
pub fn object(namespace: &str, class: &str) -> ScaledObjectRef {
    ScaledObjectRef {
        name: format!("{class}-by-load"),
        namespace: namespace.into(),
        scaler_metadata: HashMap::from([("class".to_owned(), class.to_owned())]),
    }
}
