"""Runs test binaries: several at a time in lanes, or one test alone."""

import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .binaries import TestBinary
from .libtest import Outcome, Reader

# A binary that ends no test for this long hangs: each wait inside a test ends much earlier, and
# what only computes takes minutes.
SILENCE_SECONDS_MAX = 1_800
# A test that takes at least this long is shown when it ends; the others are only counted.
SHOWN_SECONDS_MIN = 20.0
# Stands for the end of a binary where a test's name stands otherwise.
EXIT = "(exit)"
# The interval between two looks at what a binary has printed.
POLL_SECONDS = 0.05
# At least two: a single thread prints a test's name before the test, and then what the test's
# children print comes in between.
THREADS = max(2, os.cpu_count() or 2)


@dataclass(frozen=True)
class Lane:
    """Binaries that run one after the other; lanes run side by side."""

    name: str
    binaries: list[TestBinary]
    threads: int = THREADS
    nice: int = 0


@dataclass
class BinaryRun:
    """One run of a test binary."""

    binary: TestBinary
    log: Path
    outcomes: list[Outcome] = field(default_factory=list)
    # Why tests have no outcome, if some have none.
    broken: str = ""
    # It is a run of earlier, of the same program with the same files.
    passed_before: bool = False
    # What it and the processes used that it started and waited for.
    cpu_seconds: float = 0.0


class Progress:
    """Prints what happens, with the time since the start."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Prints a line."""
        seconds = int(time.monotonic() - self.begun)
        with self._lock:
            print(f"[{seconds // 60:3}:{seconds % 60:02}] {text}", flush=True)


def run_lanes(lanes: list[Lane], logs: Path, progress: Progress) -> list[BinaryRun]:
    """Runs the lanes side by side; returns the runs of all binaries."""
    with ThreadPoolExecutor(max_workers=max(1, len(lanes))) as pool:
        waiting = [pool.submit(_run_lane, lane, logs, progress) for lane in lanes]
        return [run for lane in waiting for run in lane.result()]


def _run_lane(lane: Lane, logs: Path, progress: Progress) -> list[BinaryRun]:
    runs = []
    for binary in lane.binaries:
        log = logs / (binary.name.replace("/", "-").replace(": ", ".").replace(" ", "-") + ".log")
        begun = time.monotonic()
        run = run_binary(binary, [], log, progress, threads=lane.threads, nice=lane.nice)
        runs.append(run)
        failed = sum(outcome.result == "FAILED" for outcome in run.outcomes)
        text = f"{lane.name}: {binary.name}: {len(run.outcomes)} tests, {failed} failed"
        if run.broken:
            text += f"; {run.broken}"
        if run.outcomes or run.broken:
            progress.say(f"{text} ({time.monotonic() - begun:.1f} s)")
    return runs


def run_binary(
    binary: TestBinary,
    arguments: list[str],
    log: Path,
    progress: Progress | None = None,
    *,
    threads: int = THREADS,
    nice: int = 0,
    silence_seconds_max: float = SILENCE_SECONDS_MAX,
) -> BinaryRun:
    """Runs the tests of a binary that `arguments` select, and writes what it prints to `log`."""
    run = BinaryRun(binary, log)
    try:
        listed = _selected(binary.tests(), arguments)
    except (OSError, subprocess.CalledProcessError) as error:
        run.broken = f"cannot list its tests: {error}"
        run.outcomes.append(Outcome(EXIT, "FAILED", 0.0, f"{binary.name}: {run.broken}\n"))
        return run
    if not listed:
        return run
    command = [*binary.command, *arguments, "--test-threads", str(threads), "--color", "never"]
    if nice:
        command = ["nice", "-n", str(nice), *command]
    reader = Reader(listed, threads, time.monotonic())
    hangs = False
    # The output goes to a file and not through a pipe: a process that a test left behind would
    # keep the pipe open. The binary stays in this process group, so that Ctrl-C reaches it, too.
    with log.open("w") as output, log.open(encoding="utf-8", errors="replace") as written:
        process = subprocess.Popen(
            command, cwd=binary.folder, env=binary.variables(), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT,
        )
        last, rest = time.monotonic(), ""
        while True:
            status = _status(process, run)
            text = written.read()
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                outcome = reader.line(line, time.monotonic())
                if outcome:
                    last = time.monotonic()
                    _show(outcome, binary, progress)
            if text:
                continue
            if status is not None:
                break
            if not hangs and time.monotonic() - last > silence_seconds_max:
                hangs = True
                process.kill()
            time.sleep(POLL_SECONDS)
    run.outcomes = list(reader.outcomes.values())
    missing = reader.unfinished()
    if missing:
        reason = f"ended with status {status}"
        if hangs:
            reason = f"ended no test for {silence_seconds_max:.0f} s and was killed"
        running = ", ".join(reader.running()) or "none"
        run.broken = f"{reason} before {len(missing)} tests ended; running: {running}"
        text = f"{binary.name} {run.broken}\n"
        run.outcomes += [Outcome(name, "FAILED", 0.0, text) for name in missing]
    elif status != 0 and not any(outcome.result == "FAILED" for outcome in run.outcomes):
        text = f"{binary.name} ended with status {status} after its last test\n"
        run.outcomes.append(Outcome(EXIT, "FAILED", 0.0, text))
    return run


def _status(process: subprocess.Popen, run: BinaryRun) -> int | None:
    """The exit status, once the process has ended; notes its CPU time then."""
    if process.returncode is None:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            run.cpu_seconds = used.ru_utime + used.ru_stime
    return process.returncode


def _selected(tests: list[str], arguments: list[str]) -> list[str]:
    if "--exact" in arguments:
        return [name for name in tests if name in arguments]
    return tests


def _show(outcome: Outcome, binary: TestBinary, progress: Progress | None) -> None:
    if not progress:
        return
    if outcome.result == "FAILED" or outcome.seconds >= SHOWN_SECONDS_MIN:
        word = "failed" if outcome.result == "FAILED" else outcome.result
        progress.say(f"{binary.name}: {outcome.name}: {word} ({outcome.seconds:.1f} s)")
