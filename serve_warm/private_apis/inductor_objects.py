# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Types of Inductor's objects: the attributes and methods that serve_warm uses, and no others.

Seen in torch 2.11 to 2.15. Only type checkers read this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from serve_warm.private_apis.torch_c import Operator


class FallbackKernel(Protocol):
    """A call of an operator for which Inductor writes no kernel (`ir.FallbackKernel`)."""

    @property
    def op_overload(self) -> Operator:
        """The operator."""

    def get_stack_traces(self) -> Iterable[str]:
        """Return the stacks of the user's code from which the call comes, each as text."""


class CppBuilder(Protocol):
    """One run of the C++ compiler (`cpp_builder.CppBuilder`)."""

    def get_target_file_path(self) -> str:
        """Return the path of the file that the compiler makes."""

    def get_command_line(self) -> str:
        """Return the command line of the compiler."""
