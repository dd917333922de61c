//! Addresses as flags and annotations give them.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Bytes of an address.
const BYTES_MAX: usize = 512;

/// What an error says of an address to listen on.
pub const LISTEN_EXPECTED: &str = "expected IP:PORT, for example 127.0.0.1:8080";

/// An address to listen on: IP:PORT, or localhost:PORT. `A` is the type of a socket's address.
///
/// # Errors
/// What is wrong, with an example.
pub fn parse_listen<A: FromStr>(text: &str) -> Result<A, String> {
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let address = local.as_deref().unwrap_or(text).parse();
    address.map_err(|_| format!("invalid address {text:?}: {LISTEN_EXPECTED}"))
}

/// The error of a flag with an address that another process listens on, perhaps another one of the
/// same program.
#[must_use]
pub fn port_in_use(flag: &str, address: SocketAddr, program: &str) -> String {
    format!(
        "cannot listen on {flag} {address}, which is in use, perhaps by another {program}: stop \
         that one, or set {flag} to another port"
    )
}

/// Whether a text is HOST:PORT, an IPv6 address in brackets.
#[must_use]
pub fn is_host_and_port(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    !host.is_empty()
        && address.len() <= BYTES_MAX
        && (bracketed || !host.contains(':'))
        && !host.chars().any(|c| c.is_control() || c.is_whitespace() || c == '/')
        && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Why nobody can dial HOST or HOST:PORT, although it is written as it should be; none if somebody
/// may.
#[must_use]
pub fn why_undialable(address: &str) -> Option<&'static str> {
    let host = match address.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => address,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) {
        return Some("it stands for every address of a machine");
    }
    let last = host.rsplit('.').next().unwrap_or_default();
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && host.parse::<Ipv4Addr>().is_err())
        .then_some("its host is a number, which is neither a name nor an IP address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_dials_a_number_or_every_address_of_a_machine() {
        let every = ["0.0.0.0", "0.0.0.0:7400", "::", "[::]", "[::]:7400"];
        for (undialable, reason) in every.map(|text| (text, "every")).into_iter().chain([
            ("19562", "number"),
            ("1:7", "number"),
            ("10.0.0:7", "number"),
        ]) {
            let why = why_undialable(undialable).expect(undialable);
            assert!(why.contains(reason), "{undialable}: {why}");
        }
        for dialable in [
            "10.0.0.7",
            "10.0.0.7:80",
            "a",
            "a:80",
            "worker-0",
            "7a:80",
            "fd00::7",
            "[fd00::7]:80",
            "fe80::1%eth0",
        ] {
            assert_eq!(why_undialable(dialable), None, "{dialable}");
        }
    }
}
