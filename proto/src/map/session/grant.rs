//! Grants, both ways.

use std::sync::Arc;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::message::{DrainOrder, Grant, PoolGrant, StreamGrant, StreamState};
use leasehold_types::{GrantNumber, Nonce, Share};

use super::{epoch, required, slots, stream};
use crate::coordinator::v1 as wire;
use crate::map::{Invalid, at_most, millis, span};

impl TryFrom<wire::Grant> for Grant {
    type Error = Invalid;

    fn try_from(grant: wire::Grant) -> Result<Self, Invalid> {
        at_most("grant.streams", grant.streams.len(), 2 * STREAMS_PER_WORKER_MAX)?;
        let streams = grant.streams.into_iter().map(TryInto::try_into);
        let tables = grant.tables.into_iter().map(TryInto::try_into);
        Ok(Self {
            epoch: epoch("grant.epoch", grant.epoch)?,
            number: GrantNumber(grant.number),
            nonce: Nonce(grant.nonce),
            terms: grant.terms.ok_or(Invalid::missing("grant.terms"))?.try_into()?,
            snapshot: grant.snapshot,
            pool: grant.pool.map(TryInto::try_into).transpose()?,
            streams: streams.collect::<Result<_, _>>()?,
            tables: tables.collect::<Result<_, _>>()?,
            drain: drain_order(grant.drain, grant.undrain)?,
            fresh: grant.fresh,
            newer_generation: grant.newer_generation,
        })
    }
}

impl From<Grant> for wire::Grant {
    fn from(grant: Grant) -> Self {
        Self {
            epoch: grant.epoch.0,
            number: grant.number.0,
            nonce: grant.nonce.0,
            terms: Some(grant.terms.into()),
            snapshot: grant.snapshot,
            pool: grant.pool.map(Into::into),
            streams: grant.streams.into_iter().map(Into::into).collect(),
            tables: grant.tables.into_iter().map(Into::into).collect(),
            drain: grant.drain == Some(DrainOrder::Drain),
            fresh: grant.fresh,
            undrain: grant.drain == Some(DrainOrder::Undrain),
            newer_generation: grant.newer_generation,
        }
    }
}

impl TryFrom<wire::PoolGrant> for PoolGrant {
    type Error = Invalid;

    fn try_from(pool: wire::PoolGrant) -> Result<Self, Invalid> {
        let size = slots("pool.size", pool.size)?;
        if pool.floor > size {
            return Err(Invalid::new("pool.floor", "is above pool.size"));
        }
        Ok(Self { token: required("pool.token", pool.token)?, size, floor: pool.floor })
    }
}

impl From<PoolGrant> for wire::PoolGrant {
    fn from(pool: PoolGrant) -> Self {
        Self { token: Some(pool.token.into()), size: pool.size, floor: pool.floor }
    }
}

impl TryFrom<wire::StreamGrant> for StreamGrant {
    type Error = Invalid;

    fn try_from(grant: wire::StreamGrant) -> Result<Self, Invalid> {
        use wire::stream_grant::State;
        let state = match grant.state.ok_or(Invalid::missing("stream.state"))? {
            State::Held(held) => StreamState::Held { pinned: held.pinned },
            State::Revoked(revoked) => StreamState::Revoked {
                deadline: span(revoked.deadline_ms),
                renewed: revoked.renewed,
            },
        };
        let token = required("stream.token", grant.token)?;
        let share = grant.share.map(Share::try_from).transpose()?.map(Arc::new);
        Ok(Self { stream: stream(grant.stream)?, token, state, share })
    }
}

impl From<StreamGrant> for wire::StreamGrant {
    fn from(grant: StreamGrant) -> Self {
        use wire::stream_grant::State;
        let state = match grant.state {
            StreamState::Held { pinned } => State::Held(wire::StreamHeld { pinned }),
            StreamState::Revoked { deadline, renewed } => {
                State::Revoked(wire::StreamRevoked { deadline_ms: millis(deadline), renewed })
            }
        };
        Self {
            stream: Some(grant.stream.into()),
            token: Some(grant.token.into()),
            state: Some(state),
            share: grant.share.map(|share| (*share).clone().into()),
        }
    }
}

fn drain_order(drain: bool, undrain: bool) -> Result<Option<DrainOrder>, Invalid> {
    match (drain, undrain) {
        (false, false) => Ok(None),
        (true, false) => Ok(Some(DrainOrder::Drain)),
        (false, true) => Ok(Some(DrainOrder::Undrain)),
        (true, true) => Err(Invalid::new("grant.undrain", "is set beside grant.drain")),
    }
}
