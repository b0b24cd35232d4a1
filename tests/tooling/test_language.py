# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Documents and sources are plain English, without words that made readers stumble."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for place in ("*.md", "docs/**/*.md", "helm/*/*.md", "deployments/*/*.md", "changes/*.md")
    for path in ROOT.glob(place)
)
STUMBLES = re.compile(
    r"\b(mend(?:s|ed|ing)?|all the same|otherwise than|whoever|is none of|has to|have to"
    r"|lack of memory|for good|for ever|in place of|out of reach|the like|by turns"
    r"|nobody declared|was worth|ways? out|we|us|ours?)\b",
    re.IGNORECASE,
)
"""Each has a plainer word: fix, anyway, unlike, anyone, is not, must, out of memory, permanently,
forever, instead of, cannot be reached, such as, in turn, undeclared, covered, fix, serve_warm."""
SOURCES = sorted(
    path
    for place, kinds in {
        "serve_warm": (".py",),
        "deployments": (".py", ".yaml"),
        "helm": (".py", ".yaml", ".tpl", ".txt"),
    }.items()
    for path in (ROOT / place).rglob("*")
    if path.suffix in kinds
)
WORST = re.compile(
    r"\b(mend(?:s|ed|ing)?|all the same|otherwise than|whoever|is none of|lack of memory|for good"
    r"|for ever|in place of|out of reach|the like|by turns|nobody declared|was worth)\b",
    re.IGNORECASE,
)
"""Words to avoid in docstrings, comments, messages, and texts of the chart."""
OF_ITS_OWN = 6
"""Limit of lines with "of its own" in all pages, and in all sources. Use "its own" instead."""


def prose(text: str) -> list[str]:
    """Return the lines, cells and headings of a page, without code and quoted messages."""
    return [
        re.sub(
            r'"[^"]*"',
            "",
            "".join(
                child.content if child.type == "text" else " " for child in token.children or ()
            ),
        )
        for token in MarkdownIt().enable("table").parse(text)
        if token.type == "inline"
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_word_that_is_read_twice(page: Path) -> None:
    """Pages do not use "we" either."""
    found = [line for line in prose(page.read_text()) if STUMBLES.search(line)]

    assert found == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_has_no_word_that_is_read_twice(source: Path) -> None:
    """This covers docstrings, comments, messages and texts of the chart."""
    assert [line for line in source.read_text().splitlines() if WORST.search(line)] == []


def sections(source: str) -> list[str]:
    """Return the entries of `Args:` and `Raises:` in all docstrings, each without line breaks."""
    return [
        " ".join(entry.split())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for section in re.findall(
            r"^(?:Args|Raises):\n((?: .*\n?)+)", ast.get_docstring(node) or "", re.MULTILINE
        )
        for entry in re.split(r"^ {4}(?! )", section, flags=re.MULTILINE)
    ]


@pytest.mark.parametrize(
    "source",
    [path for path in SOURCES if path.suffix == ".py"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_each_argument_and_exception_begins_a_line(source: Path) -> None:
    """A reader who looks for an exception finds it at the beginning of a line."""
    entries = sections(source.read_text())

    assert [entry for entry in entries if re.search(r"\. [A-Za-z_]+: ", entry)] == []


def test_few_things_are_of_their_own() -> None:
    """The phrase is rare in all pages together, and in all sources."""
    pages = [line for page in PAGES for line in prose(page.read_text()) if "of its own" in line]
    sources = [
        line
        for source in SOURCES
        for line in source.read_text().splitlines()
        if "of its own" in line
    ]

    assert len(pages) <= OF_ITS_OWN, pages
    assert len(sources) <= OF_ITS_OWN, sources


def test_words_in_code_and_quotes_do_not_count() -> None:
    """Quoted messages of the program stay as they are."""
    text = 'We mend it. `we` and "we" are said. Nobody has to. Use it.'

    found = [word for line in prose(text) for word in STUMBLES.findall(line)]

    assert found == ["We", "mend", "has to"]
