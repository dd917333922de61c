//! The bearer token in a call's `authorization` header.

use tonic::metadata::MetadataMap;

/// The header, and the scheme within it (RFC 6750); schemes are compared without regard to case.
const HEADER: &str = "authorization";
const SCHEME: &str = "bearer ";

/// The bearer token; `None` without that header, or with another scheme.
pub(crate) fn bearer(metadata: &MetadataMap) -> Option<String> {
    let value = metadata.get(HEADER)?.to_str().ok()?;
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case(SCHEME) && !token.is_empty()).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_token_after_the_bearer_scheme() {
        for (value, token) in [
            ("Bearer abc.def", Some("abc.def")),
            ("bearer  abc", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let mut metadata = MetadataMap::new();
            metadata.insert(HEADER, value.parse().expect("a value"));
            assert_eq!(bearer(&metadata).as_deref(), token, "{value:?}");
        }
        assert_eq!(bearer(&MetadataMap::new()), None);
    }
}
