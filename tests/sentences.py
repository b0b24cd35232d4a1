# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Random sentences of this project, or of other projects, for a reader who marks the unclear ones.

    python tests/sentences.py --seed 7 --to build/sentences.txt
    python tests/sentences.py --seed 7 --to build/others.txt --others

The file has 50 sentences of each kind, without their context: README and documents; messages of
errors, logs and the CLI; docstrings; metric help, alerts and the dashboard. The reader gets the
instruction in `INSTRUCTION`, and `tests/house.py` records the result. `--others` takes the
sentences from installed packages (Ray, torch, huggingface_hub, click, FastAPI and others), to show
how many sentences the same reader marks elsewhere.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
OF_EACH_KIND = 50
FEWEST_WORDS, MOST_WORDS = 6, 40
"""Shorter texts are not sampled; longer messages are divided into sentences."""

INSTRUCTION = """\
Read each sentence once at normal speed. Mark a sentence if its English makes you read it twice to
understand what it says: odd word order, an unclear pronoun inside the sentence, a word used in a
way an English-speaking engineer would not use it, a construction that reads as a translation. Do
not mark a sentence merely because it refers to a previous sentence that you do not see, because it
uses a term of the project or of the field, or because you would have phrased it a bit better."""

PACKAGES = (
    *("click", "rich", "httpx", "huggingface_hub", "pydantic", "ray", "prometheus_client", "anyio"),
    *("cryptography", "fastapi", "starlette", "uvicorn", "pytest", "filelock", "attrs"),
)
"""Packages whose README texts are sampled with `--others`."""
MODULES = (
    *("ray/serve/*.py", "ray/serve/_private/*.py", "huggingface_hub/*.py", "click/*.py"),
    *("huggingface_hub/utils/*.py", "torch/_dynamo/*.py", "torch/utils/*.py"),
    "prometheus_client/*.py",
)
"""Modules of other projects whose docstrings and messages are sampled."""
METRICS = ("ray/dashboard/modules/metrics/dashboards/*.py", "ray/serve/_private/*.py")

BREAK = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`\"(])")


def sentences(text: str) -> list[str]:
    """Return the sentences of a text that are long enough."""
    found = BREAK.split(re.sub(r"\s+", " ", text).strip())
    return [
        each for each in found if len(each.split()) >= FEWEST_WORDS and re.search("[a-z]", each)
    ]


def of_document(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown text, without headings and code."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    for part in re.split(r"\n\s*\n|\n[-*] |\n\d+\. ", text):
        if part.lstrip().startswith(("#", "..", ">>>")):
            continue
        rows = part.splitlines() if part.count("|") > 4 else [part]
        for row in rows:
            for cell in row.strip("| ").split(" | ") if len(rows) > 1 else [row]:
                yield from sentences(cell)


def of_modules(paths: Iterable[Path]) -> tuple[list[str], list[str]]:
    """Return the sentences of messages, and those of docstrings."""
    messages: list[str] = []
    docstrings: list[str] = []
    for path in paths:
        tree = ast.parse(path.read_text())
        own = {
            id(each.value): each.value.value
            for node in ast.walk(tree)
            for each in ast.iter_child_nodes(node)
            if isinstance(each, ast.Expr)
            and isinstance(each.value, ast.Constant)
            and isinstance(each.value.value, str)
        }
        for text in own.values():
            for part in re.split(r"\n\s*\n", text):
                docstrings += [] if ">>>" in part else sentences(part)
        inner = {
            id(value)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for value in node.values
        }
        for node in ast.walk(tree):
            text = "" if id(node) in own or id(node) in inner else _text(node)
            is_short = len(text.split()) < MOST_WORDS
            messages += [t for t in ([text] if is_short else sentences(text)) if sentences(t)]
    return messages, docstrings


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(each) or "{" + ast.unparse(getattr(each, "value", each)) + "}"
            for each in node.values
        )
    return ""


def descriptions(found: Any) -> Iterator[str]:
    """Yield the sentences of all panels' descriptions in a dashboard."""
    if isinstance(found, dict):
        yield from sentences(str(found.get("description") or ""))
        for each in found.values():
            yield from descriptions(each)
    elif isinstance(found, list):
        for each in found:
            yield from descriptions(each)


def of_this_project() -> dict[str, list[str]]:
    """Return the sentences of each kind."""
    documents = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    modules = sorted(ROOT.glob("serve_warm/**/*.py"))
    messages, docstrings = of_modules(modules)
    chart = ROOT / "helm" / "serve-warm"
    board = json.loads((chart / "dashboards" / "warm-start.json").read_text())
    rules = yaml.safe_load((chart / "rules" / "serve-warm.yaml").read_text())
    alerts = [
        sentence
        for group in rules["groups"]
        for rule in group["rules"]
        for text in rule.get("annotations", {}).values()
        for sentence in sentences(str(text))
    ]
    helps = [
        sentence
        for row in (ROOT / "docs" / "reference" / "metrics.md").read_text().splitlines()
        if row.startswith("|")
        for sentence in of_document(row + "\n" + row)
    ]
    return {
        "README and documents": [s for path in documents for s in of_document(path.read_text())],
        "errors, logs and the CLI": messages,
        "docstrings": docstrings,
        "metric help, alerts and dashboard": [*helps, *alerts, *descriptions(board)],
    }


def of_others() -> dict[str, list[str]]:
    """Return sentences of installed packages, of the same kinds."""
    site = Path(str(importlib.metadata.distribution("ray").locate_file("")))
    texts = []
    for name in PACKAGES:
        try:
            found: Any = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        texts.append(str(found.get_payload() or found.get("Description", "")))
    messages, docstrings = of_modules(path for each in MODULES for path in sorted(site.glob(each)))
    helps = [
        sentence
        for each in METRICS
        for path in sorted(site.glob(each))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "description"
        for sentence in sentences(_text(node.value))
    ]
    return {
        "README and documents": [
            s for text in texts for s in of_document(text) if not re.search(r"https?:|\]\(", s)
        ],
        "errors, logs and the CLI": messages,
        "docstrings": docstrings,
        "metric help, alerts and dashboard": helps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--others", action="store_true", help="sentences of other projects")
    options = parser.parse_args()
    kinds = of_others() if options.others else of_this_project()
    chance = random.Random(options.seed)
    lines = [INSTRUCTION]
    for kind, found in kinds.items():
        drawn = chance.sample(sorted(set(found)), OF_EACH_KIND)
        lines += ["", f"## {kind}", ""]
        lines += [f"{kind[0].upper()}{n}. {' '.join(s.split())}" for n, s in enumerate(drawn, 1)]
    options.to.parent.mkdir(parents=True, exist_ok=True)
    options.to.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
