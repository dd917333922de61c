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
# What a run may add to the filesystem of the target folder: where no library is built yet, and
# where they are.
COLD_BYTES = 25 * GIB
WARM_BYTES = 4 * GIB
# What it may add to another filesystem, which has caches or temporary files only.
OTHER_BYTES = 2 * GIB


def folders() -> list[Path]:
    """Where a run writes: programs, logs, what all checkouts share, and temporary files."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [built_folder(), ROOT, Path(caches), Path(tempfile.gettempdir())]


def shortage(places: list[Path]) -> str | None:
    """What is wrong where one of these folders has too little room for a run; none if nothing is.

    The first one is that of built programs. Folders of one filesystem share its room.
    """
    devices: dict[int, list[Path]] = {}
    for place in places:
        devices.setdefault(_existing(place).stat().st_dev, []).append(place)
    lines = []
    for of_device in devices.values():
        free = shutil.disk_usage(_existing(of_device[0])).free
        needed = _needed(places[0]) if places[0] in of_device else OTHER_BYTES
        if free < needed:
            shown = ", ".join(str(place) for place in dict.fromkeys(of_device))
            lines.append(f"    {_gib(free)} are free and {_gib(needed)} may be needed: {shown}")
    if not lines:
        return None
    return "\n".join(["not enough free space for a run of all tests:", *lines, advice()])


def advice() -> str:
    """What may be deleted, to have more room."""
    return (f"delete what is not needed: {built_folder() / 'incremental'}, target folders of other "
            "checkouts and of former builds, and Go's build cache (`go clean -cache`)")


def _needed(built: Path) -> int:
    """What a run may add to the filesystem of this folder of built programs."""
    is_cold = next((built / "deps").glob("*.rlib"), None) is None
    return COLD_BYTES if is_cold else WARM_BYTES


def _existing(place: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(folder for folder in [place, *place.parents] if folder.exists())


def _gib(size: int) -> str:
    """A size, rounded down: what is too little never looks like enough."""
    return f"{math.floor(10 * size / GIB) / 10:.1f} GiB"
