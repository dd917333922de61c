//! One HTTP call a connection, for workers and tests: nothing of it outlives the call.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a call may take; longer than anybody lets a question wait.
const WITHIN: Duration = Duration::from_secs(3_600);

/// Calls `path` (with its query), and returns the status and the body of the answer.
///
/// # Errors
/// If there is no answer or it is not HTTP.
pub async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = timeout(WITHIN, async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        io::Result::Ok(answer)
    });
    let answer = answer.await.map_err(|_| io::ErrorKind::TimedOut)??;
    let parts = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    });
    parts.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no HTTP answer"))
}
