# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The plan of an entry: what must be known to load and call its code."""

from __future__ import annotations

from typing import Any, Final, TypedDict


class Plan(TypedDict, total=False):
    """Data on how to load and call an entry's code. The plan is stored with the code."""

    once: str
    """Reason why the entry's calls may not run twice; empty if they may."""
    settles: bool
    """Whether the code depends on state that the callable creates on its first calls."""
    settings: dict[str, object]
    """At level 2: Inductor settings for loading the entry, if any."""
    copies: list[int]
    """Numbers of the graph's outputs that a call copies, because they share memory only in compiled
    code; missing if there are none."""
    tensors: list[str]
    """At level 2: the tensors and tensor parts that the graph received in the build, in its order
    (`names.describe_tensor`, `tensor_parts.describe_parts`)."""
    numbers: dict[str, list[list[object]]]
    """Numbers that a call draws from Python's `random` module, if any, by the name of the global
    that draws the numbers (`python_random.Draw`)."""
    inputs: list[dict[str, Any]]
    """Where each input comes from, and its properties at the build
    (`libraries.inputs.TensorSource`). This key and all keys below exist only at level 3."""
    outputs: int
    existing: list[list[list[object]]]
    """The steps to each existing object that the result or an assigned attribute contains
    (`facts.Facts.chain`)."""
    result: list[object]
    """How the result is built from the outputs."""
    writes: bool
    """Whether the library writes into its inputs."""
    draws: bool
    """Whether the library uses random numbers."""
    device: str
    """The device of the library; this key is missing if the device is the CPU."""
    captures: str
    """Reason why no CUDA graph is captured. Empty if a graph is captured; missing if the user did
    not request CUDA graphs."""


ONCE: Final = "once"
"""Key in an entry's plan. The value is the reason why the entry's calls may not run twice, or an
empty string if they may."""


SETTLES: Final = "settles"
"""Key in the plan of an entry whose callable creates state on its first calls."""


SETTLING_CALLS = 3
"""Maximum number of settling calls of one kind in a build, or during the start of a replica. The
last call must change nothing."""


LIBRARY_LEVEL = 3
"""The level that stores its code in libraries. A replica at this level does not import Dynamo when
it starts."""


ASSIGNING = "assigning"
"""Kind of result for calls that also assign attributes."""
