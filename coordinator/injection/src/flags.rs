//! The agent's flags that a pod's annotations, its WorkerCluster or WorkerClass, or the command
//! line may set, and what their values look like. The rest the injection decides itself.

use leasehold_types::flag::DurationRange;
use leasehold_types::{LISTEN_EXPECTED, nearest, parse_listen};

use crate::refusal::Refusal;

/// A flag of `leasehold-agent run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name, without `--`.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: FlagKind,
}

/// The format of a flag's value, as far as it can be checked without the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    /// Any text that is not empty.
    Text,
    /// A duration, as in `1h30m`, in a range.
    Duration(DurationRange),
    /// `IP:PORT`.
    Address,
    /// `IP:PORT`, or `:PORT` for every address.
    AddressOrPort,
    /// A whole number, not below 0.
    Number,
    /// A port.
    Port,
    /// `true` or `false`.
    Switch,
    /// One of these.
    OneOf(&'static [&'static str]),
}

const fn flag(name: &'static str, kind: FlagKind) -> Flag {
    Flag { name, kind }
}

/// The flags that may be set.
pub const FLAGS: &[Flag] = &[
    flag("adapter", FlagKind::OneOf(&["api", "command", "file", "http", "travis"])),
    flag("command-count", FlagKind::Text),
    flag("command-drain", FlagKind::Text),
    flag("command-interval", FlagKind::Duration(DurationRange::OF_REQUESTS)),
    flag("command-resize", FlagKind::Text),
    flag("command-stream-start", FlagKind::Text),
    flag("command-stream-stop", FlagKind::Text),
    flag("command-timeout", FlagKind::Duration(DurationRange::OF_REQUESTS)),
    flag("drain-deadline", FlagKind::Duration(DurationRange::DEADLINE)),
    flag("file-command", FlagKind::Text),
    flag("file-count", FlagKind::Text),
    flag("file-path", FlagKind::Text),
    flag("file-pid", FlagKind::Text),
    flag("file-pool", FlagKind::Switch),
    flag("file-settle", FlagKind::Duration(DurationRange::GRACE)),
    flag("file-signal", FlagKind::OneOf(&["HUP", "INT", "USR1", "USR2", "TERM", "WINCH"])),
    flag("health-listen", FlagKind::AddressOrPort),
    flag("http-auth-file", FlagKind::Text),
    flag("http-count-field", FlagKind::Text),
    flag("http-count-url", FlagKind::Text),
    flag("http-drain-body", FlagKind::Text),
    flag("http-drain-method", FlagKind::Text),
    flag("http-drain-url", FlagKind::Text),
    flag("http-interval", FlagKind::Duration(DurationRange::OF_REQUESTS)),
    flag("http-size-body", FlagKind::Text),
    flag("http-size-field", FlagKind::Text),
    flag("http-size-max", FlagKind::Number),
    flag("http-size-method", FlagKind::Text),
    flag("http-size-url", FlagKind::Text),
    flag("listen", FlagKind::Address),
    flag("listen-anywhere", FlagKind::Switch),
    flag("log-format", FlagKind::OneOf(&["text", "json"])),
    flag("socket", FlagKind::Text),
    flag("socket-mode", FlagKind::OneOf(&["0600", "0660"])),
    flag("travis-auth", FlagKind::Text),
    flag("travis-auth-file", FlagKind::Text),
    flag("travis-interval", FlagKind::Duration(DurationRange::OF_REQUESTS)),
    flag("travis-url", FlagKind::Text),
    flag("trust-state-dir-locks", FlagKind::Switch),
    flag("worker-check-exec", FlagKind::Text),
    flag("worker-check-failures", FlagKind::Number),
    flag("worker-check-http", FlagKind::Text),
    flag("worker-check-interval", FlagKind::Duration(DurationRange::OF_REQUESTS)),
    flag("worker-check-start-period", FlagKind::Duration(DurationRange::GRACE)),
    flag("worker-check-tcp", FlagKind::Text),
    flag("worker-check-timeout", FlagKind::Duration(DurationRange::OF_REQUESTS)),
    flag("worker-port", FlagKind::Port),
    flag("worker-timeout", FlagKind::Duration(DurationRange::DEADLINE)),
];

const IN_THE_WORKER: &str =
    "with the adapter process the agent starts the worker in its own container, without a sidecar";

/// Flags of the agent that may not be set, and what decides them.
pub const RESERVED: &[(&str, &str)] = &[
    ("cell", "a pod belongs to the cell of its coordinator"),
    ("child-grace", "a sidecar starts no worker"),
    ("child-kill", "a sidecar starts no worker"),
    ("child-kill-on-parent-death", "a sidecar starts no worker"),
    ("child-no-cgroup", "a sidecar starts no worker"),
    ("child-signal", "a sidecar starts no worker"),
    ("cluster", "the label leasehold.dev/cluster decides it"),
    ("coordinator", "the installation decides it"),
    ("generation", "the operator decides it"),
    ("process-grace", IN_THE_WORKER),
    ("process-kill", IN_THE_WORKER),
    ("restart", "a sidecar starts no worker"),
    ("share-dir", "the injection decides it"),
    ("sidecar", "the injection decides it"),
    ("state-dir", "the injection decides it"),
    ("take-over", "the newest pod of a name takes over"),
    ("tls-ca", "the injection decides it"),
    ("tls-cert", "pods prove themselves by tokens"),
    ("tls-key", "pods prove themselves by tokens"),
    ("tls-server-name", "the installation decides it"),
    ("token-file", "the injection decides it"),
    ("undrain", "a drain that the operator orders of a pod ends with the pod"),
    ("worker", "the pod's name decides it"),
    ("worker-address", "the pod's IP decides it"),
];

/// The most bytes of a value.
const VALUE_BYTES_MAX: usize = 4096;

/// Whether a flag may be set to a value. `what` names the place that sets it, for the refusal;
/// `prefix` comes before the flag's name there.
///
/// # Errors
/// An unknown flag, a reserved flag, or an invalid value.
pub fn check_flag(prefix: &str, name: &str, value: &str) -> Result<(), Refusal> {
    let what = format!("{prefix}{name}");
    if let Some((_, why)) = RESERVED.iter().find(|(reserved, _)| *reserved == name) {
        return Err(Refusal::Reserved { what, why });
    }
    let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) else {
        let near = nearest(name, FLAGS.iter().map(|flag| flag.name));
        return Err(Refusal::Unknown { what, nearest: near.map(|near| format!("{prefix}{near}")) });
    };
    let checked = match value {
        "" => Err("invalid value \"\": it must not be empty".into()),
        _ if value.contains('\0') => {
            Err("invalid value: it must not contain the character NUL".into())
        }
        _ if value.len() > VALUE_BYTES_MAX => Err(format!(
            "invalid value \"{}…\": it has {} bytes, use at most {VALUE_BYTES_MAX}",
            value.chars().take(32).collect::<String>(),
            value.len()
        )),
        _ => flag.kind.check(value),
    };
    checked.map_err(|why| Refusal::Value { what, why })
}

impl FlagKind {
    fn check(self, value: &str) -> Result<(), String> {
        let (valid, what, usage) = match self {
            Self::Text => return Ok(()),
            Self::Duration(range) => return range.parse(value).map(drop),
            Self::Address => (port(value).is_some(), "address", LISTEN_EXPECTED),
            Self::AddressOrPort => {
                let usage = "expected IP:PORT or :PORT, for example :7412";
                (listening_port(value).is_some(), "address", usage)
            }
            Self::Number => {
                (value.parse::<u32>().is_ok(), "number", "use a whole number from 0 to 4294967295")
            }
            Self::Port => {
                let valid = value.parse::<u16>().is_ok_and(|port| port > 0);
                (valid, "port", "use a number from 1 to 65535")
            }
            Self::Switch => (["true", "false"].contains(&value), "value", "use true or false"),
            Self::OneOf(words) if words.contains(&value) => return Ok(()),
            Self::OneOf(words) => {
                return Err(format!("invalid value {value:?}: use one of {}", words.join(", ")));
            }
        };
        if valid { Ok(()) } else { Err(format!("invalid {what} {value:?}: {usage}")) }
    }
}

/// The port of `IP:PORT`, or of `localhost:PORT`.or `:PORT`.
pub(crate) fn listening_port(address: &str) -> Option<u16> {
    match address.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0),
        None => port(address),
    }
}

/// The port of `IP:PORT`, or of `localhost:PORT`.
fn port(address: &str) -> Option<u16> {
    let port = parse_listen::<std::net::SocketAddr>(address).ok()?.port();
    (port > 0).then_some(port)
}

/// The variable that sets a flag.
pub(crate) fn variable(flag: &str) -> String {
    format!("LEASEHOLD_{}", flag.to_ascii_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_sorted_and_no_flag_is_also_reserved() {
        assert!(FLAGS.is_sorted_by(|a, b| a.name < b.name));
        assert!(RESERVED.is_sorted_by(|a, b| a.0 < b.0));
        assert!(FLAGS.iter().all(|flag| RESERVED.iter().all(|(name, _)| flag.name != *name)));
    }

    #[test]
    fn rejects_invalid_values_and_names_them() {
        let refused = |name: &str, value: &str| {
            check_flag("config.leasehold.dev/", name, value).expect_err(name).to_string()
        };
        assert_eq!(check_flag("", "adapter", "file"), Ok(()));
        assert_eq!(check_flag("", "health-listen", "0.0.0.0:7500"), Ok(()));
        assert_eq!(check_flag("", "listen", "[::1]:7500"), Ok(()));
        for (name, value, word) in [
            ("adaptor", "file", "did you mean config.leasehold.dev/adapter?"),
            ("zzz", "1", "docs/SIDECAR.md"),
            ("cluster", "c", "the label leasehold.dev/cluster"),
            ("adapter", "fil", "use one of api, command, file"),
            ("adapter", "process", "use one of api"),
            ("process-grace", "1s", "without a sidecar"),
            ("http-size-max", "-1", "whole number"),
            ("worker-port", "65536", "invalid port"),
            ("worker-address", "10.0.0.7", "the pod's IP"),
            ("listen", ":7500", "IP:PORT"),
            ("drain-deadline", "5", "invalid duration"),
            ("drain-deadline", "200000000h", "from 100ms to 8784h"),
            ("drain-deadline", "0s", "from 100ms to 8784h"),
            ("http-interval", "2h", "from 100ms to 1h"),
            ("listen", "localhost", "IP:PORT"),
            ("listen", "127.0.0.1:0", "IP:PORT"),
            ("listen-anywhere", "yes", "use true or false"),
            ("file-path", "", "must not be empty"),
        ] {
            let said = refused(name, value);
            assert!(said.contains(word) && said.contains("config.leasehold.dev/"), "{said}");
        }
        let long = refused("file-path", &"x".repeat(5000));
        assert!(long.contains("5000") && long.len() < 200, "{long}");
    }
}
