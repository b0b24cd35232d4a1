# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Documents name only settings, metrics, files, commands and make targets that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
import yaml

from boards import known
from serve_warm.cli import serve_warm
from serve_warm.config import ENVIRONMENT_PREFIX, WarmupConfig
from tooling.test_links import ROOT, markdown_files, tokens

DOCUMENTS = {str(path.relative_to(ROOT)): path.read_text() for path in markdown_files()}
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
VARIABLES = {ENVIRONMENT_PREFIX + name.upper() for name in WarmupConfig.model_fields}
PATH = re.compile(r"(?<![\w/.:*-])(?:tests|serve_warm|helm|docs|deployments)/[\w./*-]*[\w*/]")


def settings(data: object) -> set[str]:
    """Return the keys of all mappings under a key `warmup`."""
    if isinstance(data, dict):
        return set(data.get("warmup") or ()).union(*map(settings, data.values()))
    return set().union(*map(settings, data)) if isinstance(data, list) else set()


def unknown(text: str) -> Iterator[str]:
    """Yield the names in a document that do not exist."""
    yield from set(re.findall(rf"\b{ENVIRONMENT_PREFIX}\w*[A-Z]\b", text)) - VARIABLES
    metrics = re.findall(r"\b(?:\w+:)?(?:ray_)?serve_warm_\w*[a-z]\b(?::\w+)*", text)
    yield from {name for name in metrics if not {name, f"{name}_sum"} & known()}
    for token in (each for each in tokens(text) if each.type in {"code_inline", "fence"}):
        no_code = "^[ +-]" if token.info == "diff" else r"\\\n|(?<!\S)#.*"
        code = re.sub(no_code, "", token.content, flags=re.MULTILINE)
        is_yaml = token.info in {"yaml", "diff"} and "warmup:" in code
        for block in [code] if is_yaml else re.findall(r"{warmup: {.*}}", code):
            yield from settings(yaml.safe_load(block)) - WarmupConfig.model_fields.keys()
        yield from set(re.findall(r"(?:^|\$ )make ([a-z][\w-]*)", code, re.MULTILINE)) - TARGETS
        yield from (path for path in PATH.findall(code) if not [*ROOT.glob(path)])
        for name, rest in re.findall(r"\bserve-warm ([a-z][\w-]*)([^\n|;]*)", code):
            command = serve_warm.get_command(click.Context(serve_warm), name)
            options = {option for each in command.params for option in each.opts} if command else ()
            given = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
            yield from given - {*options, "--help"} if command else [name]


@pytest.mark.parametrize("name", [n for n in DOCUMENTS if not n.startswith(("changes", "tests"))])
def test_every_name_in_a_document_exists(name):
    assert [*unknown(DOCUMENTS[name])] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("```yaml\nuser_config:\n  warmup:\n    on_mising: fail\n```", "on_mising"),
        ("Set SERVE_WARM_ON_MISING=fail.", "SERVE_WARM_ON_MISING"),
        ("Query serve_warm_redy.", "serve_warm_redy"),
        ("Run `make tset`.", "tset"),
        ("Read `serve_warm/confg.py`.", "serve_warm/confg.py"),
        ("```console\n$ serve-warm biuld app:app\n```", "biuld"),
        ("```console\n$ serve-warm build app:app \\\n    --stor s3://b/p\n```", "--stor"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text, name):
    assert [*unknown(text)] == [name]
