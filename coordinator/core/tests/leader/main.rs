//! A leader's core, turn by turn: how its term begins, and that it renews leases while it is busy.

mod fixture;
mod renewals;
mod terms;
