//! Coordinators that cannot be reached, send garbage, or refuse: the agent logs the cause at a
//! bounded rate, and tries the next address.

use leasehold_types::Epoch;
use leasehold_types::message::{AgentMessage, Refusal, RefusalReason};
use tokio::io::AsyncWriteExt;

use super::coordinator::{Coordinator, Silence};
use super::process::{Agent, until};

#[tokio::test]
async fn logs_garbage_once_and_tries_the_next_address() {
    let garbage = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = garbage.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = garbage.accept().await {
            let _ = socket.write_all(b"SSH-2.0-not-what-you-want\r\n").await;
        }
    });
    let coordinator = Coordinator::start().await;
    let refused = Refusal { reason: RefusalReason::Protocol, message: "speaks 9, not 1".into() };
    coordinator.refuse(refused);
    let agent = Agent::start(&coordinator, &["--coordinator", &address]).await;
    let line = agent.log.line("no session with the coordinator").await;
    assert!(line.contains(&address), "{line}");
    let line = agent.log.line("speaks 9, not 1").await;
    assert!(line.contains(&coordinator.address.to_string()), "{line}");
    agent.metric_until("leasehold_agent_reconnects_total", |dials| dials >= 8).await;
    assert_eq!(agent.log.count("speaks 9, not 1"), 1, "{}", agent.log.text());
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert_eq!((status, why.contains("welcomed")), (503, true), "{why}");
}

#[tokio::test]
async fn says_what_answers_where_no_coordinator_does() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &["--health-listen", "127.0.0.1:0"]).await;
    let health = agent.log.line("health and metrics are served").await;
    let health: serde_json::Value = serde_json::from_str(&health).unwrap();
    let health = health["fields"]["address"].as_str().unwrap_or_default();
    coordinator.stop();
    for (address, what) in [
        (agent.address.to_string().as_str(), "the worker API of a leasehold-agent"),
        (health, "the port for health and metrics of a leasehold-agent"),
    ] {
        let lost = Agent::start(&coordinator, &["--coordinator", address]).await;
        let line = lost.log.line(what).await;
        assert!(line.contains(address), "{line}");
        assert!(line.contains("set --coordinator to the address of a coordinator's"), "{line}");
    }
}

#[tokio::test]
async fn leaves_a_coordinator_that_takes_its_hello_or_its_report_and_says_nothing() {
    for silence in [Silence::AfterHello, Silence::AfterReport] {
        let silent = Coordinator::start().await;
        silent.silence(silence);
        let coordinator = Coordinator::start().await;
        coordinator.pool(1);
        let address = coordinator.address.to_string();
        let agent = Agent::start(&silent, &["--coordinator", &address]).await;
        agent.pool(1).await;
        let line = agent.log.line("the coordinator is silent").await;
        assert!(line.contains(&silent.address.to_string()), "{line}");
    }
}

#[tokio::test]
async fn stays_at_a_coordinator_that_says_that_it_must_wait() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    // Longer than the agent bears silence.
    coordinator.silence(Silence::Waiting(5));
    let agent = Agent::start(&coordinator, &[]).await;
    agent.pool(1).await;
    let line = agent.log.line("waiting for the coordinator").await;
    assert!(line.contains("\"ahead\":4"), "{line}");
    let hellos = coordinator.count(|message| matches!(message, AgentMessage::Hello(_)));
    assert_eq!(hellos, 1, "{}", agent.log.text());
}

#[tokio::test]
async fn connects_to_the_leader_that_a_standby_names() {
    let leader = Coordinator::start().await;
    let standby = Coordinator::start().await;
    let reason = RefusalReason::NotLeader(Some(leader.address.to_string()));
    standby.refuse(Refusal { reason, message: "I stand by".into() });
    leader.pool(1);
    let agent = Agent::start(&standby, &[]).await;
    agent.pool(1).await;
}

#[tokio::test]
async fn logs_a_failed_tls_handshake_with_the_address() {
    let plain = Coordinator::start().await;
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let ca = ca.display().to_string();
    let agent = Agent::start(&plain, &["--tls-ca", &ca]).await;
    let line = agent.log.line("no session with the coordinator").await;
    assert!(line.contains(&plain.address.to_string()), "{line}");
    assert!(line.contains("corrupt message") || line.contains("InvalidContentType"), "{line}");
}

#[tokio::test]
async fn reconnects_after_a_lost_connection_and_leases_stay_valid() {
    let first = Coordinator::start().await;
    let second = Coordinator::start_in(Epoch(2)).await;
    first.pool(1);
    let address = second.address.to_string();
    let agent = Agent::start(&first, &["--coordinator", &address]).await;
    agent.pool(1).await;
    first.stop();
    until("the agent notices the lost connection", || {
        agent.log.count("no session with the coordinator") > 0
    })
    .await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200, "the lease has not ended");
    agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
}

#[tokio::test]
async fn reads_the_certificate_files_again_for_every_dial() {
    use tonic::transport::{Certificate, Identity, ServerTlsConfig};
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, pem: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let made = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (server, own) = (made("coordinator.example"), made("agent.example"));
    let identity = |certified: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        Identity::from_pem(certified.cert.pem(), certified.signing_key.serialize_pem())
    };
    let tls = ServerTlsConfig::new()
        .identity(identity(&server))
        .client_ca_root(Certificate::from_pem(own.cert.pem()));
    let coordinator = Coordinator::start_tls(tls).await;
    coordinator.pool(1);
    let other = made("agent.example");
    let ca = file("ca.pem", &server.cert.pem());
    let cert = file("cert.pem", &other.cert.pem());
    let key = file("key.pem", &other.signing_key.serialize_pem());
    let name = ["--tls-server-name", "coordinator.example"];
    let own_files = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let agent = Agent::start(&coordinator, &[&own_files[..], &name].concat()).await;
    // The coordinator rejects the certificate until it is renewed.
    agent.log.line("no session with the coordinator").await;
    file("key.pem", &own.signing_key.serialize_pem());
    file("cert.pem", &own.cert.pem());
    agent.pool(1).await;
}

#[tokio::test]
async fn reads_the_ca_file_again_for_every_dial() {
    use tonic::transport::{Identity, ServerTlsConfig};
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("ca.crt");
    let made = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (old, new) = (made(), made());
    let served = Identity::from_pem(new.cert.pem(), new.signing_key.serialize_pem());
    let coordinator = Coordinator::start_tls(ServerTlsConfig::new().identity(served)).await;
    coordinator.pool(1);
    std::fs::write(&bundle, old.cert.pem()).unwrap();
    let ca = bundle.display().to_string();
    let name = ["--tls-server-name", "localhost"];
    let agent = Agent::start(&coordinator, &[&["--tls-ca", &ca][..], &name].concat()).await;
    agent.log.line("no session with the coordinator").await;
    // A bundle of both CAs, as during a rotation.
    std::fs::write(&bundle, old.cert.pem() + &new.cert.pem()).unwrap();
    agent.pool(1).await;
}

#[tokio::test]
async fn an_agent_that_a_newer_agent_replaces_exits() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let mut agent = Agent::start(&coordinator, &[]).await;
    agent.pool(1).await;
    let reason = RefusalReason::NewerIncarnation(leasehold_types::Incarnation(u64::MAX));
    coordinator.refuse(Refusal { reason, message: "a newer agent is here".into() });
    assert_eq!(agent.code().await, Some(1));
    agent.log.line("a newer agent runs for this worker").await;
}
