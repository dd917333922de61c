//! A network of the tests' own on this machine: a bridge that the API server and the nodes are at,
//! with a network for each node's pods and one for Services routed through the nodes.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The addresses of one test's network: all of `10.X.Y.0` to `10.X.Y+7.255`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bridge {
    /// The first three bytes of the bridge's own network; those that follow are 1 to 7 higher.
    base: [u8; 3],
    /// Distinguishes it from the process's others.
    number: u32,
}

/// How many nodes have room on one bridge.
pub(super) const NODES_MAX: u8 = 6;

impl Bridge {
    /// Chooses a name and addresses that this machine does not use.
    pub(super) fn choose() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let used = said(&["-4", "-oneline", "route", "show", "table", "all"]);
        let used = used.unwrap_or_default();
        loop {
            let (x, y) = (fastrand::u8(200..250), fastrand::u8(0..32) * 8);
            if !(y..=y + 7).any(|y| used.contains(&format!("10.{x}.{y}."))) {
                return Self { base: [10, x, y], number };
            }
        }
    }

    /// The interface's name.
    pub(super) fn name(&self) -> String {
        format!("lh{}x{}", std::process::id(), self.number)
    }

    /// The machine's own address there.
    pub(super) fn address(&self) -> Ipv4Addr {
        self.at(0, 1)
    }

    /// The Services' network.
    pub(super) fn services(&self) -> Ipv4Addr {
        self.at(1, 0)
    }

    /// The address of a node, counted from 1.
    pub(super) fn node(&self, node: u8) -> Ipv4Addr {
        self.at(0, 1 + node)
    }

    /// The network of a node's pods.
    pub(super) fn pods(&self, node: u8) -> Ipv4Addr {
        assert!((1..=NODES_MAX).contains(&node), "a bridge has room for {NODES_MAX} nodes");
        self.at(1 + node, 0)
    }

    /// Creates the interface.
    pub(super) fn create(&self) -> Result<(), String> {
        let (name, address) = (&*self.name(), &*format!("{}/24", self.address()));
        ip(&["link", "add", name, "type", "bridge"])?;
        ip(&["address", "add", address, "dev", name])?;
        ip(&["link", "set", name, "up"])
    }

    /// Gives a node, by the process that holds its namespaces, an interface at the bridge. Its pods
    /// are reached through it, and with the first node the Services.
    pub(super) fn connect(&self, node: u8, process: u32) -> Result<(), String> {
        let (bridge, cable, process) =
            (&*self.name(), &*format!("{}n{node}", self.name()), &*process.to_string());
        ip(&["link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", process])?;
        ip(&["link", "set", cable, "master", bridge, "up"])?;
        let inside = |arguments: &[&str]| {
            let enter = ["--target", process, "--net", "ip"];
            run(Command::new("nsenter").args(enter).args(arguments)).map(drop)
        };
        let own = self.node(node).to_string();
        inside(&["address", "add", &format!("{own}/24"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        inside(&["route", "add", "default", "via", &self.address().to_string()])?;
        for other in (1..=NODES_MAX).filter(|&other| other != node) {
            let (pods, via) = (format!("{}/24", self.pods(other)), self.node(other).to_string());
            inside(&["route", "add", &pods, "via", &via])?;
        }
        ip(&["route", "add", &format!("{}/24", self.pods(node)), "via", &own])?;
        if node == 1 {
            ip(&["route", "add", &format!("{}/24", self.services()), "via", &own])?;
        }
        Ok(())
    }

    /// Removes the interface and everything that is connected to it.
    pub(super) fn remove(&self) -> Result<(), String> {
        ip(&["link", "delete", &self.name()])
    }

    fn at(&self, network: u8, host: u8) -> Ipv4Addr {
        let [a, b, c] = self.base;
        Ipv4Addr::new(a, b, c + network, host)
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    said(arguments).map(drop)
}

fn said(arguments: &[&str]) -> Result<String, String> {
    run(Command::new("ip").args(arguments))
}

/// Runs a command: what it wrote, or what it complained of.
pub(super) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?}: {}: {}", output.status, said.trim()))
    }
}
