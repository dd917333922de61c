"""Reads the YAML that `leasehold-coordinator crds` writes, and no other: mappings, lists and texts
in blocks. Python has no YAML of its own, and a tool of the tests installs nothing for it.
"""

import json
import re
from typing import Any

KEY = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s:"\'][^:]*):(?: (.*))?')


def read(text: str) -> Any:
    """The value of a document.

    Raises ValueError for a line that the coordinator would not write.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "---"))]
    value, rest = _block(lines, 0)
    if rest:
        raise ValueError(f"not read: {rest[0]!r}")
    return value


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    """The mapping or list that begins with the first line, and the lines after it."""
    if lines and lines[0][indent:].startswith("- "):
        return _items(lines, indent)
    value = {}
    while lines and _indent(lines[0]) == indent and not lines[0][indent:].startswith("- "):
        found = KEY.fullmatch(lines[0][indent:])
        if found is None:
            raise ValueError(f"no key: {lines[0]!r}")
        key = json.loads(found[1]) if found[1].startswith('"') else found[1]
        value[key], lines = _value(found[2] or "", lines[1:], indent)
    return value, lines


def _items(lines: list[str], indent: int) -> tuple[list[Any], list[str]]:
    value = []
    while lines and lines[0][indent:].startswith("- ") and _indent(lines[0]) == indent:
        first = lines[0][indent + 2:]
        if KEY.fullmatch(first):
            # A mapping, whose first key stands behind the dash.
            lines = [" " * (indent + 2) + first, *lines[1:]]
            item, lines = _block(lines, indent + 2)
        else:
            item, lines = _value(first, lines[1:], indent)
        value.append(item)
    return value, lines


def _value(text: str, lines: list[str], indent: int) -> tuple[Any, list[str]]:
    """What stands behind a key or a dash, or on the lines below it."""
    if text in (">-", "|-"):
        count = 0
        while count < len(lines) and _indent(lines[count]) > indent:
            count += 1
        joint = " " if text == ">-" else "\n"
        return joint.join(line.strip() for line in lines[:count]), lines[count:]
    if text:
        return _scalar(text), lines
    # A list may stand as far left as the key that it belongs to.
    is_deeper = bool(lines) and _indent(lines[0]) > indent
    is_list = bool(lines) and lines[0][indent:].startswith("- ") and _indent(lines[0]) == indent
    if is_deeper or is_list:
        return _block(lines, _indent(lines[0]))
    return None, lines


def _scalar(text: str) -> Any:
    if text[0] in '"{[' or re.fullmatch(r"-?\d+(\.\d+)?|true|false|null", text):
        return json.loads(text)
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    if text[0] in "&*!|>%@`":
        raise ValueError(f"no plain text: {text!r}")
    return text
