//! The fleet's network: a namespace for each host, and one between them that this process is in
//! and that forwards. What is cut is dropped by the kernel on its way.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::plan::{COORDINATORS, HOSTS, Host};

/// Where `ip` keeps namespaces by name.
const NAMES: &str = "/run/netns";
/// How late packets are with netem, and by how much that varies.
const DELAY: [&str; 3] = ["delay", "120ms", "100ms"];
/// What netem loses.
const LOSS: [&str; 2] = ["loss", "15%"];
/// Without netem: so few bytes a second that packets queue, and are dropped where the queue is
/// longer.
const SLOW_LINE: [&str; 7] = ["tbf", "rate", "48kbit", "burst", "2k", "latency", "400ms"];
/// How long a burst of losses lasts without netem, and how often one begins.
pub(super) const BURST: Duration = Duration::from_millis(150);
/// See [`BURST`].
pub(super) const BURST_EVERY: Duration = Duration::from_millis(600);

/// The fleet's network.
#[derive(Debug)]
pub(super) struct Network {
    /// Whether the kernel delays and loses packets by itself.
    has_netem: bool,
}

impl Network {
    /// Lays every host's line. This process must be alone in a network namespace, and may mount.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(super) fn lay() -> Result<Self> {
        run(&["mount", "-t", "tmpfs", "tmpfs", "/run"])?;
        run(&["ip", "link", "set", "lo", "up"])?;
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("forwarding")?;
        for host in hosts() {
            let (name, ours) = (name(host), line(host));
            run(&["ip", "netns", "add", &name])?;
            let veth = ["type", "veth", "peer", "name", "line", "netns", &name];
            run(&[&["ip", "link", "add", &ours], &veth[..]].concat())?;
            run(&["ip", "address", "add", &format!("{}/30", at(host, 1)), "dev", &ours])?;
            run(&["ip", "link", "set", &ours, "up"])?;
            let inside = ["ip", "-netns", &name];
            let address = format!("{}/30", at(host, 2));
            run(&[&inside[..], &["address", "add", &address, "dev", "line"]].concat())?;
            for device in ["lo", "line"] {
                run(&[&inside[..], &["link", "set", device, "up"]].concat())?;
            }
            run(&[&inside[..], &["route", "add", "default", "via", &at(host, 1)]].concat())?;
        }
        let probe = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"];
        let has_netem = run(&probe).is_ok();
        if has_netem {
            run(&["tc", "qdisc", "delete", "dev", "lo", "root"])?;
        }
        Ok(Self { has_netem })
    }

    /// Whether the kernel delays and loses packets by itself.
    pub(super) fn has_netem(&self) -> bool {
        self.has_netem
    }

    /// Drops what one host sends another, or lets it through again.
    pub(super) fn cut(&self, from: Host, to: Host, cuts: bool) -> Result<()> {
        let (from, to) = (at(from, 2), at(to, 2));
        rule(cuts, &["from", &from, "to", &to])
    }

    /// Drops whatever a host sends, or lets it through again.
    pub(super) fn mute(&self, host: Host, mutes: bool) -> Result<()> {
        rule(mutes, &["from", &at(host, 2), "iif", &line(host)])
    }

    /// Drops whatever is sent to a host and by it, or lets it through again.
    pub(super) fn isolate(&self, host: Host, isolates: bool) -> Result<()> {
        self.mute(host, isolates)?;
        // Not what this process sends: it steers from between the hosts.
        hosts()
            .filter(|other| *other != host)
            .try_for_each(|other| rule(isolates, &["from", &at(other, 2), "to", &at(host, 2)]))
    }

    /// Delays what a host sends and gets, or no longer.
    pub(super) fn delay(&self, host: Host, delays: bool) -> Result<()> {
        let shape: Vec<&str> =
            if self.has_netem { [&["netem"], &DELAY[..]].concat() } else { SLOW_LINE.into() };
        self.shape(host, delays, &shape)
    }

    /// Has netem lose some of what a host sends and gets, or no longer.
    pub(super) fn lose(&self, host: Host, loses: bool) -> Result<()> {
        self.shape(host, loses, &[&["netem"], &LOSS[..]].concat())
    }

    fn shape(&self, host: Host, on: bool, shape: &[&str]) -> Result<()> {
        let name = name(host);
        let inside = ["tc", "-netns", &name];
        for (tc, device) in [(&["tc"][..], line(host)), (&inside[..], "line".to_owned())] {
            let verb = if on { "add" } else { "delete" };
            let qdisc = ["qdisc", verb, "dev", &device, "root"];
            let shape = if on { shape } else { &[] };
            run(&[tc, &qdisc[..], shape].concat())?;
        }
        Ok(())
    }
}

/// The command that runs a program on a host.
pub(super) fn command_on(host: Host, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    let name = PathBuf::from(NAMES).join(name(host));
    command.arg(format!("--net={}", name.display())).arg("--").arg(program);
    command
}

/// A host's address.
pub(super) fn address(host: Host) -> String {
    at(host, 2)
}

/// Drops what is routed by this rule, or no longer.
fn rule(adds: bool, what: &[&str]) -> Result<()> {
    let verb = if adds { "add" } else { "delete" };
    run(&[&["ip", "rule", verb, "blackhole"], what].concat())
}

/// All hosts.
fn hosts() -> impl Iterator<Item = Host> {
    (0..COORDINATORS).map(Host::Coordinator).chain((0..HOSTS).map(Host::Node))
}

fn name(host: Host) -> String {
    match host {
        Host::Coordinator(index) => format!("coordinator-{index}"),
        Host::Node(node) => format!("node-{node}"),
    }
}

/// The end of a host's line that is with this process.
fn line(host: Host) -> String {
    format!("to-{}", number(host))
}

/// An address on a host's line: 1 is this process's, 2 the host's.
fn at(host: Host, end: u8) -> String {
    format!("10.77.{}.{end}", number(host))
}

fn number(host: Host) -> usize {
    match host {
        Host::Coordinator(index) => index,
        Host::Node(node) => COORDINATORS + node,
    }
}

/// Runs a command to its end.
pub(super) fn run(command: &[&str]) -> Result<()> {
    let (program, args) = command.split_first().context("no command")?;
    let output = Command::new(program).args(args).output().with_context(|| program.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", command.join(" "), said.trim());
    Ok(())
}
