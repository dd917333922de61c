//! How many connections with calls of people, replicas and autoscalers a port has: in total, so
//! that agents always have theirs, and of one tenant, so that the others have theirs, too.

use std::sync::Arc;

use leasehold_driver::keyed_limit::{KeyedLimit, KeyedPermit};

/// The connections that a tenant may have in any case: it may make so many calls at a time.
const PER_TENANT_MIN: usize = 16;

/// The limit of one port.
#[derive(Clone, Debug)]
pub(crate) struct CallerLimit {
    of_tenant: Arc<KeyedLimit<Option<String>>>,
    per_tenant: usize,
}

/// A caller has as many connections as it may have, or all callers together have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many connections with calls that have not ended: at most {per_tenant} of one user or \
     namespace, and a port has few for all of them; make several calls over one connection, or try \
     again later"
)]
pub(crate) struct TooManyConnections {
    per_tenant: usize,
}

impl CallerLimit {
    /// At most `total` connections, and `per_tenant` of one tenant, but no fewer than it may make
    /// calls at a time. Callers without a name are one tenant.
    pub(crate) fn new(total: usize, per_tenant: usize) -> Self {
        let per_tenant = per_tenant.max(PER_TENANT_MIN);
        Self { of_tenant: KeyedLimit::new(total, per_tenant), per_tenant }
    }

    /// A permit for a connection of this tenant; none is a caller without a name.
    pub(super) fn take(
        &self,
        tenant: Option<String>,
    ) -> Result<KeyedPermit<Option<String>>, TooManyConnections> {
        let Self { of_tenant, per_tenant } = self;
        of_tenant.take(tenant).ok_or(TooManyConnections { per_tenant: *per_tenant })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_leaves_connections_for_others() {
        let callers = CallerLimit::new(64, 20);
        let take = |name: &str| callers.take(Some(name.to_owned()));
        let taken: Vec<_> = (0..20).map(|_| take("ada")).collect();
        assert!(taken.iter().all(Result::is_ok));
        let refused = take("ada").expect_err("one too many");
        assert!(refused.to_string().contains("at most 20"), "{refused}");
        assert!(take("bob").is_ok());
        drop(taken);
        assert!(take("ada").is_ok());
    }
}
