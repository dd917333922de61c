//! The planner: pure functions of desired state, observed workers and the present assignment. It
//! knows no time, no leadership and no ledger; it proposes, and the ledger disposes.

pub mod pipelines;
pub mod pools;
pub mod streams;
