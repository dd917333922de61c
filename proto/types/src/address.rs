//! Addresses as flags and annotations give them.

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
