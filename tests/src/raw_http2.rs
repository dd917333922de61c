//! Frames of HTTP/2 (RFC 9113) byte by byte, for clients that do what no library lets them do.

/// What a client begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a client may send on a connection, and on a stream of it, before it has heard anything
/// (RFC 9113, 6.9.2).
pub const WINDOW_BYTES: usize = 65_535;
/// The largest payload of a frame (RFC 9113, 4.2).
const FRAME_BYTES: usize = 16_384;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const SETTINGS: u8 = 0x4;
const PING: u8 = 0x6;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;
const INITIAL_WINDOW_SIZE: u8 = 0x4;

/// The preface and the settings. A window of 0 lets the server send no body at all.
#[must_use]
pub fn greeting(window_bytes: Option<u32>) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    let settings = window_bytes.map(|window| {
        let mut setting = vec![0, INITIAL_WINDOW_SIZE];
        setting.extend_from_slice(&window.to_be_bytes());
        setting
    });
    frame(&mut bytes, SETTINGS, 0, 0, &settings.unwrap_or_default());
    bytes
}

/// The headers of a gRPC call on a stream, with more of them.
///
/// # Panics
/// If they do not fit into one frame.
#[must_use]
pub fn call(stream: u32, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame(&mut bytes, HEADERS, END_HEADERS, stream, &block(path, more));
    bytes
}

/// Headers that do not end; [`more_headers`] go on with them.
#[must_use]
pub fn begun_headers(stream: u32, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame(&mut bytes, HEADERS, 0, stream, &block(path, &[]));
    bytes
}

/// One more header, after which they still do not end.
#[must_use]
pub fn more_headers(stream: u32, name: &str, value: &str) -> Vec<u8> {
    let (mut bytes, mut header) = (Vec::new(), Vec::new());
    literal(&mut header, name, value);
    frame(&mut bytes, CONTINUATION, 0, stream, &header);
    bytes
}

/// A part of a body, in as many frames as it needs.
#[must_use]
pub fn data(stream: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 64);
    for part in body.chunks(FRAME_BYTES) {
        frame(&mut bytes, DATA, 0, stream, part);
    }
    bytes
}

/// What the server answers at once.
#[must_use]
pub fn ping() -> Vec<u8> {
    let mut bytes = Vec::new();
    frame(&mut bytes, PING, 0, 0, &[0; 8]);
    bytes
}

/// The preface and the beginning of one gRPC call on each stream, as much as a client may send.
/// Each message says that it has 16 MiB.
///
/// # Panics
/// If there are more streams than bytes.
#[must_use]
pub fn half_requests(path: &str, streams: u32) -> Vec<u8> {
    let mut bytes = greeting(None);
    let share = WINDOW_BYTES / usize::try_from(streams).expect("few streams");
    for stream in (0..streams).map(|index| 2 * index + 1) {
        bytes.extend(call(stream, path, &[]));
        let mut body = vec![0, 1, 0, 0, 0];
        body.resize(share, 0);
        bytes.extend(data(stream, &body));
    }
    bytes
}

fn frame(into: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    assert!(payload.len() <= FRAME_BYTES, "a frame of {} bytes", payload.len());
    let length = u32::try_from(payload.len()).expect("checked above").to_be_bytes();
    into.extend_from_slice(&length[1..]);
    into.extend_from_slice(&[kind, flags]);
    into.extend_from_slice(&stream.to_be_bytes());
    into.extend_from_slice(payload);
}

/// The headers of a call, encoded without a table of their own (RFC 7541, 6.2.2).
fn block(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    // :method POST and :scheme http, from the static table.
    let mut block = vec![0x83, 0x86];
    let call = [
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    for (name, value) in call.iter().chain(more) {
        literal(&mut block, name, value);
    }
    block
}

fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        length(block, text.len());
        block.extend_from_slice(text.as_bytes());
    }
}

/// An integer with a prefix of 7 bits (RFC 7541, 5.1).
fn length(block: &mut Vec<u8>, length: usize) {
    const PREFIX_MAX: usize = 127;
    if length < PREFIX_MAX {
        block.push(u8::try_from(length).expect("below 127"));
        return;
    }
    block.push(127);
    let mut rest = length - PREFIX_MAX;
    while rest >= 128 {
        block.push(u8::try_from(rest % 128 + 128).expect("a byte"));
        rest /= 128;
    }
    block.push(u8::try_from(rest).expect("below 128"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_form_of_the_rfc() {
        for (number, encoded) in
            [(10, &[10][..]), (126, &[126]), (127, &[127, 0]), (1_337, &[127, 0xba, 0x09])]
        {
            let mut block = Vec::new();
            length(&mut block, number);
            assert_eq!(block, encoded, "{number}");
        }
    }

    #[test]
    fn a_client_sends_no_more_of_its_requests_than_its_window_allows() {
        for streams in [1, 128] {
            let bytes = half_requests("/a/b", streams);
            let (mut rest, mut sent) = (&bytes[PREFACE.len()..], 0);
            while let [high, middle, low, kind, _, _, _, _, _, more @ ..] = rest {
                let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
                sent += if *kind == DATA { length } else { 0 };
                rest = &more[length..];
            }
            assert!(sent <= WINDOW_BYTES && sent > WINDOW_BYTES - 128, "{sent}");
        }
    }
}
