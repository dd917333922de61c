//! Inputs as HTTP requests: a line `METHOD PATH`, headers, an empty line, and the body. A line
//! `###` begins another request. The body of a gRPC request gets its frame here.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri, header};

/// Begins another request.
const MARK: &[u8] = b"\n###\n";
/// The requests of an input, at most.
const REQUESTS_MAX: usize = 8;
/// The headers of a request, at most.
const HEADERS_MAX: usize = 16;

/// The requests in an input. What a server's parser refuses is left out.
pub(crate) fn requests(input: &[u8]) -> Vec<Request<Body>> {
    split(input, MARK).into_iter().take(REQUESTS_MAX).filter_map(request).collect()
}

/// The parts between the marks.
fn split<'a>(mut input: &'a [u8], mark: &[u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    while let Some(at) = input.windows(mark.len()).position(|window| window == mark) {
        parts.push(&input[..at]);
        input = &input[at + mark.len()..];
    }
    parts.push(input);
    parts
}

fn request(text: &[u8]) -> Option<Request<Body>> {
    let (first, mut rest) = line(text);
    let at = first.iter().position(|byte| *byte == b' ')?;
    let method = Method::from_bytes(&first[..at]).ok()?;
    let uri = Uri::try_from(&first[at + 1..]).ok()?;
    let mut request = Request::new(Body::empty());
    for _ in 0..HEADERS_MAX {
        let (header, after) = line(rest);
        rest = after;
        let Some(at) = header.iter().position(|byte| *byte == b':') else { break };
        let name = HeaderName::from_bytes(&header[..at]).ok()?;
        let value = HeaderValue::from_bytes(header[at + 1..].trim_ascii()).ok()?;
        request.headers_mut().append(name, value);
    }
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let body = match kind {
        Some(kind) if kind.starts_with(b"application/grpc") => framed(rest),
        _ => rest.to_vec(),
    };
    *request.body_mut() = Body::from(body);
    (*request.method_mut(), *request.uri_mut()) = (method, uri);
    Some(request)
}

/// The first line, and what follows it.
fn line(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[]),
    }
}

/// A message in the frame of gRPC: not compressed, and its length.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("inputs are short").to_be_bytes();
    [&[0], &length[..], message].concat()
}
