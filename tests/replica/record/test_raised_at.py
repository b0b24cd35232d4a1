# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which line of a traceback is the user's."""

from __future__ import annotations

import contextlib

import pytest

from serve_warm import node
from serve_warm.replica.record.raised_at import find_line, is_users


def test_lines_of_this_package_and_of_the_library_are_not_the_users():
    with pytest.raises(ZeroDivisionError) as raised, contextlib.ExitStack() as stack:
        stack.callback(lambda: 1 // 0)
    assert (is_users(node.__file__), is_users(contextlib.__file__)) == (False, False)
    assert find_line(raised.value).startswith("test_raised_at.py:")
