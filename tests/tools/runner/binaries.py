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
               "leasehold-scenario", "leasehold-simulator", "leasehold-model"]


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


def build(arguments: list[str], wrapper: list[str] | None = None) -> list[TestBinary]:
    """Builds what `cargo test ARGUMENTS` would run. Shows cargo's progress.

    Raises BuildFailed.
    """
    command = [*(wrapper or []), "cargo", "test", *CARGO_FLAGS, *arguments, "--no-run",
               "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise BuildFailed(" ".join(command))
    built = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["executable"]:
            continue
        if message["profile"]["test"]:
            built.append(_binary(message))
    return built


def build_with_faults() -> list[TestBinary]:
    """Builds the tests of what has deliberate faults. Raises BuildFailed."""
    packages = [word for name in WITH_FAULTS for word in ("-p", name)]
    return build(packages, [str(ROOT / "tests/tools/with-faults")])


def build_others() -> list[TestBinary]:
    """Builds all other tests, and the programs that they start. Raises BuildFailed."""
    excluded = [word for name in WITH_FAULTS for word in ("--exclude", name)]
    return build(["--workspace", *excluded])


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
