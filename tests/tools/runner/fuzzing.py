"""Builds and runs the fuzzers of `tests/fuzz`.

The pinned compiler builds them: `tests/tools/rustc_for_fuzzers` gives it the flags of `cargo fuzz`
for the crates of the workspace, and the libraries are those of every other build. So neither a
nightly compiler nor `cargo fuzz` is needed. What a fuzzer has found stays in `.cache/fuzz`, and the
next run goes on from there.
"""

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .binaries import CARGO_FLAGS, ROOT, BuildFailed, built_folder

PACKAGE = ROOT / "tests/fuzz"
CACHE = ROOT / ".cache/fuzz"
WRAPPER = ROOT / "tests/tools/rustc_for_fuzzers"
# How long a program may take beyond its time: for the inputs that it begins with, and for its
# watchdog, which ends it with an input that takes 30 s.
LATE_SECONDS_MAX = 300
# A fuzzer that needs more memory is a finding.
MEMORY_MIB_MAX = 1024
# The longest input that is made up.
INPUT_BYTES_MAX = 8192
# Inputs that are kept between runs; with more of them a run would only read.
KEPT_MAX = 5000
# How often a run says how far it is.
PROGRESS_SECONDS = 60
POLL_SECONDS = 0.2
# What libFuzzer names an input with which it has ended: the others are only slow.
FINDINGS = ("crash-", "leak-", "oom-", "timeout-")
STATUS = re.compile(r"^#\d+\s.*cov: \d+.*$", re.MULTILINE)


@dataclass(frozen=True)
class Fuzzer:
    """One fuzzer."""

    name: str

    @property
    def program(self) -> Path:
        """Its program, once it is built."""
        return CACHE / self.name / "program"

    @property
    def corpus(self) -> Path:
        """The inputs that are committed."""
        return PACKAGE / "corpus" / self.name

    @property
    def kept(self) -> Path:
        """The inputs that earlier runs have found: each reaches something that no other does."""
        return CACHE / self.name / "corpus"

    @property
    def artifacts(self) -> Path:
        """The inputs that a decoder failed on."""
        return CACHE / self.name / "artifacts"

    @property
    def log(self) -> Path:
        """What libFuzzer printed last."""
        return CACHE / self.name / "log"

    def findings(self) -> list[Path]:
        """The inputs that a decoder failed on, and may still fail on."""
        found = self.artifacts.glob("*")
        return sorted(path for path in found if path.name.startswith(FINDINGS))

    def digest(self) -> str:
        """Names the program and the committed inputs."""
        digest = hashlib.sha256()
        for path in [self.program, *sorted(self.corpus.iterdir())]:
            content = path.read_bytes()
            digest.update(f"{path.name}\n{len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()


def fuzzers() -> list[Fuzzer]:
    """All of them."""
    programs = sorted((PACKAGE / "fuzz_targets").glob("*.rs"))
    return [Fuzzer(path.stem) for path in programs]


def why_not() -> str | None:
    """Why they cannot be built here; none if they can."""
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler.split()[0]):
        return None
    return f"libFuzzer needs a compiler for C++ ({compiler}): install g++ (Debian's name)"


def build(some: list[Fuzzer]) -> None:
    """Builds them. Shows cargo's progress. Raises BuildFailed."""
    reason = why_not()
    if reason:
        raise BuildFailed(reason)
    bins = [word for one in some for word in ("--bin", one.name)]
    # As a part of the whole workspace, whose libraries have more features than this crate asks for.
    command = ["cargo", "build", *CARGO_FLAGS, "--workspace", "--features", "leasehold-fuzz/engine",
               *bins]
    environment = {**os.environ, "RUSTC_WORKSPACE_WRAPPER": str(WRAPPER)}
    if subprocess.run(command, cwd=ROOT, env=environment).returncode != 0:
        raise BuildFailed(" ".join(command))
    for one in some:
        one.program.parent.mkdir(parents=True, exist_ok=True)
        one.program.unlink(missing_ok=True)
        shutil.copy2(built_folder() / one.name, one.program)


def has_passed(fuzzer: Fuzzer, seconds: int) -> bool:
    """Whether this program with these committed inputs has run for so long without a finding."""
    try:
        digest, passed = _passed(fuzzer).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return False
    return digest == fuzzer.digest() and int(passed) >= seconds


def fuzz(fuzzer: Fuzzer, seconds: int, say: Callable[[str], None]) -> str | None:
    """Runs the fuzzer; returns what it found, none if nothing."""
    for folder in (fuzzer.kept, fuzzer.artifacts):
        folder.mkdir(parents=True, exist_ok=True)
    if sum(1 for _ in fuzzer.kept.iterdir()) > KEPT_MAX:
        shutil.rmtree(fuzzer.kept)
        fuzzer.kept.mkdir()
    failed = _replay_findings(fuzzer)
    if failed:
        return failed
    digest = fuzzer.digest()
    inputs = [str(fuzzer.kept), str(fuzzer.corpus)]
    found = _run(fuzzer, [*inputs, f"-max_total_time={seconds}"], seconds, say)
    if not found:
        _passed(fuzzer).write_text(f"{digest} {seconds}\n", encoding="utf-8")
    return found


def replay(fuzzer: Fuzzer, say: Callable[[str], None]) -> str | None:
    """Gives the committed inputs to the fuzzer, and makes up none; returns what it found."""
    fuzzer.artifacts.mkdir(parents=True, exist_ok=True)
    return _replay_findings(fuzzer) or _run(
        fuzzer, [str(fuzzer.corpus), "-runs=0"], 0, say)


def run_file(fuzzer: Fuzzer, path: Path) -> int:
    """Gives one input to the fuzzer; shows what it prints, and returns its exit code."""
    return subprocess.run([str(fuzzer.program), *_limits(), str(path)], cwd=ROOT).returncode


def status(fuzzer: Fuzzer) -> str:
    """The last line in which libFuzzer said how far it is: executions, coverage, inputs."""
    text = fuzzer.log.read_text(encoding="utf-8", errors="replace") if fuzzer.log.exists() else ""
    lines = STATUS.findall(text)
    return " ".join(lines[-1].split()) if lines else "no input was run"


def _replay_findings(fuzzer: Fuzzer) -> str | None:
    """What earlier runs found and what still fails; what passes by now is removed."""
    for path in fuzzer.findings():
        command = [str(fuzzer.program), *_limits(), str(path)]
        with fuzzer.log.open("w") as log:
            done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            return _report(fuzzer, path)
        path.unlink()
    return None


def _run(fuzzer: Fuzzer, arguments: list[str], seconds: int,
         say: Callable[[str], None]) -> str | None:
    command = [str(fuzzer.program), *_limits(), f"-artifact_prefix={fuzzer.artifacts}/",
               "-print_final_stats=1", *arguments]
    with fuzzer.log.open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        begun = said = time.monotonic()
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if time.monotonic() - begun > seconds + LATE_SECONDS_MAX:
                process.kill()
            if time.monotonic() - said >= PROGRESS_SECONDS:
                said = time.monotonic()
                say(f"{fuzzer.name}: {status(fuzzer)}")
    if process.returncode == 0:
        return None
    findings = fuzzer.findings()
    return _report(fuzzer, findings[0] if findings else None)


def _report(fuzzer: Fuzzer, finding: Path | None) -> str:
    """What the fuzzer printed last, where the input is and how to replay it."""
    text = fuzzer.log.read_text(encoding="utf-8", errors="replace")
    last = "\n".join(text.splitlines()[-40:])
    if finding is None:
        return f"{last}\n\nit ended without an input: see {fuzzer.log.relative_to(ROOT)}\n"
    name = finding.relative_to(ROOT)
    return (f"{last}\n\nthe input is in {name}; to replay it:\n"
            f"    tests/tools/fuzz {fuzzer.name} {name}\n"
            f"once it is mended, keep it: mv {name} {fuzzer.corpus.relative_to(ROOT)}/\n")


def _limits() -> list[str]:
    return [f"-rss_limit_mb={MEMORY_MIB_MAX}", f"-max_len={INPUT_BYTES_MAX}"]


def _passed(fuzzer: Fuzzer) -> Path:
    return CACHE / fuzzer.name / "passed"
