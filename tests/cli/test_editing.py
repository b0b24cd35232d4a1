# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The schema for editors accepts what the settings accept, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from serve_warm import cli
from serve_warm.app import OWN_ARGUMENTS
from serve_warm.cli.editing import serve_schema
from serve_warm.config import Seats, WarmupConfig, resolve
from serve_warm.errors import ConfigError

ROOT = Path(__file__).parents[2]
SCHEMA = serve_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def in_warmup(settings: Any) -> dict[str, Any]:
    deployment = {"name": "Scorer", "user_config": {"warmup": settings, "own": 1}}
    return {"applications": [{"import_path": "app:app", "deployments": [deployment]}]}


def in_args(settings: Any) -> dict[str, Any]:
    args = {"app": "app:app", **settings}
    return {"applications": [{"import_path": "serve_warm.app:wrap", "args": args}]}


def accepts(settings: Any) -> bool:
    try:
        resolve(WarmupConfig(), user_config={"warmup": settings}, environ={})
    except ConfigError:
        return False
    return True


VALUES: list[Any] = [
    *(True, False, None, 0, 1, 3, 4, -1, 0.5, 10.0, 10**9, "", "x", "compile", "eager", "fail"),
    *("serve", "forbid", "count", "off", "signatures", "values", "portable", "gang"),
    *([], ["a"], {}, {"count": 1}, {"count": -1}, {"imports": ["app"]}, {"unknown": 1}),
]


@pytest.mark.parametrize("name", WarmupConfig.model_fields)
def test_what_the_schema_accepts_the_settings_accept(name: str):
    """The settings also take other spellings of a value, such as "3" and 0 for false."""
    for value in VALUES:
        valid = VALIDATOR.is_valid(in_warmup({name: value}))
        assert valid is VALIDATOR.is_valid(in_args({name: value}))
        # No schema can check a text further, for example an address.
        assert not valid or isinstance(value, str) or accepts({name: value}), value


def test_usual_values_are_accepted_by_both():
    usual = {
        "enabled": False,
        "artifact": "s3://bucket/x",
        "max_level": 2,
        "on_missing": "eager",
        "deadline_s": 900,
        "record": "values",
        "record_days": 0.5,
        "cpu": "portable",
        "seats": {"count": 1, "imports": ["app"]},
        "eager_sample": "1/100",
        "plan": None,
    }
    for name, value in (*usual.items(), ("record", False), ("eager_sample", False)):
        assert accepts({name: value}), name
        assert VALIDATOR.is_valid(in_warmup({name: value})), name


def test_an_unknown_key_is_refused_and_those_of_serve_are_not():
    assert not VALIDATOR.is_valid(in_warmup({"on_missin": "fail"}))
    assert not VALIDATOR.is_valid(in_args({"on_missin": "fail"}))
    assert not VALIDATOR.is_valid({"applications": [{"import_path": "serve_warm.app:wrap"}]})
    assert VALIDATOR.is_valid(in_args({"compile": ["model", "pipe.unet"], "args": {"a": 1}}))
    assert VALIDATOR.is_valid(in_args({"compile": {"Scorer": ["model"]}}))
    assert not VALIDATOR.is_valid(in_args({"compile": "model"}))
    assert VALIDATOR.is_valid({"applications": [{"import_path": "a:b", "args": {"on_missin": 1}}]})


@pytest.mark.parametrize("file", sorted(ROOT.glob("deployments/*/*.yaml")), ids=str)
def test_the_examples_are_valid(file: Path):
    jsonschema.validate(yaml.safe_load(file.read_text()), SCHEMA)


def test_the_arguments_of_wrap_are_those_that_it_takes():
    args = SCHEMA["properties"]["applications"]["items"]["then"]["properties"]["args"]
    assert args["properties"].keys() == {*OWN_ARGUMENTS, *WarmupConfig.model_fields}


def test_each_setting_is_described():
    for kind, fields in (("WarmupConfig", WarmupConfig), ("Seats", Seats)):
        properties = SCHEMA["$defs"][kind]["properties"]
        assert properties.keys() == fields.model_fields.keys()
        assert all(each.get("description") for each in properties.values()), kind


def test_check_prints_it_without_an_application():
    ended = CliRunner().invoke(cli.serve_warm, ["check", "--schema"])
    assert (ended.exit_code, json.loads(ended.stdout)) == (0, SCHEMA)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str):
    """As the script that the documents name calls it."""

    def completed(words: str, number: int) -> str:
        current = words.split()[number] if shell == "fish" else str(number)
        given = {"COMP_WORDS": words, "COMP_CWORD": current}
        environ = {**given, "_SERVE_WARM_COMPLETE": f"{shell}_complete"}
        ended = CliRunner().invoke(
            cli.serve_warm, [], prog_name="serve-warm", env=environ, standalone_mode=True
        )
        return ended.stdout

    assert "build" in completed("serve-warm bu", 1)
    assert "inspect" not in completed("serve-warm bu", 1)
    assert "--portable-cpu" in completed("serve-warm build --po", 2)
    source = CliRunner().invoke(
        cli.serve_warm, [], prog_name="serve-warm", env={"_SERVE_WARM_COMPLETE": f"{shell}_source"}
    )
    assert "serve-warm" in source.stdout
    assert f"_SERVE_WARM_COMPLETE={shell}_complete" in source.stdout
