//! A real listener and its peers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::*;

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn limits(total: usize) -> ConnectionLimits {
    let unauthenticated_age = Duration::from_secs(60);
    ConnectionLimits {
        unauthenticated: total,
        waiting: WAITING_MAX,
        total,
        callers: total,
        unauthenticated_age,
    }
}

/// What the port reads from a peer that sends `bytes`.
async fn read_from_peer(preface: Preface, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = socket.local_addr().expect("an address");
    let mut listener = Listener::new(socket, preface, limits(1));
    let mut peer = TcpStream::connect(address).await.expect("a connection");
    let mut connection = listener.next().await;
    peer.write_all(bytes).await.expect("room");
    drop(peer);
    let mut read = Vec::new();
    connection.read_to_end(&mut read).await.map(|_| read)
}

#[tokio::test]
async fn a_port_accepts_only_peers_with_the_expected_first_bytes() {
    let good = [HTTP2_PREFACE, b"more"].concat();
    assert_eq!(read_from_peer(Preface::Http2, &good).await.expect("good"), good);
    let hello = [0x16, 0x03, 0x01, 0x02];
    assert_eq!(read_from_peer(Preface::Tls, &hello).await.expect("good"), hello);
    assert_eq!(read_from_peer(Preface::Any, b"GET /").await.expect("good"), b"GET /");
    for (preface, bad) in [
        (Preface::Http2, b"GET / HTTP/1.1\r\n".as_slice()),
        (Preface::Http2, b"PRI * HTTP/1.1\r\n"),
        (Preface::Http2, &hello),
        (Preface::Tls, HTTP2_PREFACE),
        (Preface::Tls, &[0x16, 0x02]),
    ] {
        let error = read_from_peer(preface, bad).await.expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{preface:?}: {bad:?}");
    }
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_closed_until_another_ends() {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = socket.local_addr().expect("an address");
    let mut listener = Listener::new(socket, Preface::Http2, limits(1));
    let _first = TcpStream::connect(address).await.expect("a connection");
    let first = listener.next().await;
    let mut second = TcpStream::connect(address).await.expect("a connection");
    let closed = async {
        // The connection may also end by a reset.
        let _ = second.read_to_end(&mut Vec::new()).await;
    };
    tokio::select! {
        () = closed => {}
        _ = listener.next() => panic!("a second connection was taken"),
    }
    drop(first);
    let third = TcpStream::connect(address).await.expect("a connection");
    let connection = listener.next().await;
    assert_eq!(connection.peer.address(), third.local_addr().expect("an address"));
}

#[tokio::test]
async fn connections_for_which_the_queue_has_no_room_wait_in_the_kernel() {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = socket.local_addr().expect("an address");
    let limits = ConnectionLimits { waiting: 2, total: 8, ..limits(1) };
    let mut listener = Listener::new(socket, Preface::Http2, limits);
    let mut peers = Vec::new();
    for own in 1..=6 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 1, own], 0))).expect("an address");
        peers.push(socket.connect(address).await.expect("a connection"));
    }
    for peer in &peers {
        // Its place is free once this is dropped.
        let connection = timeout(PATIENCE, listener.next()).await.expect("nobody is sent away");
        assert_eq!(connection.peer.address(), peer.local_addr().expect("an address"));
        assert!(listener.next().now_or_never().is_none(), "there is one place");
    }
}

#[tokio::test]
async fn a_peer_that_gives_up_while_it_waits_gets_no_place() {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = socket.local_addr().expect("an address");
    let mut listener = Listener::new(socket, Preface::Http2, limits(1));
    let _first = TcpStream::connect(address).await.expect("a connection");
    let first = listener.next().await;
    let mut gone = TcpStream::connect(address).await.expect("a connection");
    gone.write_all(HTTP2_PREFACE).await.expect("room");
    let other = TcpStream::connect(address).await.expect("a connection");
    let third = other.local_addr().expect("an address");
    // The other one may still wait in the kernel.
    while listener.waiting.turns().count() == 0 {
        assert!(listener.next().now_or_never().is_none(), "there is no place");
        tokio::task::yield_now().await;
    }
    drop(gone);
    // The end of the connection has been seen once another one comes about.
    let _fourth = TcpStream::connect(address).await.expect("a connection");
    drop(first);
    assert_eq!(listener.next().await.peer.address(), third);
}

#[tokio::test]
async fn a_connection_is_kept_while_its_allowed_calls_last_and_can_be_replaced_after_them() {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = socket.local_addr().expect("an address");
    let mut listener =
        Listener::new(socket, Preface::Any, ConnectionLimits { total: 4, ..limits(1) });
    let _first = TcpStream::connect(address).await.expect("a connection");
    let mut first = listener.next().await;
    let calls = [first.peer.begin_session(), first.peer.begin_session()];
    let _second = TcpStream::connect(address).await.expect("a connection");
    // Its place is free at once.
    let mut second = listener.next().await;
    second.peer.keep_place(Duration::from_secs(3_600));
    let [one, other] = calls;
    drop(one);
    let mut byte = [0];
    assert!(first.read(&mut byte).now_or_never().is_none(), "another call goes on");
    drop(other);
    let ended = first.read(&mut byte).await.expect_err("all places are kept");
    assert_eq!(ended.kind(), io::ErrorKind::TimedOut);

    drop(second.peer.begin_session());
    let _third = TcpStream::connect(address).await.expect("a connection");
    let _connection = listener.next().await;
    let ended = second.read(&mut byte).await.expect_err("another one has its place");
    assert_eq!(ended.kind(), io::ErrorKind::ConnectionAborted);
}
