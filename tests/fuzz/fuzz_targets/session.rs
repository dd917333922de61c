//! Fuzzes `leasehold_fuzz::session`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    leasehold_fuzz::watchdog::watch(leasehold_fuzz::session::run, input)
});
