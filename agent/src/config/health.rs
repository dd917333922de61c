//! The address for health and metrics, and how the agent is asked there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::Args;

use crate::http_client::Url;

/// The options of the command `probe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthProbe {
    /// What is asked for.
    pub url: Url,
}

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Ask whether the agent is ready, as /readyz says it, and not only whether it lives
    #[arg(long)]
    ready: bool,
    /// The agent's --health-listen. Where that is all addresses, 127.0.0.1 is asked
    #[arg(
        long,
        env = "LEASEHOLD_HEALTH_LISTEN",
        value_name = "[IP]:PORT",
        default_value = ":7412"
    )]
    #[arg(value_parser = listen_address)]
    health_listen: SocketAddr,
}

impl From<HealthArgs> for HealthProbe {
    fn from(args: HealthArgs) -> Self {
        let mut address = args.health_listen;
        if address.ip().is_unspecified() {
            // `[::]` takes IPv4 too.
            address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        let server: Url = format!("http://{address}").parse().expect("an address is a URL");
        Self { url: server.at(if args.ready { "/readyz" } else { "/livez" }) }
    }
}

/// An address to listen on; without an IP all addresses of this machine.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let whole = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    whole.parse().map_err(|_| {
        format!(
            "invalid address {text:?}: expected IP:PORT or :PORT, for example :7412 or \
             127.0.0.1:7412"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_listens_on_all_addresses_is_asked_at_localhost() {
        for (listen, ready, url) in [
            (":7412", false, "http://127.0.0.1:7412/livez"),
            ("[::]:7412", true, "http://127.0.0.1:7412/readyz"),
            ("0.0.0.0:1", false, "http://127.0.0.1:1/livez"),
            ("10.1.2.3:7412", false, "http://10.1.2.3:7412/livez"),
            ("[::1]:7412", false, "http://[::1]:7412/livez"),
        ] {
            let health_listen = listen_address(listen).expect(listen);
            let probe = HealthProbe::from(HealthArgs { ready, health_listen });
            assert_eq!(probe.url.to_string(), url);
        }
    }
}
