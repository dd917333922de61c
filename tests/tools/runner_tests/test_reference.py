"""The reference: what is read from definitions, help, protos and errors, on planted texts."""

import importlib.machinery
import importlib.util
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOOLS))
import crd_yaml  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("reference", str(TOOLS / "reference"))
reference = importlib.util.module_from_spec(importlib.util.spec_from_loader("reference", LOADER))
sys.dont_write_bytecode = True
LOADER.exec_module(reference)


class Definitions(unittest.TestCase):
    def test_blocks_lists_and_texts_are_read(self):
        text = ("# a comment\na:\n  b: 1\n  c: >-\n    two\n    words\n  d: \"x: y\"\n"
                "e:\n- f: true\n  g: {}\n- plain text\nh: 'it''s'\n")
        self.assertEqual(crd_yaml.read(text), {
            "a": {"b": 1, "c": "two words", "d": "x: y"},
            "e": [{"f": True, "g": {}}, "plain text"], "h": "it's"})

    def test_other_yaml_is_refused(self):
        for text in ["a: &anchor b\n", "a: >\n  b\n", "a\n", "a: 1\n    b: 2\n"]:
            with self.assertRaises(ValueError, msg=text):
                crd_yaml.read(text)

    def test_fields_have_their_bounds(self):
        rows = []
        reference.add_fields(rows, "spec", {"required": ["a"], "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 9, "description": "One | two."},
            "b": {"type": "array", "items": {"properties": {"c": {"type": "string"}}}}}})
        self.assertEqual(rows[0], ["`spec.a`", "integer", "", "required, 0 to 9", "One \\| two."])
        self.assertEqual([row[0] for row in rows], ["`spec.a`", "`spec.b`", "`spec.b[].c`"])


class Flags(unittest.TestCase):
    HELP = ("Runs\n\nUsage: a run\n\nOptions:\n      --listen <IP:PORT>\n          The address\n"
            "          \n          [env: A_LISTEN=]\n          [default: 127.0.0.1:1]\n\n"
            "  -h, --help\n          Print help\n\n"
            "Two of them:\n  a run\n      --listen 127.0.0.1:2\n")

    def test_flags_have_variable_and_default_and_examples_are_none(self):
        rows = [reference.flag_row(lines) for lines in reference.flags_of(self.HELP)]
        self.assertEqual(
            rows, [["`--listen <IP:PORT>`", "`A_LISTEN`", "127.0.0.1:1", "The address"]])

    def test_commands_are_those_of_the_help(self):
        text = "A\n\nCommands:\n  run    Runs\n         on\n  help   Help\n\nOptions:\n"
        self.assertEqual(reference.commands_of(text), ["run"])
        with self.assertRaises(reference.Wrong):
            reference.commands_of("A\n")


class Protos(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "a.proto"
            file.write_text(text, encoding="utf-8")
            return reference.proto(file)

    def test_comments_become_meanings(self):
        shown = self.read("// All.\npackage a;\n\n// One.\nmessage A {\n  // Its b.\n"
                          "  oneof c {\n    // Two\n    // lines.\n    repeated B b = 1;\n  }\n}\n"
                          "message E {}\n"
                          "service S {\n  // Asks.\n  rpc Ask(\n      A)\n      returns (E);\n}\n")
        self.assertIn("All.\n\n## A\n\nOne.\n", shown)
        self.assertIn("| `b` | `repeated B` | 1 | Two lines. One of `c`. |\n", shown)
        self.assertIn("## E\n", shown)
        self.assertIn("| `Ask` | `A` | `E` | Asks. |\n", shown)

    def test_what_cannot_be_read_is_named(self):
        for text in ["message A {\n  message B {\n", "message A {\n  what\n}\n"]:
            with self.assertRaises(reference.Wrong):
                self.read(text)
