# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A process that makes, loads or compiles rows of the table, each in its own fork.

    python process.py make|load|compile|trace

It reads one question per line, `{"name", "level", "folder", "limit_s"}`, and prints one answer per
line. A fork shares nothing with other rows except the imports before it. Making and loading run in
two processes. So a value that depends on the process, such as the address of an object, differs
between them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import serve_warm
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile import building
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.trace.dynamo_hooks import all_guarded
from serve_warm.precompile.trace.set_orders import Orders
from served_models.rows import DYNAMIC, Row
from served_models.table import ROWS, SECOND

SHOWN = 400
"""Maximum length of a reason, in characters."""


def make(row: Row, level: int, folder: Path) -> dict[str, Any]:
    """Make the entries of a row in `folder`. Return why entries are missing, if they are."""
    model, target = _model_of(row)
    compiled = serve_warm.compile(target, level=level, dynamic=row.shapes == DYNAMIC)
    sizes = row.sizes[:1] if row.shapes == DYNAMIC else row.sizes
    began = time.perf_counter()
    # Only entries are measured: a call without an entry runs eagerly.
    with _entries_only(), building() as build:
        for more in sizes:
            _call(compiled, _inputs_of(row, model, more))
    make_s, table = time.perf_counter() - began, build.table
    for file, data in table.to_files(level).items():
        (folder / file).write_bytes(data)
    entries = [entry for unit in table.units.values() for entry in unit.entries]
    # An entry below the requested level has the reason.
    reasons = [*table.refused.values(), *(e.reason for e in entries if e.level < level)]
    return {
        "refused": "; ".join(dict.fromkeys(reasons)),
        "make_s": round(make_s, 2),
        "facts": sum(len(entry.facts.facts) for entry in entries),
    }


def load(row: Row, level: int, folder: Path) -> dict[str, Any]:
    """Load the entries, make each call, and compare with another model that runs eagerly."""
    watch = watch_process()
    model, target = _model_of(row)
    compiled = serve_warm.compile(target, level=level, dynamic=row.shapes == DYNAMIC)
    found, calls = [], []
    with _entries_only():
        began = time.perf_counter()
        why = SESSION.load(folder)
        counts = watch.counts()
        for more in row.sizes:
            given = _inputs_of(row, model, more)
            # A start replays its inputs until a pass has no settling call.
            out, made = _until_settled(lambda given=given: _call(compiled, given))
            found.append(out)
            calls.append(made)
            load_s = time.perf_counter() - began if more == 0 else load_s  # noqa: F821
        compiles = (watch.counts() - counts).compiles
        uses = SESSION.uses()
        reference, eager = _model_of(row)
        expected = []
        for more, made in zip(row.sizes, calls, strict=True):
            given = _inputs_of(row, reference, more)
            expected.append([_call(eager, given) for _ in range(made)][-1])
    return {
        "level": min((use.level for use in uses), default=1),
        "reason": why or "; ".join(dict.fromkeys(use.reason for use in uses if use.reason)),
        "same_class": all(type(a) is type(b) for a, b in zip(found, expected, strict=True)),
        "error": max(_error(a, b) for a, b in zip(found, expected, strict=True)),
        "compiles": compiles,
        "load_s": round(load_s, 3),
    }


def _until_settled(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of the first call that is not a settling call, and the number of calls."""
    calls, before = 0, None
    while SESSION.settling_calls != before:
        before = SESSION.settling_calls
        out = call()
        calls += 1
    return out, calls


def compile_cold(row: Row, level: int, folder: Path) -> dict[str, Any]:
    """Return the seconds of torch.compile's first call, with an empty cache."""
    del level
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    model, target = _model_of(row)
    compiled = torch.compile(target, dynamic=row.shapes == DYNAMIC)
    given = _inputs_of(row, model, 0)
    began = time.perf_counter()
    with torch.inference_mode():
        _call(compiled, given)
    return {"torch_compile_s": round(time.perf_counter() - began, 2)}


def trace(row: Row, level: int, folder: Path) -> dict[str, Any]:
    """Return over how many sets the first call of a row iterates, in an order of their own.

    Nothing is compiled. A trace without an entry, such as one with a graph break, fails.
    """
    del level, folder
    model, target = _model_of(row)
    given, orders = _inputs_of(row, model, 0), Orders()
    settings = {"allow_rnn": True, "specialize_float": True}
    with torch.inference_mode(), all_guarded(orders.begin), torch._dynamo.config.patch(settings):
        compiled = torch.compile(target, backend="eager", fullgraph=True, dynamic=False)
        _call(compiled, given)
    return {"sets": orders.sets}


@contextlib.contextmanager
def _entries_only() -> Iterator[None]:
    with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        yield


def _model_of(row: Row) -> tuple[Any, Any]:
    """Return a model, and its compiled part.

    Raises:
        CannotMake: the model cannot be made.
    """
    torch.manual_seed(0)
    try:
        model = row.make().eval()
        return model, getattr(model, row.method) if row.method else model
    except Exception as error:
        raise CannotMake(f"the model cannot be made: {type(error).__name__}: {error}") from error


class CannotMake(Exception):
    """A model of the table does not exist in these versions; the row must be repaired."""


def _inputs_of(row: Row, model: Any, more: int) -> Any:
    torch.manual_seed(1)
    return row.call(model, more)


def _call(called: Any, given: Any) -> Any:
    torch.manual_seed(2)
    return called(*given) if isinstance(given, tuple) else called(**given)


def _error(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest value."""
    worst = 0.0
    pairs = list(zip(_leaves(found), _leaves(expected), strict=True))
    for one, other in pairs:
        if not isinstance(one, torch.Tensor):
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        if not one.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(one, other) else 1.0)
            continue
        if not torch.equal(one.isnan(), other.isnan()):
            return float("inf")
        one, other = one.nan_to_num().double(), other.nan_to_num().double()  # noqa: PLW2901
        if one.numel():
            scale = other.abs().max().clamp_min(1e-6)
            worst = max(worst, float((one - other).abs().max() / scale))
    return worst


def _leaves(value: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


DO: dict[str, Callable[[Row, int, Path], dict[str, Any]]] = {
    "make": make,
    "load": load,
    "compile": compile_cold,
    "trace": trace,
}


def _shorten(text: str) -> str:
    """Shorten a reason, and remove the folders of this machine."""
    return re.sub(r"/[^\s'\"]*/(?=[^\s/'\"]+)", "", " ".join(text.split()))[:SHOWN]


def _in_child(do: str, question: dict[str, Any], pipe: int) -> None:
    torch.set_num_threads(1)
    row, folder = {**ROWS, **SECOND}[question["name"]], Path(question["folder"])
    try:
        answer = DO[do](row, question["level"], folder)
        for key in ("refused", "reason"):
            if key in answer:
                answer[key] = _shorten(answer[key])
    # The table shows every failure of a row.
    except BaseException as error:  # noqa: BLE001
        said = str(error) if isinstance(error, CannotMake) else f"{type(error).__name__}: {error}"
        answer = {"failed": _shorten(said)}
        if os.environ.get("SHOW_ERRORS"):
            import traceback

            traceback.print_exception(error)
    os.write(pipe, json.dumps(answer).encode())


def ask(do: str, question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question in a fork. If the fork exceeds its time limit, it is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(2, 1)  # libraries print to stdout
        _in_child(do, question, writing)
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], question["limit_s"])
    said = os.read(reading, 1 << 16) if ready else b""
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if said:
        answer: dict[str, Any] = json.loads(said)
        return answer
    return {"failed": "the process died" if ready else f"took over {question['limit_s']} s"}


def main(do: str) -> None:
    """Answer questions until there are no more."""
    # Import these here, so that no fork needs to. A start of level 3 does not import the compiler.
    names = ["transformers.modeling_utils"]
    if do != "load":
        names += ["torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codecache"]
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        answer = ask(do, json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
