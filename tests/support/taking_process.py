# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Forms of torch.compile in a process that takes it over; prints what became of each, as JSON.

    python taking_process.py '{}'

It cannot run in the process of the tests, because nothing gives torch.compile back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from serve_warm.precompile.taking import SAME_CODE_LIMIT, TAKEN, take_compile

take_compile()

import torch  # noqa: E402 - taken at the import

from serve_warm.precompile.dispatch.session import SESSION  # noqa: E402

OPTIONS: dict[str, Any] = {"backend": "eager"}
FORMS: dict[str, Callable[[], Any]] = {}


def form(make: Callable[[], Any]) -> Callable[[], Any]:
    FORMS[make.__name__] = make
    return make


def double(given: torch.Tensor) -> torch.Tensor:
    return 2 * given


class Doubled(torch.nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return 2 * given


@form
def module() -> Any:
    return torch.compile(Doubled(), **OPTIONS)


@form
def function() -> Any:
    return torch.compile(double, **OPTIONS)


@form
def by_keyword() -> Any:
    return torch.compile(model=double, **OPTIONS)


@form
def bound_method() -> Any:
    return torch.compile(Doubled().forward, **OPTIONS)


@form
def decorator() -> Any:
    @torch.compile(**OPTIONS)
    def decorated(given: torch.Tensor) -> torch.Tensor:
        return 2 * given

    return decorated


@form
def bare_decorator() -> Any:
    @torch.compile
    def decorated(given: torch.Tensor) -> torch.Tensor:
        return 2 * given

    return decorated


@form
def method_of_a_class() -> Any:
    class Model(torch.nn.Module):
        @torch.compile(**OPTIONS)
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return 2 * given

    return Model()


@form
def in_place() -> Any:
    model = Doubled()
    model.compile(**OPTIONS)
    return model


@form
def imported_name() -> Any:
    from torch import compile as renamed

    return renamed(Doubled(), **OPTIONS)


@form
def of_torch_compiler() -> Any:
    return torch.compiler.compile(double, **OPTIONS)  # type: ignore[no-untyped-call]


@form
def own_backend() -> Any:
    return torch.compile(double, backend=lambda graph, _: graph.forward)


@form
def disabled() -> Any:
    return torch.compile(double, disable=True)


@form
def callable_object() -> Any:
    class Call:
        def __call__(self, given: torch.Tensor) -> torch.Tensor:
            return 2 * given

    return torch.compile(Call(), **OPTIONS)


@form
def of_each_request() -> Any:
    for _ in range(SAME_CODE_LIMIT + 3):
        made = torch.compile(lambda given: 2 * given, **OPTIONS)
    return made


@form
def by_a_library_in_torch() -> Any:
    names: dict[str, Any] = {"__name__": "torch.some.library", "torch": torch, "double": double}
    exec("made = torch.compile(double, backend='eager')", names)
    return names["made"]


def main(_: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, make in FORMS.items():
        counts = {id(each) for each in SESSION.counts}
        TAKEN._calls.clear()
        made = make()
        with torch.inference_mode():
            if name == "bare_decorator":  # Inductor would need a C++ compiler
                right = True
            else:
                right = torch.equal(made(torch.ones(3)), torch.full((3,), 2.0))
        noted = TAKEN.calls()
        found[name] = {
            "right": right,
            "left": [each.left for each in noted],
            "names": [each.name for each in noted],
            "has_dispatcher": any(id(each) not in counts for each in SESSION.counts),
            "is_module": isinstance(made, torch.nn.Module),
        }
        kept.append(made)
    errors = {}
    for name, wrong in {"number": 3, "text": "model"}.items():
        try:
            torch.compile(wrong)  # type: ignore[call-overload]
            errors[name] = "none"
        except Exception as error:  # noqa: BLE001 - the error is the answer
            errors[name] = type(error).__name__
    TAKEN.is_late = True
    late = torch.compile(Doubled(), dynamic=True, backend="eager")
    kept.append(late)
    return {
        "forms": found,
        "late": [each.name for each in TAKEN.calls() if each.late],
        "errors": errors,
        "signature": str(torch.compile.__name__),
        "doc": bool(torch.compile.__doc__),
    }


kept: list[Any] = []
"""Dispatchers live as long as what was compiled."""

if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
