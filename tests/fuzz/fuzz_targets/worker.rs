//! Fuzzes `leasehold_fuzz::worker`.
#![allow(unexpected_cfgs, reason = "only a build for the fuzzers sets `fuzzing`")]
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    leasehold_fuzz::watchdog::watch(leasehold_fuzz::worker::run, input)
});

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("this program has no fuzzing engine: run tests/tools/fuzz worker");
}
