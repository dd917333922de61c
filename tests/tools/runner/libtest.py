"""Reads what a test binary of Rust prints while it runs.

Rust's stable test runner prints one line when a test ends and nothing when one starts. It starts
tests in the order of `--list`, as many at a time as it has threads: the next one starts when one
ends. So the start of each test follows from the ends before it.

It prints the name first and then the result. What a program of a test prints meanwhile can come
before, between and after them.
"""

import re
from dataclasses import dataclass, field

# The name is followed by what is expected of the test, which `--list` does not show.
NAME = re.compile(
    r"test (\S.*?)(?: - (?:should panic|compile|compile fail))? \.\.\. (ok|FAILED|ignored)?")
RESULT = re.compile(r"^(ok|FAILED|ignored)\b")
SECTION = re.compile(r"^---- (\S.*) stdout ----$")


@dataclass
class Outcome:
    """How one test ended."""

    name: str
    result: str  # "ok", "FAILED" or "ignored"
    seconds: float
    text: str = ""  # what it printed, if it failed


@dataclass
class Reader:
    """Follows the output of one run of a test binary, line by line."""

    listed: list[str]
    threads: int
    started: float
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    _ends: list[float] = field(default_factory=list)
    _failures: bool = False
    _section: str | None = None
    #: A test whose name was printed, and its result not yet.
    _named: str | None = None

    def line(self, line: str, now: float) -> Outcome | None:
        """Takes one line without its end; returns the outcome of the test that ended with it."""
        if self._failures:
            self._read_failures(line)
            return None
        if line == "failures:":
            self._failures = True
            return None
        named = NAME.search(line)
        if named and named.group(1) in self.listed:
            self._named, result = named.groups()
        else:
            match = RESULT.match(line)
            result = match and match.group(1)
        if self._named is None or result is None:
            return None
        name, self._named = self._named, None
        outcome = Outcome(name, result, now - self._start_of(name))
        self._ends.append(now)
        self.outcomes[name] = outcome
        return outcome

    def unfinished(self) -> list[str]:
        """The tests that were listed and have no outcome, for example after a crash."""
        return [name for name in self.listed if name not in self.outcomes]

    def running(self) -> list[str]:
        """The tests that have started and not ended."""
        begun = self.listed[: len(self._ends) + self.threads]
        return [name for name in begun if name not in self.outcomes]

    def _start_of(self, name: str) -> float:
        place = self.listed.index(name) if name in self.listed else 0
        if place < self.threads:
            return self.started
        # The test at this place started when so many tests had ended.
        ended = place - self.threads
        return self._ends[ended] if ended < len(self._ends) else self.started

    def _read_failures(self, line: str) -> None:
        match = SECTION.match(line)
        if match:
            self._section = match.group(1)
        elif line == "failures:" or line.startswith("test result: "):
            self._section = None
        elif self._section in self.outcomes:
            self.outcomes[self._section].text += line + "\n"
