//! Digests of objects that the operator writes, to detect changes. They are stored in annotations,
//! so the function must not change.

/// The digest of a body or a template, of its JSON.
pub(crate) fn digest(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_vec(value).expect("JSON is written as JSON");
    format!("{:016x}", sum(&text))
}

/// FNV-1a.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
