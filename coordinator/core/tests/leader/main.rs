//! A leader's core, turn by turn: how its term begins, which agents it welcomes, who gets slots
//! that become free, and that it renews leases while it is busy.

mod fixture;
mod former_agents;
mod free_slots;
mod renewals;
mod terms;
mod unreadable;
mod welcomes;
