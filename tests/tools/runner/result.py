"""Tells defects from flaky tests: what failed runs once more, alone, when the machine is quiet."""

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from .execution import EXIT, BinaryRun, Progress, run_binary
from .libtest import Outcome

# A run with more flaky tests is red: then the machine or the change is at fault, not chance.
FLAKY_MAX = 3
# When more tests failed, none runs again: something that they share is broken.
RERUN_MAX = 12


@dataclass
class Flaky:
    """A test that failed among others and passed alone."""

    name: str
    evidence: Path


@dataclass
class RunResult:
    """The result of a whole run."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    ignored: int = 0
    flaky: list[Flaky] = field(default_factory=list)

    def is_red(self) -> bool:
        """Whether the run has failed."""
        return bool(self.failed) or len(self.flaky) > FLAKY_MAX or self.passed == 0

    def lines(self) -> list[str]:
        """The closing lines of the run."""
        lines = [f"flaky: {one.name} (passed alone; evidence in {one.evidence})"
                 for one in self.flaky]
        if len(self.flaky) > FLAKY_MAX:
            lines.append(f"!!! {len(self.flaky)} flaky tests, of at most {FLAKY_MAX}: "
                         "find what they have in common")
        # CI looks for this form.
        lines += [f"test {name} ... FAILED" for name in self.failed]
        lines.append(f"leasehold: {self.passed} passed, {len(self.failed)} failed, "
                     f"{self.ignored} skipped")
        return lines


def rerun_failed(runs: list[BinaryRun], evidence: Path, progress: Progress) -> RunResult:
    """Runs each failed test again, alone; keeps the evidence of both runs below `evidence`."""
    result = RunResult()
    failed = [(run, outcome) for run in runs for outcome in run.outcomes
              if outcome.result == "FAILED"]
    for run in runs:
        result.passed += sum(outcome.result == "ok" for outcome in run.outcomes)
        result.ignored += sum(outcome.result == "ignored" for outcome in run.outcomes)
    if len(failed) > RERUN_MAX:
        progress.say(f"{len(failed)} tests failed, more than {RERUN_MAX}: none runs again")
    for run, outcome in failed:
        folder = _keep(run, outcome, evidence)
        _print_failure(outcome)
        if len(failed) <= RERUN_MAX and _passes_alone(run, outcome, folder, progress):
            result.passed += 1
            result.flaky.append(Flaky(outcome.name, folder))
        else:
            result.failed.append(outcome.name)
    return result


def _keep(run: BinaryRun, outcome: Outcome, evidence: Path) -> Path:
    name = "".join(one if one.isalnum() or one in "_-." else "-" for one in outcome.name)
    folder = evidence / time.strftime(f"%Y%m%d-%H%M%S-{name[-100:]}", time.gmtime())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "failure.txt").write_text(outcome.text, encoding="utf-8")
    if run.log.exists():
        shutil.copyfile(run.log, folder / "binary.log")
    return folder


def _print_failure(outcome: Outcome) -> None:
    print(f"\n---- {outcome.name} ----\n{outcome.text}", flush=True)


def _passes_alone(run: BinaryRun, outcome: Outcome, folder: Path, progress: Progress) -> bool:
    if outcome.name == EXIT:
        return False
    progress.say(f"once more, alone: {run.binary.name}: {outcome.name}")
    chosen = ["--exact", outcome.name] if run.binary.takes_names else []
    again = run_binary(run.binary, chosen, folder / "alone.log")
    passed = [one.result for one in again.outcomes if one.name == outcome.name] == ["ok"]
    if not passed:
        for one in again.outcomes:
            _print_failure(one)
    return passed
