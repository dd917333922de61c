"""Remembers which test binaries have passed, so that what cannot end otherwise is not run again.

This is only for tests whose result depends on nothing but their program, the files of their
package and the variables of this project: no clock, no process, no network, no random number
without a given seed. The program of examples in documentation is the sources and the compiler. A
change of any of these runs them anew, and so does `make test FRESH=1`.
"""

import hashlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

from .binaries import TestBinary
from .execution import BinaryRun, Lane
from .libtest import Outcome

# The binaries that are remembered; the oldest are forgotten.
REMEMBERED_MAX = 200
# The variables that such a test may read begin so.
PREFIX = "LEASEHOLD_"


# What an example in documentation is compiled from.
SOURCES = ("*.rs", "Cargo.toml")


class Passed:
    """The binaries that have passed, each in a file of a folder, named by what it depends on.

    Of all binaries only those with one of `names` are remembered.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder = folder
        self._names = names

    def take_from(self, lanes: list[Lane]) -> tuple[list[BinaryRun], list[Lane]]:
        """The runs in which binaries of these lanes passed before, and the lanes without them."""
        runs, rest = [], []
        for lane in lanes:
            found = {one.name: run for one in lane.binaries if (run := self.find(one))}
            runs += found.values()
            binaries = [one for one in lane.binaries if one.name not in found]
            rest.append(replace(lane, binaries=binaries))
        return runs, rest

    def find(self, binary: TestBinary) -> BinaryRun | None:
        """The run in which this binary passed with the same files and variables, if any."""
        if binary.name not in self._names:
            return None
        file = self._file(binary)
        try:
            tests = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        run = BinaryRun(binary, file, passed_before=True)
        run.outcomes = [Outcome(name, result, 0.0, "") for name, result in tests]
        return run

    def note(self, run: BinaryRun) -> None:
        """Remembers the run if all of its tests passed and it is one to remember."""
        if run.binary.name not in self._names:
            return
        results = {one.result for one in run.outcomes}
        if not results or "FAILED" in results:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        tests = [(one.name, one.result) for one in run.outcomes]
        self._file(run.binary).write_text(json.dumps(tests), encoding="utf-8")
        files = sorted(self._folder.iterdir(), key=lambda file: file.stat().st_mtime)
        for file in files[:-REMEMBERED_MAX]:
            file.unlink()

    def _file(self, binary: TestBinary) -> Path:
        digest = hashlib.sha256()

        def add(*parts: bytes) -> None:
            for part in parts:
                digest.update(len(part).to_bytes(8, "big"))
                digest.update(part)

        add(binary.name.encode())
        for name, value in sorted(os.environ.items()):
            if name.startswith(PREFIX):
                add(name.encode(), value.encode())
        if binary.command[0] == "cargo":
            compiler = ["rustc", "--version", "--verbose"]
            add(subprocess.run(compiler, check=True, stdout=subprocess.PIPE).stdout)
            files = [binary.folder / "Cargo.lock", *_sources(binary.folder)]
        else:
            add(Path(binary.command[0]).read_bytes())
            files = [file for file in sorted(binary.folder.rglob("*")) if file.is_file()]
        for file in files:
            add(str(file.relative_to(binary.folder)).encode(), file.read_bytes())
        return self._folder / f"{digest.hexdigest()}.json"


def _sources(workspace: Path) -> list[Path]:
    """What the workspace's packages are compiled from, without what builds have left in it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *SOURCES]
    done = subprocess.run(command, cwd=workspace, check=True, text=True, stdout=subprocess.PIPE)
    files = {workspace / line for line in done.stdout.splitlines()}
    return sorted(file for file in files if file.is_file())
