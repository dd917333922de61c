//! `make demo`: real coordinators, agents and workers on this machine, taken through everything
//! that can happen to them, and judged by a checker that never asks the coordinator: it reads the
//! workers' own journals, the queue's folders, the sources and the sink.

pub mod admin;
pub mod checker;
pub mod children;
pub mod clock;
pub mod environment;
pub mod evidence;
pub mod fleet;
pub mod journal;
pub mod live;
pub mod minimum;
pub mod ports;
pub mod push;
pub mod records;
pub mod report;
pub mod run;
pub mod scenario;
pub mod screen;
pub mod short;
pub mod work;
