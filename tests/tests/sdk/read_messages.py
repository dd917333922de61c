"""Describes `leasehold.messages` for messages.rs, as JSON on the standard output.

The standard input is a JSON object: a message's name, and an object of that message. Of each
message that the module defines it prints the fields with their types, what from_json makes of the
given object, and what it makes of an empty one; of each enum its values.
"""

import dataclasses
import enum
import json
import sys

from leasehold import messages


def plain(value):
    """A message as dicts, lists and texts."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    return value


def main():
    given = json.load(sys.stdin)
    described, enums = {}, {}
    for name, defined in vars(messages).items():
        if not isinstance(defined, type) or defined.__module__ != messages.__name__:
            continue
        if issubclass(defined, enum.Enum):
            enums[name] = {value.name: value.value for value in defined}
            enums[name]["(a later one)"] = defined("(a later one)").value
        elif dataclasses.is_dataclass(defined):
            described[name] = {
                "types": {field.name: field.type for field in dataclasses.fields(defined)},
                "read": plain(defined.from_json(given.get(name, {}))),
                "read_of_nothing": plain(defined.from_json({})),
                "made_of_nothing": plain(defined()),
            }
    json.dump({"messages": described, "enums": enums}, sys.stdout)


if __name__ == "__main__":
    main()
