# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of torch, as reasons in words why there is no entry."""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_warm._redaction import excerpt
from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.private_apis import dynamo

FAILURES = (
    *(RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError),
    *(ImportError, EOFError, OSError, pickle.PickleError),
)
"""Exceptions raised when an entry cannot be made or loaded. torch raises RuntimeErrors, and
unpickling can raise any exception. The call then falls back to a lower level."""


@contextlib.contextmanager
def as_reasons() -> Iterator[None]:
    """Turn torch's errors in the block into `NoEntry`, with torch's text as one line."""
    try:
        yield
    except FAILURES as error:
        raise NoEntry(describe_failure(error)) from error


def enable_aot_compile() -> contextlib.AbstractContextManager[None]:
    """Allow torch's ahead-of-time compile in the block, even if a setting forbids it (2.11)."""
    return dynamo.patched_settings(enable_aot_compile=True)


def describe_failure(error: BaseException) -> str:
    """Return torch's long error text as one line: failure, cause, place in user code, and fix."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where, code = find_user_code(lines)
    for pattern, what, action in KNOWN:
        if pattern.search(str(error)):
            at = f" at {where}: `{excerpt(code, 100)}`" if where else ""
            return f"{what}{at}. {action}"
    first = lines[0] if lines else "no reason given"
    why = next((line for line in lines if line.startswith(EXPLANATION)), "")
    text = f"{type(error).__name__}: {first} {why.removeprefix(EXPLANATION).strip()}".rstrip()
    hints = (line.removeprefix(HINT).strip() for line in lines if line.startswith(HINT))
    hint = next((each for each in hints if not each.startswith(NO_ACTION)), "")
    at, action = f" ({where})" if where else "", f": {excerpt(hint, 200)}" if hint else ""
    return f"{excerpt(text, 300)}{at}{action}"


def find_user_code(lines: Sequence[str]) -> tuple[str, str]:
    """Return the file, line and code of the innermost frame that torch quotes.

    Frames inside torch are ignored if the text has any frame outside torch.
    """
    found = [(at, match) for at, line in enumerate(lines) if (match := FRAME.match(line))]
    others = [each for each in found if OF_TORCH not in each[1][1]]
    if not found:
        return "", ""
    at, match = (others or found)[-1]
    return f"{Path(match[1]).name}:{match[2]}", lines[at + 1] if at + 1 < len(lines) else ""


KNOWN = (
    (
        re.compile(r"^the trace restarted"),
        "torch restarted its trace at every attempt, and never finished",
        "Compile only a part of the model, with serve_warm.compile",
    ),
    (
        re.compile(
            r"^Caused by: .*\b(np|numpy)\.random\.|method `\w+` of class `(Generator|RandomState)`",
            re.MULTILINE,
        ),
        "it draws random numbers from NumPy, which torch.compile does not trace,",
        "Pass the numbers as an argument, or draw them with torch or with random.uniform",
    ),
    (
        re.compile(r"`(<unknown module>\.)?Random\.\w+[.`]"),
        "it calls a function of Python's random module that torch.compile does not trace,",
        "Use random.uniform or random.randint, or pass the numbers as an argument",
    ),
    (
        re.compile(r"[Dd]ata-dependent (branching|expression)"),
        "data-dependent branching",
        (
            "Compile the parts before and after the branch separately, with serve_warm.compile; or "
            "choose between the branches with torch.where, torch.cond or a number that the caller "
            "passes"
        ),
    ),
    (
        re.compile(r"torch/ao/nn/(intrinsic/)?quantized"),
        "its packed weights are a TorchScript object, which torch.compile does not trace,",
        "Quantize the model with torchao's quantize_ instead of torch.ao.quantization",
    ),
)
"""Known causes of failed traces, each with a pattern for torch's text, a description and advice."""


EXPLANATION = "Explanation:"


HINT = "Hint:"


NO_ACTION = ("This graph break", "Please report", "It may be possible", "Dynamo has detected")
"""Hints from torch that begin with these words suggest no action."""


OF_TORCH = "/site-packages/torch/"


FRAME = re.compile(r'File "([^<].+)", line (\d+), in ')
"""How torch quotes a frame of user code; the innermost frame comes last."""
