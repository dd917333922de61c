//! Fuzzes `leasehold_fuzz::manifest`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    leasehold_fuzz::watchdog::watch(leasehold_fuzz::manifest::run, input)
});
