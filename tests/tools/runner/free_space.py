"""Whether there is room for a run of all tests: for what cargo and Go build, and what tests write.

A run without room fails in its middle, often with an error that does not name the disk.
"""

import math
import os
import shutil
import tempfile
from pathlib import Path

from .binaries import ROOT, built_folder

GIB = 1 << 30
# What a run adds to the target folder: from nothing (`du -sh target`), and where the programs are
# built.
TARGET_COLD_BYTES = 12 * GIB
TARGET_WARM_BYTES = 2 * GIB
# What it adds to the caches that all checkouts share: with all tools (`du -shc ~/.cache ~/go`), and
# where they are there.
CACHES_COLD_BYTES = 20 * GIB
CACHES_WARM_BYTES = 1 * GIB
# What tests write elsewhere, and have at one time.
OTHER_BYTES = 1 * GIB


def needs() -> dict[Path, int]:
    """What a run may add to each of the folders that it writes to, in bytes."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Lints build libraries of others, too.
    is_built = next((built_folder() / "deps").glob("libleasehold_types-*.rlib"), None) is not None
    are_tools_there = (caches / "leasehold").is_dir()
    return {
        built_folder(): TARGET_WARM_BYTES if is_built else TARGET_COLD_BYTES,
        caches: CACHES_WARM_BYTES if are_tools_there else CACHES_COLD_BYTES,
        Path(tempfile.gettempdir()): OTHER_BYTES,
    }


def shortage(needed: dict[Path, int]) -> str | None:
    """What is wrong where these folders have too little room; none if nothing is. Folders of one
    filesystem share its room.
    """
    devices: dict[int, list[Path]] = {}
    for place in needed:
        devices.setdefault(_existing(place).stat().st_dev, []).append(place)
    lines = []
    for places in devices.values():
        free = shutil.disk_usage(_existing(places[0])).free
        need = sum(needed[place] for place in places)
        if free < need:
            shown = ", ".join(str(place) for place in places)
            lines.append(f"    {_gib(free)} are free and {_gib(need)} may be needed: {shown}")
    if not lines:
        return None
    return "\n".join(["not enough free space for a run of all tests:", *lines, advice()])


def advice() -> str:
    """What may be deleted, to have more room."""
    return (f"delete what is not needed: {built_folder() / 'incremental'}, target folders of other "
            "checkouts and of former builds, and Go's build cache (`go clean -cache`)")


def _existing(place: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(folder for folder in [place, *place.parents] if folder.exists())


def _gib(size: int) -> str:
    """A size, rounded down: what is too little never looks like enough."""
    return f"{math.floor(10 * size / GIB) / 10:.1f} GiB"
