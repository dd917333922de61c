//! Free ports on loopback for programs that are started later, and again after a stop. Neither
//! Linux gives these ports to outgoing connections nor Kubernetes to Services, so nothing takes one
//! while its program does not run.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use anyhow::{Result, bail};

/// By default, node ports of Services begin at 30000 and `net.ipv4.ip_local_port_range` at 32768.
const PORTS: Range<u16> = 10_000..30_000;
/// The most ports that are tried for each that is wanted.
const TRIES_MAX: usize = 1_000;

/// Ports that no process listens on now, all different.
///
/// # Errors
/// If too few are found.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    // Open until all are found, so that none is found twice.
    let mut found = Vec::with_capacity(count);
    for _ in 0..count.saturating_mul(TRIES_MAX) {
        if found.len() == count {
            break;
        }
        let port = fastrand::u16(PORTS);
        found.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(|socket| (port, socket)));
    }
    if found.len() < count {
        bail!("too few free ports between {} and {}", PORTS.start, PORTS.end);
    }
    Ok(found.into_iter().map(|(port, _)| port).collect())
}
