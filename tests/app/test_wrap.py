# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of `serve_warm.app:wrap`, and what it leaves as it is.

`tests/integration/test_wrapped.py` deploys wrapped applications.
"""

from __future__ import annotations

from typing import Any

import pytest

from processes import answer_of


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """Return the results of `wrap`, which takes over torch.compile in its process."""
    found: dict[str, Any] = answer_of("wrapping_process.py", {})
    return found


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("no app", "needs the import path of the application as `app`", "args: {app: app:app}"),
        ("unknown key", "unknown keys: artefact", "did you mean 'artifact'?"),
        ("builder's key", "unknown keys: scale", "belong into `args`"),
        ("no module", "app 'no_such_module:app' cannot be imported", "such as app:app"),
        ("no attribute", "app 'wrapping_apps:missing' cannot be imported", "in wrapping_apps"),
        (
            "no application",
            "app 'wrapping_apps:Deployment' does not refer to an application",
            "bind",
        ),
        ("setting", "on_missing", ""),
        ("compile is text", "`compile` has 'model' in place of a list", "compile: [model"),
        ("compile of none", "`compile` names 'Missing'", "its deployments: Caller, Model"),
        ("compile of the mixin", "`compile` names attributes of Mixed", "classes that are wrapped"),
        ("compile of two", "`compile` is a list, but the application has 2 deployments", "Model"),
    ],
)
def test_a_mistake_is_one_sentence(name: str, message: str, hint: str, answer: dict[str, Any]):
    error = answer["errors"][name]
    assert error["kind"] == "ConfigError"
    assert message in error["message"]
    assert hint in error["hint"]
    assert "\n" not in error["message"]


def test_each_deployment_is_wrapped_once_and_keeps_its_options(answer: dict[str, Any]):
    assert answer["composed"] == {
        "Caller": {"wrapped": True, "max_ongoing_requests": 7, "module": "wrapping_apps"},
        "Model": {"wrapped": True, "max_ongoing_requests": 5, "module": "wrapping_apps"},
    }


def test_a_node_that_two_share_stays_one_deployment(answer: dict[str, Any]):
    assert answer["shared"] == ["Caller", "Caller_1", "Model", "Top"]


def test_settings_are_those_of_the_arguments(answer: dict[str, Any]):
    assert answer["settings"] == {
        "artifact": "s3://bucket/x",
        "record": "signatures",
        "after_ready": "eager",
    }


def test_the_store_is_a_folder_of_the_user_by_default(answer: dict[str, Any]):
    assert answer["default store"] == "file:///data/serve_warm/artifacts"


@pytest.mark.parametrize("name", ["has the mixin", "ray.serve.llm", "no subclass"])
def test_what_is_left_as_it_is(name: str, answer: dict[str, Any]):
    assert answer["left"][name] is False


def test_an_application_that_was_wrapped_stays_as_it_is(answer: dict[str, Any]):
    assert answer["twice"] == [True, True]


def test_the_builder_gets_its_arguments(answer: dict[str, Any]):
    assert answer["built"] == [{"scale": 3}]


def test_the_result_can_be_sent_to_replicas(answer: dict[str, Any]):
    """Before the application's modules are loaded, torch.compile is taken."""
    assert answer["order"] == ["serve_warm.replica.serve.takes_compile", "wrapping_apps"]


def test_a_module_is_reloaded_only_with_serve_run_reload(answer: dict[str, Any]):
    assert answer["reloaded"] == [1, 1, 22]


def test_the_process_that_wraps_gets_torch_compile_back(answer: dict[str, Any]):
    assert answer["torch.compile is torch's"] is True
