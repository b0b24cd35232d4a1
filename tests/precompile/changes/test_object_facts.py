# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Objects with a compiled method that an application makes for each request."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import serve_warm
from calls_counted import calls_of
from levels import build, eager_below, entries_of, served, started
from models import in_inference_mode, one_watch  # noqa: F401 - fixtures
from serve_warm._redaction import redact
from serve_warm.precompile.calls import signature as call_signature
from serve_warm.precompile.changes.fact_watch import FactWatch
from serve_warm.precompile.dispatch.binding import OBJECTS_WITHOUT_SHARING
from serve_warm.precompile.dispatch.same_code import CALLABLES_WITHOUT_SHARING
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.facts import names
from serve_warm.precompile.facts.table import Facts

OFFSET = 1.0
"""A global that the methods read."""

FIRST = CALLABLES_WITHOUT_SHARING + OBJECTS_WITHOUT_SHARING + 1
"""Number of objects after which the objects of a class share what is known about them."""


def rows() -> torch.Tensor:
    return torch.ones(4, 4)


def linear() -> nn.Module:
    return nn.Linear(4, 4, bias=False).eval()


class Plain:
    """An object for one request. Its method reads the object, the class, a helper and a global."""

    factor = 2.0

    def __init__(self, layer: nn.Module, scale: float = 2.0) -> None:
        self.layer, self.scale = layer, scale

    @serve_warm.compile(dynamic=False)
    def run(self, given: torch.Tensor) -> torch.Tensor:
        found = torch.addmm(given, self.layer(given), given, alpha=self.scale, beta=self.factor)
        return self.helped(torch.addmm(found, found, given, alpha=OFFSET))

    def helped(self, given: torch.Tensor) -> torch.Tensor:
        return given @ given.mT


class Slotted:
    """An object that cannot store its compiled method."""

    __slots__ = ("__weakref__", "layer", "scale")
    factor = 2.0

    def __init__(self, layer: nn.Module, scale: float = 2.0) -> None:
        self.layer, self.scale = layer, scale

    run = Plain.run
    helped = Plain.helped


class AtLevel3(Plain):
    run = serve_warm.compile(Plain.run._function, dynamic=False, level=3)


class InInit:
    """An object that compiles its method itself."""

    factor = 2.0
    helped = Plain.helped

    def __init__(self, layer: nn.Module, scale: float = 2.0) -> None:
        self.layer, self.scale = layer, scale
        self.run = serve_warm.compile(self.forward, dynamic=False)

    forward = Plain.run._function


KINDS = [
    pytest.param(Plain, id="plain"),
    pytest.param(Slotted, id="slots"),
    pytest.param(InInit, id="compiled in __init__"),
]


def eager(each: Any) -> torch.Tensor:
    answer: torch.Tensor = Plain.run._function(each, rows())
    return answer


def serve(kind: Any, layer: nn.Module, times: int = FIRST) -> None:
    for _ in range(times):
        each = kind(layer)
        getattr(each, "run", each)(rows())


@pytest.fixture
def layer() -> nn.Module:
    return linear()


@pytest.fixture
def started_with(tmp_path: Path, layer: nn.Module) -> Callable[..., Any]:
    """Return a block in which entries for some scales of a class are loaded."""

    def start(kind: Any, *scales: float, **arguments: Any) -> Any:
        calls = [lambda s=scale: kind(layer, s).run(rows()) for scale in scales or (2.0,)]
        build(tmp_path, *calls, level=3 if kind is AtLevel3 else 2)
        return started(tmp_path, **arguments)

    return start


@pytest.mark.parametrize(
    "kind",
    [*KINDS, pytest.param(AtLevel3, marks=[pytest.mark.slow, pytest.mark.long], id="level 3")],
)
def test_a_new_object_costs_no_look_at_its_class(kind, layer, started_with):
    slow = (
        names.name_of_class,
        names.identity,
        names.describe_tensor,
        call_signature.describe,
        call_signature.state,
        torch.compile,
        FactWatch.__init__,
        FactWatch.refresh,
        Facts.objects,
    )
    with started_with(kind):
        serve(kind, layer)
        with calls_of(*slow) as found:
            answers = [kind(layer).run(rows()) for _ in range(50)]

    assert found == {}
    torch.testing.assert_close(answers[-1], eager(kind(layer)))


@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_freed_with_their_parts(kind: Any, started_with: Callable[..., Any]):
    with started_with(kind):
        kept = []
        for _ in range(2 * FIRST):
            own = linear()
            each = kind(own)
            each.run(rows())
            kept += [weakref.ref(own), weakref.ref(own.weight), weakref.ref(each)]
            del own, each
        gc.collect()

        assert [reference() for reference in kept] == [None] * len(kept)


def changed_helper(_: Any, given: torch.Tensor) -> torch.Tensor:
    return given @ given


CLASS_CHANGES: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "method": lambda kind, patch: patch.setattr(kind, "helped", changed_helper),
    "value": lambda kind, patch: patch.setattr(kind, "factor", 3.0),
    "global": lambda kind, patch: patch.setitem(globals(), "OFFSET", 5.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CLASS_CHANGES)
def test_a_class_that_changes_between_two_objects_is_noticed(
    kind: Any, name: str, layer: nn.Module, started_with: Any, monkeypatch: pytest.MonkeyPatch
):
    """The next object runs at level 1. If the class is restored, entries answer again."""
    with started_with(kind), eager_below():
        serve(kind, layer)
        with monkeypatch.context() as patch:
            CLASS_CHANGES[name](kind, patch)
            changed = served(lambda: kind(layer).run(rows()))
            expected = eager(kind(layer))
        restored = served(lambda: kind(layer).run(rows()))

    assert (changed.level, restored.level) == (1, 2)
    assert name != "global" or "OFFSET is float 5.0, but was float 1.0" in changed.reason
    torch.testing.assert_close(changed.value, expected)
    torch.testing.assert_close(restored.value, eager(kind(layer)))


def test_new_code_of_a_method_is_noticed_within_a_second(layer, started_with):
    """As for an object that stays (`RELOOK_S`)."""
    clock = SimpleNamespace(now=0.0)
    before = Plain.helped.__code__
    with started_with(Plain, clock=lambda: clock.now), eager_below():
        serve(Plain, layer)
        Plain.helped.__code__ = changed_helper.__code__
        clock.now += 1.1
        try:
            changed = served(lambda: Plain(layer).run(rows()))
            expected = eager(Plain(layer))
        finally:
            Plain.helped.__code__ = before

    assert changed.level == 1
    torch.testing.assert_close(changed.value, expected)


def test_a_flag_is_noticed_within_a_second(layer, started_with):
    """No object here stays long enough to have a watch that reads the flags."""
    clock = SimpleNamespace(now=0.0)
    with started_with(Plain, clock=lambda: clock.now), eager_below():
        serve(Plain, layer)
        torch.backends.mkldnn.set_flags(False)
        try:
            clock.now += 1.1
            changed = served(lambda: Plain(layer).run(rows()))
        finally:
            torch.backends.mkldnn.set_flags(True)
        clock.now += 1.1
        restored = served(lambda: Plain(layer).run(rows()))

    assert (changed.level, restored.level) == (1, 2)


def _replace_layer(each: Any) -> None:
    each.layer = nn.Sequential(linear())


def _replace_scale(each: Any) -> None:
    each.scale = 3.0


def _add_hook(each: Any) -> None:
    each.layer = linear()
    each.layer.register_forward_hook(lambda _, __, out: out + 1)


def _widen(each: Any) -> None:
    each.layer = nn.Linear(4, 4).eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [_replace_layer, _replace_scale, _add_hook, _widen])
def test_an_object_that_differs_is_noticed(kind, change, layer, started_with):
    """Both before its first call and between two calls. Other objects are served by the entry."""
    with started_with(kind), eager_below():
        serve(kind, layer)
        new, used = kind(layer), kind(layer)
        used.run(rows())
        change(new)
        change(used)
        found = [served(lambda e=e: e.run(rows())) for e in (new, kind(layer), used)]

    assert [each.level for each in found] == [1, 2, 1]
    for each, of in zip(found, (new, kind(layer), used), strict=True):
        torch.testing.assert_close(each.value, eager(of))


@pytest.mark.parametrize("kind", KINDS)
def test_objects_of_two_entries_take_turns(kind, layer, started_with):
    with started_with(kind, 2.0, 3.0), eager_below():
        serve(kind, layer)
        found = []
        for number in range(12):
            each = kind(layer, 2.0 + number % 2)
            found.append((served(lambda e=each: e.run(rows())), eager(each)))
            each.scale = 3.0 - number % 2
            found.append((served(lambda e=each: e.run(rows())), eager(each)))

    assert {result.level for result, _ in found} == {2}
    for result, expected in found:
        torch.testing.assert_close(result.value, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_withdrawn_entry_answers_no_later_object(kind, layer, started_with):
    with started_with(kind), eager_below():
        serve(kind, layer)
        before = kind(layer)
        before.run(rows())
        assert SESSION.loaded is not None
        (entry,) = entries_of(SESSION.loaded)
        SESSION.withdraw(entry, "withdrawn: it is wrong", eagerly=False)
        found = [served(lambda e=e: e.run(rows())) for e in (before, kind(layer))]

    assert [each.level for each in found] == [1, 1]
    assert {each.reason for each in found} == {"withdrawn: it is wrong"}


def test_checks_against_eager_that_begin_later_see_new_objects(layer, started_with):
    """Calls that were known before the checks are looked up again."""
    with started_with(Plain):
        serve(Plain, layer)
        checks = SESSION.begin_checks(one_in=0, can_compile=lambda: True, on_failure=lambda _: None)
        assert checks is not None
        checks.serve()
        serve(Plain, layer)
        assert checks.report().results["same"] == 1


def test_a_class_with_the_same_name_is_another_class(tmp_path: Path, layer: nn.Module):
    def make(factor: float) -> Any:
        def helped(self: Any, given: torch.Tensor) -> torch.Tensor:
            return torch.addmm(given, given, given, alpha=factor)

        return type("Made", (Plain,), {"helped": helped, "__module__": __name__})

    first, second = make(2.0), make(3.0)
    build(tmp_path, lambda: first(layer).run(rows()))
    with started(tmp_path), eager_below():
        serve(first, layer)
        found = [served(lambda k=k: k(layer).run(rows())) for k in (second, first)]

    for each, kind in zip(found, (second, first), strict=True):
        torch.testing.assert_close(each.value, eager(kind(layer)))


def test_threads_get_the_answers_of_their_own_objects(layer, started_with, monkeypatch):
    """While objects of two entries are made in all threads, and a global changes."""
    wrong: list[Any] = []

    def work(scale: float) -> None:
        with torch.inference_mode():
            for _ in range(100):
                each = Plain(layer, scale)
                answer = each.run(rows())
                if not any(torch.allclose(answer, right) for right in expected[scale]):
                    wrong.append(answer)

    with started_with(Plain, 2.0, 3.0), eager_below(), torch.inference_mode():
        expected: dict[float, list[torch.Tensor]] = {2.0: [], 3.0: []}
        for offset in (1.0, 5.0):
            monkeypatch.setitem(globals(), "OFFSET", offset)
            for scale, right in expected.items():
                right.append(eager(Plain(layer, scale)))
        threads = [threading.Thread(target=work, args=(2.0 + n % 2,)) for n in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for offset in (1.0, 5.0):
                monkeypatch.setitem(globals(), "OFFSET", offset)
                threads[0].join(0.002)

    assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_objects_without_an_entry_are_not_looked_up_again(kind, layer, started_with):
    """A call that no entry was made for is counted for each of 50 objects, but described once."""
    other = torch.ones(4, 8)[:, ::2]
    with started_with(kind), eager_below():
        for _ in range(FIRST):
            kind(layer).run(other)
        before = _calls_at_level_1()
        with calls_of(call_signature.describe, redact) as found:
            for _ in range(50):
                kind(layer).run(other)

        assert found == {}
        assert _calls_at_level_1() == before + 50


@pytest.mark.parametrize("kind", KINDS)
def test_each_object_that_differs_has_its_own_reason(kind, layer, started_with):
    with started_with(kind), eager_below():
        serve(kind, layer)
        calls = [lambda s=scale: kind(layer, s).run(rows()) for scale in (3.0, 4.0, 3.0)]
        reasons = [served(call).reason for call in calls]
        with calls_of(redact) as found:
            for call in calls:
                call()

    assert ["scale is float 3.0" in each for each in reasons] == [True, False, True]
    assert "scale is float 4.0" in reasons[1]
    assert found == {}


def _calls_at_level_1() -> int:
    return sum(use.calls for use in SESSION.uses() if use.level == 1)


def make_closure(layer: nn.Module, scale: float = 2.0, **arguments: Any) -> Any:
    """Return a compiled closure, as an application may make for each request."""

    def run(given: torch.Tensor) -> torch.Tensor:
        return torch.addmm(given, layer(given), given, alpha=scale)

    return serve_warm.compile(run, dynamic=False, **arguments)


def test_a_new_closure_makes_no_watch_and_is_not_compiled(tmp_path: Path, layer: nn.Module):
    build(tmp_path, lambda: make_closure(layer)(rows()))
    with started(tmp_path):
        serve(make_closure, layer)
        with calls_of(torch.compile, FactWatch.__init__) as found:
            answers = [make_closure(layer)(rows()) for _ in range(50)]
    assert found == {}
    torch.testing.assert_close(answers[-1], torch.addmm(rows(), layer(rows()), rows(), alpha=2.0))


def test_a_closure_that_differs_is_noticed_and_freed(tmp_path: Path, layer: nn.Module):
    build(tmp_path, lambda: make_closure(layer)(rows()))
    with started(tmp_path), eager_below():
        serve(make_closure, layer)
        found = [served(lambda s=s: make_closure(layer, s)(rows())) for s in (2.0, 3.0, 2.0)]
        one = make_closure(linear())
        one(rows())
        gone = weakref.ref(one)
        del one
        gc.collect()

    assert gone() is None
    assert [each.level for each in found] == [2, 1, 2]
    torch.testing.assert_close(
        found[1].value, torch.addmm(rows(), layer(rows()), rows(), alpha=3.0)
    )


def test_wrong_arguments_fail_in_the_first_call(layer: nn.Module):
    """Also for closures with code that was compiled with other arguments."""
    for _ in range(FIRST):
        make_closure(layer, backend="eager")
    with pytest.raises(RuntimeError, match="nonsense"):
        make_closure(layer, mode="nonsense")(torch.ones(2, 4))
