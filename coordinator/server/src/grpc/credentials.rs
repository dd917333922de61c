//! What a caller shows of itself: the bearer token in the `authorization` header, and the
//! certificate of its connection.

use leasehold_driver::access::{ACCESS_TIMEOUT, Access, Caller, Credentials, Denied, Permission};
use leasehold_driver::metrics::Metrics;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use crate::connections::{AllowedCall, Peer, TooManyConnections};

/// The header, and the scheme within it (RFC 6750); schemes are compared without regard to case.
const HEADER: &str = "authorization";
const SCHEME: &str = "bearer ";

/// A caller that may have what it wants. Its connection is kept open until this is dropped.
#[derive(Debug)]
pub(crate) struct Authorized {
    pub(crate) caller: Caller,
    pub(crate) connection: Option<AllowedCall>,
}

/// Why a caller is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unauthorized {
    /// It may not have what it wants.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// It has too many connections.
    #[error(transparent)]
    Connections(#[from] TooManyConnections),
}

/// Checks that the caller may have what it wants, and returns who it is. A denial is counted.
pub(crate) async fn authorize<T>(
    access: &Access,
    metrics: &Metrics,
    request: &Request<T>,
    permission: Permission,
) -> Result<Authorized, Unauthorized> {
    let peer = Peer::of(request.extensions());
    // The platform may be slow; that must not cost the connection its place.
    peer.into_iter().for_each(|peer| peer.keep_place(ACCESS_TIMEOUT));
    let asked = access.ask(credentials(request.metadata(), peer), permission).await;
    let caller = asked.inspect_err(|why| metrics.denied(why))?;
    let connection = peer.map(|peer| peer.begin_call(caller.tenant())).transpose()?;
    Ok(Authorized { caller, connection })
}

/// What the caller shows of itself.
pub(crate) fn credentials(metadata: &MetadataMap, peer: Option<&Peer>) -> Credentials {
    Credentials {
        token: bearer(metadata),
        peer: peer.map(Peer::address),
        certificate: peer.and_then(Peer::certificate),
    }
}

/// The status of a call that is refused.
pub(crate) fn status_of(refused: &Unauthorized) -> Status {
    let message = refused.to_string();
    match refused {
        Unauthorized::Denied(Denied::Unauthenticated(_)) => Status::unauthenticated(message),
        Unauthorized::Denied(Denied::Forbidden(_)) => Status::permission_denied(message),
        Unauthorized::Denied(Denied::Unavailable(_)) => Status::unavailable(message),
        Unauthorized::Connections(_) => Status::resource_exhausted(message),
    }
}

/// The bearer token; `None` without that header, or with another scheme.
fn bearer(metadata: &MetadataMap) -> Option<String> {
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
