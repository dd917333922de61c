//! `leasehold-agent probe`, as an exec probe of the agent's container runs it.

use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;

use super::process::{AGENT, Agent, left_out, process_namespace};

/// Runs the command with these arguments; returns its exit code and what it printed.
async fn probe(more: &[&str]) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::new(AGENT);
    let Output { status, stdout, stderr } =
        command.arg("probe").args(more).kill_on_drop(true).output().await.unwrap();
    let printed = String::from_utf8([stdout, stderr].concat()).unwrap();
    (status.code(), printed)
}

#[tokio::test]
async fn exits_by_what_the_agent_answers_and_prints_why() {
    let mut command = Command::new(AGENT);
    command.args(["run", "--coordinator", "127.0.0.1:1", "--cluster", "ci", "--worker", "w1"]);
    command.args(["--listen", "127.0.0.1:0", "--health-listen", "[::]:0", "--log-format", "json"]);
    let mut agent = Agent::run(&mut command).await;
    let line = agent.log.line("health and metrics are served").await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let every = line["fields"]["address"].as_str().unwrap();
    assert!(every.starts_with("[::]:"), "{every}");
    let port = every.rsplit(':').next().unwrap();

    assert_eq!(probe(&["--health-listen", every]).await, (Some(0), String::new()));
    let worker_api = agent.address.to_string();
    assert_eq!(probe(&["--health-listen", &worker_api]).await, (Some(0), String::new()));
    // It lives, and no coordinator has welcomed it.
    let (code, printed) = probe(&["--ready", "--health-listen", every]).await;
    assert_eq!(code, Some(1), "{printed}");
    let asked = format!("http://127.0.0.1:{port}/readyz answered 503");
    assert!(printed.contains(&asked) && printed.contains("coordinator"), "{printed}");

    agent.signal(Signal::STOP);
    let (code, printed) = probe(&["--health-listen", every]).await;
    agent.signal(Signal::CONT);
    assert!(code == Some(1) && printed.contains("no answer within 4s"), "{printed}");
    agent.kill().await;
    let (code, printed) = probe(&["--health-listen", every]).await;
    assert!(code == Some(1) && printed.contains("nothing listens there"), "{printed}");
    assert_eq!(probe(&["--health-listen", "7412"]).await.0, Some(2));
}

/// What a mesh's CNI plugin does to a pod before any of its containers starts: each connection goes
/// to the proxy, which is not there yet. Only the loopback interface is left alone.
const MESH: &str = r#"
ip link set lo up
ip link add name node type veth peer name pod
ip addr add 10.9.0.1/24 dev node
ip link set node up
unshare --net sh -e -c '
    on_node="nsenter --net --target $PPID"
    $on_node ip link set pod netns $$
    ip link set lo up
    ip addr add 10.9.0.2/24 dev pod
    ip link set pod up
    LEASEHOLD_HEALTH_LISTEN=:7412
    export LEASEHOLD_HEALTH_LISTEN
    "$0" run --coordinator 127.0.0.1:1 --cluster ci --worker w1 &
    until "$0" probe; do sleep 0.05; done
    $on_node "$0" probe --health-listen 10.9.0.2:7412 || exit 3
    iptables -t nat -A PREROUTING -p tcp -j REDIRECT --to-ports 15006
    iptables -t nat -A OUTPUT -p tcp ! -d 127.0.0.1/32 -j REDIRECT --to-ports 15001
    if $on_node "$0" probe --health-listen 10.9.0.2:7412; then exit 4; fi
    "$0" probe || exit 5
' "$0"
"#;

#[tokio::test]
async fn a_mesh_that_takes_what_comes_to_the_pods_address_takes_no_probe_in_the_pod() {
    let Some(mut pod) = process_namespace() else { return };
    let tools = "ip link add name a type veth peer name b && iptables -t nat -L";
    let can = Command::new("unshare").args(["--net", "sh", "-c", tools]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        left_out("probes in a mesh", "iptables and a pair of veth devices are not there");
        return;
    }
    pod.args(["--net", "sh", "-e", "-c", MESH, AGENT]);
    let Output { status, stderr, .. } = pod.output().unwrap();
    assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&stderr));
}
