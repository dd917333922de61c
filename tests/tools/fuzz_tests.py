"""Runs the fuzzers for `make test`, with the flags and the output of Rust's test runner:

    python3 tests/tools/fuzz_tests.py [--list] [--exact NAME] [--test-threads 2]

Each is built already, and runs for a minute. One that has done so with the same program and the
same committed inputs gets only these inputs, unless FRESH is set. What one has found before comes
first, so that a finding fails again until it is mended.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

from runner import fuzzing
from runner.fuzzing import Fuzzer

SECONDS = 60


def main() -> int:
    flags = sys.argv[1:]
    if flags and flags[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    some = fuzzing.fuzzers()
    if "--exact" in flags:
        some = [one for one in some if one.name == flags[flags.index("--exact") + 1]]
    if "--list" in flags:
        print("\n".join(f"{one.name}: test" for one in some))
        return 0
    threads = int(flags[flags.index("--test-threads") + 1]) if "--test-threads" in flags else 1
    with ThreadPoolExecutor(max_workers=threads) as pool:
        findings = list(zip(some, pool.map(test, some)))
    failed = {one.name: found for one, found in findings if found}
    if failed:
        print("\nfailures:\n")
        for name, text in failed.items():
            print(f"---- {name} stdout ----\n{text}\n")
        print("failures:")
    word = "FAILED" if failed else "ok"
    print(f"test result: {word}. {len(some) - len(failed)} passed; {len(failed)} failed")
    return 1 if failed or not some else 0


def test(fuzzer: Fuzzer) -> str | None:
    """Runs one; returns what it found."""
    def say(text: str) -> None:
        print(text, flush=True)

    is_fresh = os.environ.get("FRESH", "") != ""
    if not is_fresh and fuzzing.has_passed(fuzzer, SECONDS):
        found = fuzzing.replay(fuzzer, say)
    else:
        found = fuzzing.fuzz(fuzzer, SECONDS, say)
        say(f"{fuzzer.name}: {fuzzing.status(fuzzer)}")
    say(f"test {fuzzer.name} ... {'FAILED' if found else 'ok'}")
    return found


if __name__ == "__main__":
    sys.exit(main())
