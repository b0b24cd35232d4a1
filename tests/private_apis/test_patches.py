# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One way to apply a patch and to revert it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from serve_warm.private_apis import patches
from serve_warm.private_apis.patches import AlreadyReplaced, Change, find, replace, replaced
from serve_warm.private_apis.table import Patch


class Base:
    def inherited(self) -> str:
        return "inherited"


class Foreign(Base):
    def method(self) -> str:
        return "method"

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


def function() -> str:
    return "function"


ROWS = (
    *("function", "Foreign.method", "Foreign.static", "Foreign.of_class", "Foreign.inherited"),
    "Foreign.gone",
)


@pytest.fixture(autouse=True)
def _foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("foreign_package")
    module.Foreign, module.function = type("Foreign", (Base,), {**vars(Foreign)}), function
    monkeypatch.setitem(sys.modules, "foreign_package", module)
    rows = [
        Patch(at=(f"foreign_package:{name}",), level=2, lifetime="trace", why="a test")
        for name in ROWS
    ]
    added = Patch(
        at=("foreign_package:Foreign.added",), level=2, lifetime="trace", why="a test", adds=True
    )
    moved = Patch(
        at=("foreign_package.sets:Moved.f", "foreign_package:Foreign.method"),
        level=2,
        lifetime="trace",
        why="a test",
    )
    monkeypatch.setattr(patches, "BY_NAME", {each.name: each for each in (*rows, added, moved)})


def louder(original: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: f"{original(*args)}!"


def call(name: str) -> str:
    module: Any = sys.modules["foreign_package"]
    return module.function() if name == "function" else getattr(module.Foreign(), name)()


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("function", "function"),
        ("method", "method"),
        ("static", "static"),
        ("of_class", "Foreign"),
        ("inherited", "inherited"),
    ],
)
def test_a_function_is_replaced_in_the_block_only(name: str, before: str) -> None:
    """What a class only inherits is inherited again, and its base is not changed."""
    row = name if name == "function" else f"Foreign.{name}"
    owned = dict(vars(sys.modules["foreign_package"].Foreign))  # type: ignore[attr-defined]

    with replaced([Change(row, louder)]):
        assert call(name) == f"{before}!"
        assert Base().inherited() == "inherited"

    assert call(name) == before
    assert dict(vars(sys.modules["foreign_package"].Foreign)) == owned  # type: ignore[attr-defined]


def test_an_error_in_the_block_reverts_too() -> None:
    with pytest.raises(ZeroDivisionError), replaced([Change("function", louder)]):
        raise ZeroDivisionError

    assert call("function") == "function"


def test_an_error_while_patching_reverts_what_was_patched() -> None:
    """A version in which one replacement cannot be made keeps none of the others."""

    def fail(_: Any) -> Any:
        raise ZeroDivisionError

    changes = [Change("function", louder), Change("Foreign.method", fail)]
    for _ in range(2):  # the second time is not refused as a second patch
        with pytest.raises(ZeroDivisionError), replaced(changes):
            pass

    assert call("function") == "function"


def test_changes_of_one_function_wrap_each_other_in_order() -> None:
    changes = [Change("function", louder), Change("function", lambda f: lambda: f"({f()})")]

    with replaced(changes):
        assert call("function") == "(function!)"

    assert call("function") == "function"


@pytest.mark.parametrize("first", ["process", "block"])
def test_no_second_part_may_replace_the_same_function(first: str) -> None:
    """Two parts that do not know each other would revert in the wrong order."""
    if first == "process":
        assert replace("function", louder)
        with pytest.raises(AlreadyReplaced, match="function is replaced already"):
            replace("function", louder)
    else:
        with (
            replaced([Change("function", louder)]),
            pytest.raises(AlreadyReplaced),
            replaced([Change("function", louder)]),
        ):
            pass
        assert call("function") == "function"
        assert replace("function", louder)

    assert call("function") == "function!"


def test_a_function_that_a_version_lacks_is_left_out() -> None:
    """A start never fails for a row of the table."""
    assert find("Foreign.gone") is None
    assert not replace("Foreign.gone", louder)
    with replaced([Change("Foreign.gone", louder), Change("function", louder)]):
        assert call("function") == "function!"


def test_an_attribute_can_be_added_and_is_removed_again() -> None:
    with replaced([Change("Foreign.added", lambda _: property(lambda _: "added"))]):
        assert sys.modules["foreign_package"].Foreign().added == "added"  # type: ignore[attr-defined]

    assert not hasattr(sys.modules["foreign_package"].Foreign, "added")  # type: ignore[attr-defined]


def test_a_function_is_looked_for_at_its_older_places_too() -> None:
    place = find("Moved.f")

    assert place is not None
    assert (place.attribute, place.is_own) == ("method", True)


def test_a_row_about_many_classes_names_the_class() -> None:
    class Other:
        def method(self) -> str:
            return "other"

    with replaced([Change("Foreign.method", louder, Other)]):
        assert (Other().method(), call("method")) == ("other!", "method")


def test_only_rows_of_the_table_can_be_replaced() -> None:
    with pytest.raises(KeyError, match=r"json\.loads"):
        replace("json.loads", louder)
