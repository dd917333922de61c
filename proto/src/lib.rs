//! Leasehold's wire contract: the code generated from the protos, and the one module that maps
//! it to domain types. Past [`map`] an invalid value does not exist.

/// Agents and coordinators.
pub mod coordinator {
    /// Version 1.
    #[allow(missing_docs, clippy::all, clippy::unwrap_used, unreachable_pub)]
    pub mod v1 {
        include!("gen/leasehold.coordinator.v1.rs");
    }
}

/// A worker and its agent.
pub mod worker {
    /// Version 1.
    #[allow(missing_docs, clippy::all, clippy::unwrap_used, unreachable_pub)]
    pub mod v1 {
        include!("gen/leasehold.worker.v1.rs");
    }
}

/// People and the coordinator.
pub mod admin {
    /// Version 1.
    #[allow(missing_docs, clippy::all, clippy::unwrap_used, unreachable_pub)]
    pub mod v1 {
        include!("gen/leasehold.admin.v1.rs");
    }
}

/// KEDA and its external scalers, by KEDA's own names.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, unreachable_pub)]
pub mod externalscaler {
    include!("gen/externalscaler.rs");
}

/// What a coordinator says in the metadata of an answer to a peer that shows a token:
/// [`TOKEN_IGNORED`], where it looks at none.
pub const TOKEN_METADATA: &str = "leasehold-token";
/// See [`TOKEN_METADATA`].
pub const TOKEN_IGNORED: &str = "ignored";
/// The metadata of the answer to a session, before any message: the identity of the coordinator's
/// cell, once it is known.
pub const CELL_METADATA: &str = "leasehold-cell";
/// The metadata of a call in which an agent asks for the message `waiting`. Agents of earlier
/// versions do not have it, and cannot decode that message.
pub const WAITING_METADATA: &str = "leasehold-waiting";
/// See [`WAITING_METADATA`].
pub const WAITING_WANTED: &str = "wanted";

/// How the message of a status begins by which a replica that does not lead refuses a call.
pub const NOT_LEADING_MESSAGE: &str = "this replica does not lead";
/// How the message of a status begins by which a coordinator's HTTP port refuses a gRPC client.
pub const HTTP_PORT_MESSAGE: &str = "this is the port for health and metrics";

#[cfg(feature = "json")]
pub mod json;
pub mod map;
#[cfg(feature = "grpc")]
pub mod raw_codec;

/// The descriptors of all protos, for server reflection: an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("gen/descriptors.bin");
