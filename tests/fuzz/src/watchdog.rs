//! Ends the process with an input that takes too long. libFuzzer has an alarm for that, but it is a
//! signal handler that allocates: where the signal comes in the middle of an allocation, it waits
//! for ever.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long an input may take. They take milliseconds, and others may load the machine.
const INPUT_SECONDS_MAX: u64 = 30;
/// How often the watchdog looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The looks for which the present input has run; above the limit while none runs.
static LOOKS: AtomicU64 = AtomicU64::new(IDLE);
const IDLE: u64 = u64::MAX;

/// Runs an input. Where it does not end, libFuzzer keeps it as one that crashed.
pub fn watch(run: fn(&[u8]), input: &[u8]) {
    static WATCHDOG: Once = Once::new();
    WATCHDOG.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(INTERVAL);
                look();
            }
        });
    });
    LOOKS.store(0, Ordering::Relaxed);
    run(input);
    LOOKS.store(IDLE, Ordering::Relaxed);
}

fn look() {
    let add = |looks: u64| (looks != IDLE).then(|| looks + 1);
    let looks = LOOKS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    if looks.is_ok_and(|looks| looks >= INPUT_SECONDS_MAX) {
        eprintln!("an input takes longer than {INPUT_SECONDS_MAX} s");
        std::process::abort();
    }
}
