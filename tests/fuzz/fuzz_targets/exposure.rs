//! Fuzzes `leasehold_fuzz::exposure`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    leasehold_fuzz::watchdog::watch(leasehold_fuzz::exposure::run, input)
});
