//! The address at which workers of the previous nodes of a pipeline reach this worker.

use std::net::Ipv6Addr;
use std::num::NonZeroU16;

use leasehold_types::share::WorkerAddress;
use leasehold_types::why_undialable;

/// Parses the address, and adds the port if it contains none.
pub(super) fn parse(text: &str, port: Option<NonZeroU16>) -> Result<WorkerAddress, String> {
    const EXPECTED: &str = "give the HOST or HOST:PORT at which other workers reach this one, for \
                            example 10.0.0.7, fd00::7 or worker-0:8080";
    let wrong = || format!("invalid --worker-address {text:?}: {EXPECTED}");
    if let Some(why) = why_undialable(text) {
        return Err(format!("nobody can dial --worker-address {text}: {why}; {EXPECTED}"));
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let host = bare.unwrap_or(text);
    let many = bare.is_some() || text.matches(':').count() > 1 && !text.starts_with('[');
    let whole = match port {
        _ if many && !is_ipv6(host) => return Err(wrong()),
        Some(port) if many => format!("[{host}]:{port}"),
        Some(port) if !text.contains(':') => format!("{host}:{port}"),
        _ => host.to_owned(),
    };
    WorkerAddress::new(&whole).map_err(|_| wrong())
}

/// Whether it is an IPv6 address, with or without a zone.
fn is_ipv6(host: &str) -> bool {
    host.split('%').next().is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_the_port_if_the_address_contains_none() {
        for (text, port, whole) in [
            ("10.0.0.7", 8080, "10.0.0.7:8080"),
            ("10.0.0.7", 0, "10.0.0.7"),
            ("10.0.0.7:9090", 8080, "10.0.0.7:9090"),
            ("worker-0.swarm", 8080, "worker-0.swarm:8080"),
            ("fd00::7", 8080, "[fd00::7]:8080"),
            ("fd00::7", 0, "fd00::7"),
            ("[fd00::7]", 8080, "[fd00::7]:8080"),
            ("[fd00::7]", 0, "fd00::7"),
            ("[fd00::7]:9090", 8080, "[fd00::7]:9090"),
            ("fe80::1%eth0", 8080, "[fe80::1%eth0]:8080"),
        ] {
            let parsed = parse(text, NonZeroU16::new(port)).expect(text);
            assert_eq!(parsed.as_str(), whole, "{text} {port}");
        }
        for bad in [
            "",
            "a b",
            "http://a",
            "a:b",
            "a:0",
            "a:b:c",
            "19562",
            "0.0.0.0",
            "[::]:80",
            "[a]",
            "[fd00::7]x",
            "[]",
        ] {
            for port in [None, NonZeroU16::new(8080)] {
                assert!(parse(bad, port).is_err(), "{bad:?} {port:?}");
            }
        }
    }
}
