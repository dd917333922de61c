//! Ends the process with an input that takes too long. libFuzzer has an alarm for that, but it is a
//! signal handler that allocates: where the signal comes in the middle of an allocation, it waits
//! for ever.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How much of a processor's time an input may take, in seconds. They take milliseconds. It is no
/// time of the clock: a fuzzer at the lowest priority may wait longer than that for a processor.
const INPUT_SECONDS_MAX: u64 = 30;
/// How long an input may take by the clock, in seconds: one that waits for itself takes no
/// processor.
const WAIT_SECONDS_MAX: u64 = 600;
/// How often the watchdog looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The processor's time of this process, in seconds, at which the present input began.
static BEGAN_AT: AtomicU64 = AtomicU64::new(IDLE);
/// While none runs.
const IDLE: u64 = u64::MAX;
/// The looks for which the present input has run.
static LOOKS: AtomicU64 = AtomicU64::new(0);

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
    BEGAN_AT.store(processor_seconds(), Ordering::Relaxed);
    run(input);
    BEGAN_AT.store(IDLE, Ordering::Relaxed);
}

fn look() {
    let began_at = BEGAN_AT.load(Ordering::Relaxed);
    if began_at == IDLE {
        return;
    }
    let waited = LOOKS.fetch_add(1, Ordering::Relaxed);
    let took = processor_seconds().saturating_sub(began_at);
    if took > INPUT_SECONDS_MAX || waited > WAIT_SECONDS_MAX {
        eprintln!("an input has taken {took} s of a processor, and {waited} s by the clock");
        std::process::abort();
    }
}

fn processor_seconds() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(now.tv_sec).unwrap_or(0)
}
