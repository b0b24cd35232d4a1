# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What torch.compile returns in a wrapped application, for each form in which it is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ray import cloudpickle

from processes import answer_of
from serve_warm.precompile.taking import compile_taken

TAKEN = (
    *("module", "function", "by_keyword", "bound_method", "decorator", "bare_decorator"),
    *("method_of_a_class", "in_place", "imported_name", "of_torch_compiler"),
)
LEFT = {
    "own_backend": "its backend is a function or object",
    "disabled": "it has disable=True",
    "callable_object": "its target is not a module, a function or a method",
    "of_each_request": "the same code was compiled 16 times before, as in each request",
}
SILENT = ("by_a_library_in_torch",)


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    found: dict[str, Any] = answer_of("taking_process.py", {})
    return found


def test_all_forms_give_right_results(answer: dict[str, Any]):
    assert answer["forms"].keys() == {*TAKEN, *LEFT, *SILENT}
    assert all(each["right"] for each in answer["forms"].values())


@pytest.mark.parametrize("name", TAKEN)
def test_a_form_gets_entries(name: str, answer: dict[str, Any]):
    form = answer["forms"][name]
    assert form["has_dispatcher"]
    assert form["left"] == [""]


@pytest.mark.parametrize("name", LEFT)
def test_a_form_stays_torchs_own_with_the_reason(name: str, answer: dict[str, Any]):
    assert LEFT[name] in answer["forms"][name]["left"]


@pytest.mark.parametrize("name", SILENT)
def test_what_torch_compiles_itself_is_not_listed(name: str, answer: dict[str, Any]):
    """The application did not ask for it."""
    form = answer["forms"][name]
    assert (form["has_dispatcher"], form["left"]) == (False, [])


def test_modules_stay_modules(answer: dict[str, Any]):
    forms = answer["forms"]
    assert all(forms[name]["is_module"] for name in ("module", "in_place", "imported_name"))


def test_calls_after_ready_are_late(answer: dict[str, Any]):
    assert answer["late"] == ["__main__.Doubled"]


def test_wrong_targets_raise_torchs_own_errors(answer: dict[str, Any]):
    assert answer["errors"] == {"number": "AssertionError", "text": "AssertionError"}


def test_the_function_keeps_its_name_and_doc(answer: dict[str, Any]):
    assert (answer["signature"], answer["doc"]) == ("compile", True)


def test_a_name_imported_from_torch_can_be_pickled():
    """Ray pickles a wrapped class with what its module has imported by name."""
    with compile_taken():
        taken = torch.compile
    assert taken is not torch.compile
    again = cloudpickle.loads(cloudpickle.dumps(taken))
    assert again(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2)).shape == (1, 2)
