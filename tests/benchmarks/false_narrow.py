# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Whether warm-ups of right applications say that their inputs are narrow.

    python tests/benchmarks/false_narrow.py --json tests/benchmarks/results/false_narrow.json

Each model of `served_models` is warmed up as two applications in a process of its own,
without Ray Serve and with the backend `eager`, because only Dynamo decides what compiles again.
`buckets` is compiled for static shapes, and its handler refuses calls that no input declares. So
each narrow line is false. `dynamic` is compiled with `dynamic=True`, and accepts each call. A
narrow line is false there if stock `torch.compile` answers the varied call after the declared ones
without compiling.

A run continues an earlier one, and tries again the models that it names. Needs the packages of
`make architectures`. The exit status is 1 if a line is false, or if a model has no row.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import json
import multiprocessing
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from serve_warm import Input, WarmupMixin  # noqa: E402 - found through the line above
from serve_warm.replica.replay.narrow import vary  # noqa: E402
from served_models.rows import DYNAMIC, Row  # noqa: E402
from served_models.table import ROWS  # noqa: E402


class Refused(Exception):
    """No input declares a call like this."""


def form_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return what an application with buckets knows of a call: names, shapes, dtypes and values."""

    def form(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (tuple(value.shape), value.dtype)
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *map(form, value)]
        if isinstance(value, dict):
            return {key: form(item) for key, item in value.items()}
        return value if isinstance(value, (str, int, float, bool)) else type(value).__name__

    return (*map(form, args), *sorted((name, form(value)) for name, value in kwargs.items()))


def make_app(row: Row, *, dynamic: bool) -> WarmupMixin:
    torch.manual_seed(0)
    model = row.make()
    if isinstance(model, torch.nn.Module):
        model.eval()
    function = getattr(model, row.method) if row.method else model
    sizes = (0, 1) if dynamic and row.shapes == DYNAMIC else row.sizes
    inputs = [_input(f"shape {size}", row.call(model, size)) for size in sizes]
    known = {repr(form_of(item.args, dict(item.kwargs))) for item in inputs}

    class App(WarmupMixin):
        def __init__(self) -> None:
            self.function = function
            self.model = torch.compile(function, backend="eager", dynamic=dynamic)

        def warmup_inputs(self) -> Sequence[Input]:
            return inputs

        async def serve(self, *args: Any, **kwargs: Any) -> None:
            if not dynamic and repr(form_of(args, kwargs)) not in known:
                raise Refused
            for value in kwargs.values():
                if hasattr(value, "reset"):
                    value.reset()  # a cache is filled by one call
            with torch.no_grad():
                self.model(*args, **kwargs)

    # The parameters say which arguments a call can leave out.
    forward = getattr(type(model), row.method or "forward", None)
    with contextlib.suppress(TypeError, ValueError):
        App.serve.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined, arg-type]
    return App()


def _input(name: str, call: Any) -> Input:
    if isinstance(call, tuple):
        return Input(target="serve", args=call, name=name)
    return Input(target="serve", kwargs=call, name=name)


def warm(app: WarmupMixin) -> dict[str, Any]:
    report: dict[str, Any] = asyncio.run(app.warm_up())
    return report


def is_false(row: Row, axes: str) -> bool:
    """Return whether stock torch answers the varied calls of a narrow line without compiling."""
    torch._dynamo.reset()
    app: Any = make_app(row, dynamic=True)
    inputs = app.warmup_inputs()
    trials = [each.item for each in vary(inputs, app)[0] if each.axes == axes]
    if not trials:
        return False  # a branch, which Dynamo itself names
    frames = counters["frames"]  # also of code without a graph
    for item in (*inputs, *inputs):
        asyncio.run(app.serve(*item.args, **item.kwargs))
    before = frames["ok"]
    for item in trials:
        with contextlib.suppress(Exception):  # a model may refuse it
            asyncio.run(app.serve(*item.args, **item.kwargs))
        if frames["ok"] > before:
            return False
    return True


def measure(row: Row) -> dict[str, Any]:
    """Return the narrow lines of both applications of a row, and which are false."""
    found: dict[str, Any] = {"model": row.name}
    for name in ("buckets", "dynamic"):
        torch._dynamo.reset()
        report = warm(make_app(row, dynamic=name == "dynamic"))
        found[name] = {"proven": report["covered"]["proven"], "narrow": report["narrow"]}
    torch._dynamo.reset()
    found["false"] = [
        *found["buckets"]["narrow"],
        *(line for line in found["dynamic"]["narrow"] if is_false(row, line)),
    ]
    return found


def rows_of(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the measured row of each model, or the error that ended it."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        yield from pool.imap(_measured, names)


def _measured(name: str) -> dict[str, Any]:
    try:
        return measure(ROWS[name])
    except Exception as error:  # noqa: BLE001 - reported as the row's result
        return {"model": name, "error": f"{type(error).__name__}: {error}"[:200]}


def main() -> int:
    """Write a row for each model that has none, and for each one that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, help="where rows are written, and read")
    parser.add_argument("names", nargs="*", help="models to try again")
    asked = parser.parse_args()
    rows: dict[str, Any] = {}
    if asked.json.exists():
        rows = {row["model"]: row for row in json.loads(asked.json.read_text())["rows"]}
    machine = {"python": platform.python_version(), "torch": torch.__version__}
    for row in rows_of([name for name in ROWS if name in asked.names or name not in rows]):
        sys.stderr.write(f"{json.dumps(row)}\n")
        rows[row["model"]] = row
        found = {"machine": machine, "rows": [rows[name] for name in ROWS if name in rows]}
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [name for name in ROWS if rows[name].get("false") or "error" in rows[name]]
    sys.stdout.write(f"{len(rows)} models, {len(wrong)} wrong: {', '.join(wrong) or 'none'}\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
