"""The end of a run: what was left out, where the time went, and which tests took longest."""

from pathlib import Path

from .execution import BinaryRun

SLOWEST = 10


class Parts:
    """How long each part of the run took."""

    def __init__(self) -> None:
        self._seconds: list[tuple[str, float]] = []

    def add(self, name: str, seconds: float) -> None:
        """Notes the time of a part."""
        self._seconds.append((name, seconds))

    def lines(self) -> list[str]:
        """A line for each part."""
        lines = ["", "==> time of each part"]
        return lines + [f"{minutes(seconds)}  {name}" for name, seconds in self._seconds]


def passed_before(runs: list[BinaryRun]) -> list[str]:
    """The tests that did not run again."""
    before = [run for run in runs if run.passed_before]
    if not before:
        return []
    tests = sum(len(run.outcomes) for run in before)
    names = ", ".join(run.binary.name for run in before)
    return ["", f"==> {tests} tests passed earlier, with the same program and files, and did not "
            f"run again: {names} (FRESH=1 runs them)"]


def slowest(runs: list[BinaryRun]) -> list[str]:
    """The tests that took longest."""
    ended = [
        (one.seconds, f"{run.binary.name}: {one.name}") for run in runs for one in run.outcomes
    ]
    ended.sort(reverse=True)
    lines = ["", f"==> the {SLOWEST} slowest tests"]
    return lines + [f"{seconds:8.1f} s  {name}" for seconds, name in ended[:SLOWEST]]


def busiest(runs: list[BinaryRun]) -> list[str]:
    """The programs of tests that used the most CPU time.

    Processes count that a test started and waited for; control planes, which a guard ends, do not.
    """
    used = [(run.cpu_seconds, run.binary.name) for run in runs if not run.passed_before]
    used.sort(reverse=True)
    total = sum(seconds for seconds, _ in used)
    title = f"==> the {SLOWEST} programs of tests that used the most of {total:.0f} CPU seconds"
    lines = ["", title]
    return lines + [f"{seconds:8.1f} s  {name}" for seconds, name in used[:SLOWEST]]


def note(notes: Path, kind: str, what: str, why: str) -> None:
    """Notes what the run leaves out; see `left_out`."""
    with notes.open("a", encoding="utf-8") as file:
        file.write(f"{kind}\t{what}\t{why}\n")


def left_out(notes: Path) -> tuple[list[str], bool]:
    """What the run left out, and whether any of it could have been installed.

    `notes` has lines of three fields: kind, what, why; the kind is `installable` or `forbidden`.
    """
    text = notes.read_text(encoding="utf-8") if notes.exists() else ""
    fields = sorted({tuple(line.split("\t", 2)) for line in text.splitlines()})
    if not fields:
        return ["", "==> nothing was left out"], False
    lines = ["", "!!! LEFT OUT of this run:"]
    lines += [f"!!!   {what}: {why}" for _, what, why in fields]
    return lines, any(kind == "installable" for kind, _, _ in fields)


def minutes(seconds: float) -> str:
    """A duration as minutes and seconds."""
    return f"{int(seconds) // 60:6}:{int(seconds) % 60:02}"
