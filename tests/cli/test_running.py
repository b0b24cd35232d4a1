# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`serve-warm run` passes its words on to `serve run`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from serve_warm.cli.running import run, words_of


@pytest.mark.parametrize(
    ("words", "artifact", "expected"),
    [
        ((), None, []),
        (("--reload",), None, ["--reload"]),
        ((), "s3://b/p", ["artifact=s3://b/p"]),
        (("--route-prefix=/x", "-d", "."), None, ["--route-prefix=/x", "-d", "."]),
    ],
)
def test_options_go_to_serve_run(words: tuple[str, ...], artifact: str | None, expected: list[str]):
    found = words_of("app:app", words, artifact=artifact)
    assert found == ["serve_warm.app:wrap", "app=app:app", *expected]


def test_a_config_is_for_serve_run():
    done = CliRunner().invoke(run, ["serve.yaml"])
    assert done.exit_code == 2
    assert "serve.yaml is a Serve config: run it with serve run" in done.output


def test_arguments_go_to_the_builder_of_the_application():
    found = words_of("app:build", ("scale=3", "--reload", "path=a=b"), artifact=None)
    assert found[:2] == ["serve_warm.app:wrap", "app=app:build"]
    name, _, value = found[2].partition("=")
    assert (name, json.loads(value)) == ("args", {"scale": "3", "path": "a=b"})
    assert found[3:] == ["--reload"]
