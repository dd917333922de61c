//! Addresses as flags and annotations give them.

/// Bytes of an address.
const BYTES_MAX: usize = 512;

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
