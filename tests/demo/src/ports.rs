//! Free ports on loopback for programs that are started later, and again after a stop. Neither
//! Linux gives these ports to outgoing connections nor Kubernetes to Services, so nothing takes one
//! while its program does not run.
//!
//! All processes of a machine take them in turn from one counter: a port that was given out and is
//! not in use yet is not given out again before all others were.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use anyhow::{Context, Result, bail};

/// By default, node ports of Services begin at 30000 and `net.ipv4.ip_local_port_range` at 32768.
const PORTS: Range<u16> = 10_000..30_000;

/// Ports that no process listens on now, all different.
///
/// # Errors
/// If too few are found, or the counter's file cannot be used.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    let file = std::env::temp_dir()
        .join(format!("leasehold-ports-{}", rustix::process::getuid().as_raw()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let counter = options.open(&file).and_then(|counter| counter.lock().map(|()| counter));
    let unusable = || format!("cannot use the counter of ports: remove {}", file.display());
    take(counter.with_context(unusable)?, count)
}

/// Takes ports from a counter that no other process reads meanwhile: the lock ends with the file.
fn take(mut counter: File, count: usize) -> Result<Vec<u16>> {
    let mut text = String::new();
    counter.read_to_string(&mut text)?;
    let next = text.trim().parse().ok().filter(|next| PORTS.contains(next));
    let mut next = next.unwrap_or_else(|| fastrand::u16(PORTS));
    let mut found = Vec::with_capacity(count);
    for _ in PORTS {
        if found.len() == count {
            break;
        }
        if TcpListener::bind((Ipv4Addr::LOCALHOST, next)).is_ok() {
            found.push(next);
        }
        next = if next + 1 < PORTS.end { next + 1 } else { PORTS.start };
    }
    if found.len() < count {
        bail!("too few free ports between {} and {}", PORTS.start, PORTS.end);
    }
    counter.rewind()?;
    counter.set_len(0)?;
    counter.write_all(next.to_string().as_bytes())?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_given_out_twice_in_a_row() {
        let ask = || (0..20).flat_map(|_| free_ports(3).expect("ports")).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(ask)).collect();
        let ports: Vec<_> =
            threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 4 * 20 * 3);
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }

    #[test]
    fn a_counter_that_is_no_port_starts_anywhere_and_one_at_the_end_starts_again() {
        for text in ["", "many", "7", "29999"] {
            let mut counter = tempfile::tempfile().expect("a file");
            counter.write_all(text.as_bytes()).expect("written");
            counter.rewind().expect("at its start");
            let taken = take(counter, 2).expect("ports");
            assert!(taken.iter().all(|port| PORTS.contains(port)), "{text}: {taken:?}");
            if text == "29999" {
                assert!(taken[1] < PORTS.end - 1, "{taken:?}");
            }
        }
    }
}
