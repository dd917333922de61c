"""The book: the links of its pages, in small books with planted documents."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent


class Links(unittest.TestCase):
    """What tests/tools/book_links makes of the links of documents."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        self.write("docs/images/lease.svg", "<svg/>")
        self.write("src/ledger.rs", "")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def links(self, documents, listed=None):
        """The pages after the preprocessor: path and text. SUMMARY.md lists `listed`."""
        chapters = []
        for path, text in documents.items():
            self.write(f"docs/{path}", text)
            if listed is None or path in listed:
                chapters.append({"Chapter": {
                    "name": path, "content": text, "sub_items": [], "path": path,
                    "source_path": path}})
        # The last one stands below the first one.
        chapters[0]["Chapter"]["sub_items"] = chapters[1:]
        book = {"items": [{"PartTitle": "Start"}, "Separator", chapters[0]]}
        context = {"root": str(self.root / "docs"), "config": {"book": {"src": "."}}}
        self.ended = subprocess.run(
            [sys.executable, str(TOOLS / "book_links")], input=json.dumps([context, book]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.ended.returncode != 0:
            return None
        first = json.loads(self.ended.stdout)["items"][2]["Chapter"]
        pages = [first, *(item["Chapter"] for item in first["sub_items"])]
        return {page["path"]: page["content"] for page in pages}

    def link(self, text):
        """What becomes of a text in docs/adr/one.md."""
        pages = self.links({"adr/one.md": text, "two.md": "# Two\n", "../README.md": "# All\n"})
        self.assertIsNotNone(pages, self.ended.stderr)
        return pages["adr/one.md"]

    def test_links_to_pages_lead_to_their_places(self):
        self.assertEqual(self.link("[Two](../two.md#a)"), "[Two](../two.md#a)")
        self.assertEqual(self.link("[All](../../README.md#b)"), "[All](../README.md#b)")

    def test_a_page_from_outside_has_its_links_from_its_place(self):
        pages = self.links({"../README.md": "[Two](docs/two.md), ![a](docs/images/lease.svg)",
                            "two.md": "# Two\n"})
        self.assertEqual(pages["README.md"], "[Two](two.md), ![a](images/lease.svg)")

    def test_links_to_other_files_of_the_repository_become_text(self):
        for text, want in [
            ("[the ledger](../../src/ledger.rs)", "the ledger (`src/ledger.rs`)"),
            ("[`src/ledger.rs`](../../src/ledger.rs)", "`src/ledger.rs`"),
            ("[the code](../../src)", "the code (`src`)"),
        ]:
            self.assertEqual(self.link(text), want)

    def test_sites_headings_pictures_and_code_stay(self):
        for text in [
            "[site](https://example.com/a.md)", "[above](#above)", "![a](../images/lease.svg)",
            "`[a](b.md)`", "```text\n[a](b.md)\n```\n", "   ```sh\n   [a](b.md)\n   ```\n",
        ]:
            self.assertEqual(self.link(text), text)

    def test_a_link_that_leads_nowhere_is_refused(self):
        for text in ["[a](b.md)", "[a](../../../../outside.md)", "![a](../../src/ledger.rs)"]:
            self.assertIsNone(self.links({"adr/one.md": text}), text)
            self.assertIn("adr/one.md: ", self.ended.stderr)

    def test_a_document_that_the_summary_does_not_list_is_refused(self):
        documents = {"one.md": "[Two](two.md)", "two.md": "# Two\n"}
        self.assertIsNone(self.links(documents, listed=["one.md"]))
        self.assertIn("SUMMARY.md does not list it", self.ended.stderr)

    def test_two_pages_of_one_place_are_refused(self):
        self.assertIsNone(self.links({"README.md": "# A\n", "../README.md": "# B\n"}))
        self.assertIn("two pages would be README.md", self.ended.stderr)


class Built(unittest.TestCase):
    """What tests/tools/book finds in a book that is built."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.book = Path(folder.name).resolve()
        (self.book / "adr").mkdir()
        (self.book / "lease.svg").write_text("<svg/>")
        (self.book / "index.html").write_text('<h1 id="lease">A lease</h1>')

    def check(self, page):
        (self.book / "adr/one.html").write_text(page)
        command = [sys.executable, str(TOOLS / "book"), "--check", str(self.book)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True)

    def test_good_links_pass(self):
        ended = self.check(
            '<a href="../index.html">a</a><a href="../index.html#lease">b</a><a href="#c">c</a>'
            '<p id="c"></p><img src="../lease.svg"><a href="https://example.com/none">d</a>')
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("5 links on 2 pages, 0 of them broken", ended.stdout)

    def test_broken_links_are_found(self):
        for page, problem in [
            ('<a href="two.html">', "no such file"),
            ('<a href="../index.html#leases">', "no heading has the anchor leases"),
            ('<a href="#d">', "no heading has the anchor d"),
            ('<img src="lease.svg">', "no such file"),
            ('<a href="../../Cargo.toml">', "leads out of the book"),
        ]:
            ended = self.check(page)
            self.assertEqual(ended.returncode, 1, page)
            self.assertIn(problem, ended.stdout)

    def test_a_book_without_pages_is_no_book(self):
        (self.book / "index.html").unlink()
        command = [sys.executable, str(TOOLS / "book"), "--check", str(self.book)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("has no page", ended.stdout)
