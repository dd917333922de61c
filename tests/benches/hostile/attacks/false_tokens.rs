//! Tokens that no API server has made, another one each time: in calls of the admin API and in
//! hellos.

use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::admin::v1::GetStatusRequest;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::session::{Session, hello, status_kind, with_token};
use crate::counts::Counts;
use crate::target::Network;

/// Callers, each with one call under way.
const CALLERS: usize = 64;
/// Tokens that are shown over one connection.
const CALLS_PER_CONNECTION: usize = 20;
/// After a connection that was refused.
const PAUSE: Duration = Duration::from_millis(500);
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

pub(crate) fn start(network: &Arc<Network>, tasks: &mut JoinSet<()>) -> Arc<Counts> {
    let counts = Counts::new(
        "false tokens",
        "one review each, so many at a time, in the strangers' own queue",
    );
    for caller in 0..CALLERS {
        let (network, counts) = (Arc::clone(network), Arc::clone(&counts));
        tasks.spawn(async move {
            loop {
                let Ok(channel) = network.channel(caller).await else {
                    counts.attempt();
                    counts.answered("no connection");
                    sleep(PAUSE).await;
                    continue;
                };
                for _ in 0..CALLS_PER_CONNECTION {
                    counts.attempt();
                    let token = false_token();
                    counts.answered(if caller % 2 == 0 {
                        ask(channel.clone(), &token).await
                    } else {
                        greet(channel.clone(), &token).await
                    });
                }
            }
        });
    }
    counts
}

/// Three parts as a token has, none of which says anything.
fn false_token() -> String {
    let part =
        |length| std::iter::repeat_with(fastrand::alphanumeric).take(length).collect::<String>();
    format!("{}.{}.{}", part(40), part(600), part(86))
}

async fn ask(channel: Channel, token: &str) -> &'static str {
    let mut admin = AdminServiceClient::new(channel);
    let asked = admin.get_status(with_token(GetStatusRequest {}, token));
    match timeout(ANSWER_WITHIN, asked).await {
        Ok(Ok(_)) => "ACCEPTED",
        Ok(Err(status)) => status_kind(&status),
        Err(_) => "no answer in 20 s",
    }
}

async fn greet(channel: Channel, token: &str) -> &'static str {
    let welcomed = Session::welcomed(channel, token, hello("honest/builds", "w-0", 1)).await;
    welcomed.map_or_else(|answer| answer, |_| "WELCOME")
}
