"""Builds the test binaries of the workspace and lists them."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
CARGO_FLAGS = os.environ.get("CARGO_FLAGS", "").split()


# Both cores and what tests them with deliberate faults: they are built once, with the faults.
WITH_FAULTS = ["leasehold-types", "leasehold-agent-core", "leasehold-coordinator-core",
               "leasehold-scenario", "leasehold-simulation", "leasehold-simulator",
               "leasehold-model"]


class BuildFailed(Exception):
    """A build failed; it has printed why."""


@dataclass(frozen=True)
class TestBinary:
    """A program with tests that takes the flags of Rust's test runner."""

    name: str  # for people: package and target
    command: tuple[str, ...]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict, compare=False)
    # Whether one test can be chosen by its name: rustdoc splits arguments at spaces.
    takes_names: bool = field(default=True, compare=False)

    def variables(self) -> dict[str, str]:
        """The environment of its process."""
        return {**os.environ, **self.environment}

    def tests(self) -> list[str]:
        """The names of its tests, in the order in which it starts them."""
        output = subprocess.run(
            [*self.command, "--list", "--format", "terse"],
            cwd=self.folder, env=self.variables(), check=True, text=True, stdout=subprocess.PIPE,
        ).stdout
        lines = output.splitlines()
        return [line.removesuffix(": test") for line in lines if line.endswith(": test")]


def built_folder() -> Path:
    """The folder of the programs that cargo builds."""
    profile = "release" if "--release" in CARGO_FLAGS else "debug"
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / profile


def build(arguments: list[str], wrapper: list[str] | None = None) -> list[TestBinary]:
    """Builds what `cargo test ARGUMENTS` would run. Shows cargo's progress.

    Raises BuildFailed.
    """
    built = _executables(arguments, wrapper or [])
    return [_binary(message) for message in built if message["profile"]["test"]]


def build_with_faults() -> list[TestBinary]:
    """Builds the tests of what has deliberate faults. Raises BuildFailed."""
    packages = [word for name in WITH_FAULTS for word in ("-p", name)]
    return build(packages, [str(ROOT / "tests/tools/with-faults")])


def build_others() -> list[TestBinary]:
    """Builds all other tests, and the programs that they start. Raises BuildFailed.

    Programs of former builds that this one did not renew are removed: a test would start them here
    and find nothing in a fresh clone.
    """
    excluded = [word for name in WITH_FAULTS for word in ("--exclude", name)]
    built = _executables(["--workspace", *excluded], [])
    # In the folder of examples Cargo keeps files of its own.
    programs = [one for one in built if one["target"]["kind"] == ["bin"]]
    remove_others({Path(one["executable"]) for one in programs if not one["profile"]["test"]})
    return [_binary(message) for message in built if message["profile"]["test"]]


def remove_others(programs: set[Path]) -> None:
    """Removes every other program from the folders of these."""
    for folder in {program.parent for program in programs}:
        for file in set(folder.iterdir()) - programs:
            if file.is_file() and os.access(file, os.X_OK):
                file.unlink()


def _executables(arguments: list[str], wrapper: list[str]) -> list[dict]:
    """What cargo says of each program that `cargo test ARGUMENTS` builds."""
    command = [*wrapper, "cargo", "test", *CARGO_FLAGS, *arguments, "--no-run",
               "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise BuildFailed(" ".join(command))
    messages = (json.loads(line) for line in done.stdout.splitlines())
    return [one for one in messages
            if one["reason"] == "compiler-artifact" and one["executable"]]


def _binary(message: dict) -> TestBinary:
    folder = Path(message["manifest_path"]).parent
    target = message["target"]
    kind = "unit" if target["kind"] != ["test"] else target["name"]
    if target["kind"] == ["bin"]:
        kind = f"unit of {target['name']}"
    package = folder.relative_to(ROOT)
    name = f"{package}: {kind}"
    return TestBinary(name, (message["executable"],), folder, {"CARGO_MANIFEST_DIR": str(folder)})


def packages() -> dict[str, Path]:
    """The folders of the workspace's packages by name."""
    metadata = subprocess.run(
        ["cargo", "metadata", *CARGO_FLAGS, "--no-deps", "--format-version=1"],
        cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE,
    ).stdout
    found = json.loads(metadata)["packages"]
    return {one["name"]: Path(one["manifest_path"]).parent for one in found}
