"""Packs the package into a wheel, for `pip install` without a network: what PEP 517 asks for.

Name and version stand in pyproject.toml; here they are read from it line by line, since Python 3.9
has no reader of TOML.
"""

import base64
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "leasehold"
# Of every entry, so that equal sources give equal wheels.
EPOCH = (1980, 1, 1, 0, 0, 0)

WHEEL = "Wheel-Version: 1.0\nGenerator: leasehold\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel, and returns its name."""
    files = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in _sources()}
    return _pack(Path(wheel_directory), files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes a wheel that points here, and returns its name."""
    return _pack(Path(wheel_directory), {"leasehold.pth": f"{ROOT}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    """Writes the sources, and returns the archive's name."""
    stem = f"leasehold-{_field('version')}"
    with tarfile.open(Path(sdist_directory, f"{stem}.tar.gz"), "w:gz") as archive:
        info = tarfile.TarInfo(f"{stem}/PKG-INFO")
        info.size = len(_metadata())
        archive.addfile(info, io.BytesIO(_metadata()))
        for path in [ROOT / "pyproject.toml", Path(__file__), *_sources()]:
            archive.add(path, f"{stem}/{path.resolve().relative_to(ROOT).as_posix()}")
    return f"{stem}.tar.gz"


def _sources():
    found = [*PACKAGE.glob("*.py"), PACKAGE / "py.typed"]
    return sorted(found)


def _field(name):
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = text.split("[project]", 1)[1]
    return re.search(rf'^{name} = "([^"]*)"$', project, re.MULTILINE).group(1)


def _metadata():
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {_field('name')}",
        f"Version: {_field('version')}",
        f"Summary: {_field('description')}",
        f"Requires-Python: {_field('requires-python')}",
        "License: Apache-2.0",
        "Classifier: Typing :: Typed",
    ]
    return ("\n".join(lines) + "\n").encode()


def _pack(folder, files):
    stem = f"leasehold-{_field('version')}"
    info = f"{stem}.dist-info"
    files = {**files, f"{info}/METADATA": _metadata(), f"{info}/WHEEL": WHEEL.encode()}
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    name = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return name
