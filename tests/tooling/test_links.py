# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""All links of Markdown files to files and headings of this repository work."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

from processes import run_to_end

if TYPE_CHECKING:
    from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
CODE = {".artifact", ".json", ".py", ".toml", ".tpl", ".txt", ".yaml"}
SKIPPED = {".git", ".venv", "build", "dist", "node_modules"}


def markdown_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".md"]


def files() -> list[Path]:
    """Return all files that git does not ignore. Without git, as in an sdist, return all files."""
    listed = run_to_end(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    if listed.returncode == 0 and listed.stdout:
        return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not SKIPPED & {*path.relative_to(ROOT).parts}
    ]


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a document, including inline tokens."""
    for token in MarkdownIt().enable("table").parse(text):
        yield token
        yield from token.children or ()


def targets(text: str) -> list[str]:
    """Return the targets of a document's links and pictures."""
    return [
        str(token.attrs["href" if token.type == "link_open" else "src"])
        for token in tokens(text)
        if token.type in {"link_open", "image"}
    ]


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    result = set()
    parsed = MarkdownIt().parse(text)
    for opening, inline in itertools.pairwise(parsed):
        if opening.type != "heading_open":
            continue
        shown = "".join(
            child.content
            for child in inline.children or ()
            if child.type in {"text", "code_inline"}
        )
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        result.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return result


@functools.cache
def anchors_of(path: Path) -> set[str]:
    return anchors(path.read_text())


def dead(path: Path, text: str) -> list[str]:
    """Return the dead links of a document at `path`. Links to other sites are not checked."""
    found = []
    for target in targets(text):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        is_inside = file.is_relative_to(ROOT) and file.exists()
        if not is_inside or (parts.fragment and unquote(parts.fragment) not in anchors_of(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    """The file exists, and it has the heading."""
    assert dead(path, path.read_text()) == []


NAMED = re.compile(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?")


def test_every_document_that_code_or_chart_names_is_there() -> None:
    """Comments, error messages, alerts and values name pages and anchors by path."""
    code = [
        path for path in files() if path.suffix in CODE or path.name in {"Makefile", "Dockerfile"}
    ]
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in code
        if path != Path(__file__)
        for name in NAMED.findall(path.read_text())
    }

    assert len(named) > 20
    assert sorted(each for each in named if dead(ROOT / "here.md", f"[a]({each[1]})")) == []


# The order of the documentation -------------------------------------------------------------------


MOST_WORDS = 45_000
"""Largest number of words in all pages of docs/, tables and code included: two and a half hours of
reading."""


def pages_in_order() -> list[Path]:
    """Return the pages of docs/, in the order in which docs/README.md names them."""
    start = ROOT / "docs/README.md"
    found = [
        (start.parent / target.partition("#")[0]).resolve() for target in targets(start.read_text())
    ]
    return list(dict.fromkeys(each for each in found if each.is_relative_to(start.parent)))


def test_each_page_ends_with_the_next_one():
    """One can read all of it by following the links, and no page is left out."""
    pages = pages_in_order()
    assert {*pages} == {*(ROOT / "docs").rglob("*.md")} - {ROOT / "docs/README.md"}
    for page, following in itertools.pairwise([*pages, ROOT / "docs/README.md"]):
        last = page.read_text().rstrip("\n").rpartition("\n")[2]
        assert last.startswith("Next: "), page
        assert (page.parent / targets(last)[0]).resolve() == following


def test_the_documentation_is_short_enough_to_be_read():
    pages = (ROOT / "docs").rglob("*.md")
    assert sum(len(page.read_text().split()) for page in pages) <= MOST_WORDS
