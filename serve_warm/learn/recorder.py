# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the kinds of calls that traffic makes of each compiled callable, in bounded memory.

A kind has the structure of the arguments, numbers among them, and the shapes, strides, dtypes and
devices of the tensors. Strings of requests and values of tensors are not recorded. Where entries
answer, the dispatcher has the counts, and a call costs nothing here.
"""

from __future__ import annotations

import ast
import threading
import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from serve_warm._redaction import is_name
from serve_warm.compiler import evidence
from serve_warm.learn.known_calls import LONGEST_NAME, KnownCalls
from serve_warm.learn.recorded import LONGEST, MODEL_THREAD, TENSOR, RecordedCall, class_name
from serve_warm.learn.replayed import can_make
from serve_warm.precompile import SESSION, NoEntry
from serve_warm.precompile.recording import (
    Signature,
    describe_structure,
    is_any_autocast_enabled,
    list_living,
    ordered_counts,
)

if TYPE_CHECKING:
    from serve_warm.precompile.recording import CallCounts, Use

Tensor = torch.Tensor
is_inference_mode_enabled = torch.is_inference_mode_enabled
is_grad_enabled = torch.is_grad_enabled
# In this module, because a name of another one takes longer to look up, and each call does.

MOST_ITEMS = 32
"""Largest number of items of a container that is recorded. Longer ones have a request's content,
such as token ids."""

MOST_NUMBERS = 4
"""Largest number of numbers in a list or tuple that is recorded: sizes of an image are fewer, and
token ids of a prompt are more."""

MOST_IN_ALL = 256
"""Largest number of items in all containers of a call together. More take much memory."""

KINDS_KEPT = 1024
"""Maximum number of kinds. If another one comes, the rarer half is forgotten, so that a scanner's
10,000 kinds do not displace those of users."""


COUNTED_KEPT = 4 * KINDS_KEPT
"""Maximum number of kinds that dispatchers count, which is bounded by what each counts. They are
told here once, so one that was forgotten would be lost for good."""

KINDS_SOON = 64
"""Number of kinds after which a new one is not written at once: a scanner brings many."""

LARGEST = 1 << 128
"""Integers of this size or larger are not recorded: no entry takes them."""


class _Tensor(NamedTuple):
    """What is kept of a tensor. Its text takes ten times as long to make, so it is made later."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_inference: bool = False
    has_attributes: bool = False
    layout: torch.layout = torch.strided
    is_lazy: bool = False
    """Whether it is a conjugate or a negative that is not computed yet."""

    def __str__(self) -> str:
        """Return the text that `facts.names.describe_tensor` returns for the tensor."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Tensor {dtype}{list(self.shape)} strides {list(self.stride)} on {self.device}"


OF_MODES, OF_TENSOR = 3, len(_Tensor._fields)
"""How many items of a key come from the modes of torch, and from each tensor."""


class _Text(NamedTuple):
    """What is kept of a string."""

    length: int


class _Other(NamedTuple):
    """What is kept of an argument of another class."""

    kind: type


class _NotKept(NamedTuple):
    """What is kept of an argument that is not recorded."""

    why: str


reached: ContextVar[set[int] | None] = ContextVar("serve_warm_reached", default=None)
"""The kinds of calls that the request of this context has made so far, if requests are recorded."""

Kept = tuple[Any, ...]
"""What is kept of the arguments of a call: a tuple of the positional ones, and a mapping of the
others. For a call with tensors alone, the key of its kind, which has all that is kept, and takes no
time to make."""


@dataclass(slots=True)
class _Kind:
    counts: CallCounts
    arguments: Signature | Kept
    """The signature, of a kind that the dispatcher counts."""
    on_model_thread: bool
    modes: dict[str, bool] | None = None
    """None if the arguments have them, as those of a call with tensors alone do."""
    made_inside: tuple[bool, ...] = ()
    """Whether each tensor was made in inference mode; empty if the arguments say so."""
    why_not: str = ""
    """Why a replay could not make such a call; empty, too, if only the arguments say so."""
    calls: int = 0
    """Calls that the dispatcher does not count."""
    before: int = 0
    """Calls that the dispatcher had counted when recording began."""
    use: str = ""
    """How the dispatcher tells its calls from others (`call_counts.kind_of`)."""

    def describe(self) -> tuple[dict[str, bool], str]:
        """Return the modes of the calls, and why a replay could not make one, if that is known."""
        if self.modes is None and isinstance(self.arguments, tuple):
            return _modes_of(self.arguments), _why_not_of(self.arguments)
        return self.modes or {}, self.why_not

    def signature(self) -> Signature:
        """Return the signature of the calls.

        Raises:
            NoEntry: a replay could not make such a call.
        """
        _, why_not = self.describe()
        if why_not:
            raise NoEntry(why_not)
        signature = _signature(self.arguments)
        if len(signature.structure) > LONGEST:
            raise NoEntry(TOO_LONG)
        for each in signature.tensors:
            found = TENSOR.fullmatch(each)
            if found is not None and not can_make(found["dtype"]):
                raise NoEntry(f"a tensor is {found['dtype']}, which torch cannot fill")
        return signature

    def recorded(self, number: int, *, calls: int) -> RecordedCall:
        """Return the kind as a plan lists it. `number` is that of its callable.

        Raises:
            NoEntry: as `signature` does.
        """
        signature = self.signature()
        return RecordedCall(
            callable=self.counts.name,
            number=number,
            structure=signature.structure,
            tensors=signature.tensors,
            modes=self.describe()[0],
            normal_tensors=self._normal_tensors(),
            on_model_thread=self.on_model_thread,
            calls=calls,
        )

    def _normal_tensors(self) -> tuple[int, ...]:
        made_inside = self.made_inside
        if self.modes is None and isinstance(self.arguments, tuple):
            made_inside = tuple(each.is_inference for each in _tensors_of(self.arguments))
        normal = tuple(number for number, is_inside in enumerate(made_inside) if not is_inside)
        return normal if len(normal) < len(made_inside) else ()

    def total(self, counted: _DispatcherCounts) -> int:
        """Return the number of calls since recording began."""
        if not isinstance(self.arguments, Signature):
            return self.calls
        return max(0, counted.of(self.counts, self.use) - self.before)


class _DispatcherCounts:
    """The dispatchers' counts, each looked at once, without those of replays."""

    def __init__(self, replayed: Mapping[tuple[int, str], int]) -> None:
        self._replayed = dict(replayed)
        self._by_kind: dict[int, Counter[str]] = {}

    def of(self, counts: CallCounts, kind: str) -> int:
        """Return the number of calls of one kind."""
        return self._of(counts)[kind]

    def all_of(self, counts: CallCounts) -> int:
        """Return the number of all calls."""
        return self._of(counts).total()

    def _of(self, counts: CallCounts) -> Counter[str]:
        found = self._by_kind.get(id(counts))
        if found is None:
            found = self._by_kind[id(counts)] = Counter()
            for (_, _, _, kind), number in counts.by_use.copy().items():
                found[kind] += number
            for (of, kind), number in self._replayed.items():
                if of == id(counts):
                    found[kind] -= number
        return found


class Recorder:
    """Records the calls of this process. Never raises an exception into a call."""

    def __init__(self) -> None:
        self.is_recording = False
        """Whether calls count. Replays before READY do not."""
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._known = KnownCalls[_Kind](KINDS_KEPT)
        """Kinds of `_kinds`, which a call finds here before its key is made."""
        self._counted: dict[tuple[object, ...], _Kind] = {}
        """The kinds that dispatchers count."""
        self._replayed = Counter[tuple[int, str]]()
        """What replays after READY added to the dispatchers' counts, as those of an update do."""
        self.new = threading.Event()
        """Set at each new kind of call, until many are known."""
        self.others: set[int] | None = None
        """Gets the kinds of calls outside the contexts of requests, if requests are recorded."""
        self._strange = 0
        """The number of calls whose arguments cannot be looked at."""
        self._forgotten = 0
        """The number of calls that no dispatcher counts, and whose kind was forgotten."""
        self._counted_before: weakref.WeakKeyDictionary[CallCounts, int] = (
            weakref.WeakKeyDictionary()
        )
        """What the dispatchers had counted when recording began."""
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Count calls from now on, and forget those so far."""
        with self._lock:
            self._strange = self._forgotten = 0
            self._replayed.clear()
            counted = _DispatcherCounts({})
            for each in SESSION.counts:
                self._counted_before[each] = counted.all_of(each)
            for kind in (*self._kinds.values(), *self._counted.values()):
                kind.calls, kind.before = 0, 0
                kind.before = kind.total(counted)
        self.is_recording = True

    def note(
        self, counts: CallCounts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        """Count a call that the dispatcher does not count."""
        if not self.is_recording:
            return
        if evidence.current is not None and evidence.is_replay():  # an update proves again
            return
        try:
            kind = self._known.find(id(counts), args, kwargs)
            if kind is None:
                kind = self._look(counts, args, kwargs)
            kind.calls += 1
            kinds = reached.get()
            kinds = self.others if kinds is None else kinds
            if kinds is not None:
                kinds.add(id(kind))
        except Exception:  # noqa: BLE001 - an argument's own methods may raise anything
            self._strange += 1

    def _look(
        self, counts: CallCounts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> _Kind:
        """Return the kind of a call by all that tells kinds apart."""
        key_parts: list[object] = [id(counts), is_inference_mode_enabled(), is_grad_enabled()]
        inner: list[int] = []
        for value in args:
            key_parts += _metadata(value) if type(value) is Tensor else (_key(value, inner),)
        for name in kwargs:
            key_parts += (_short(name), _key(kwargs[name], inner))
        if inner or (len(args) > 1 and len({*map(id, args)}) < len(args)):
            inner += [id(each) for each in args if type(each) is Tensor]
            if len({*inner}) < len(inner):
                key_parts.append(SAME_TENSOR)
        if is_any_autocast_enabled():
            key_parts.append(AUTOCAST)
        key = tuple(key_parts)
        kind = self._kinds.get(key)
        if kind is None:
            return self._note_new(counts, args, kwargs, key)
        with self._lock:
            if self._kinds.get(key) is kind:  # else its calls would be lost
                self._known.add(id(counts), args, kwargs, kind)
        return kind

    def _note_new(
        self,
        counts: CallCounts,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        key: tuple[object, ...],
    ) -> _Kind:
        # Another argument than a tensor adds one item to the key, and the two notes at its end one.
        if not kwargs and len(key) >= OF_MODES + OF_TENSOR * len(args):  # tensors alone, mostly
            return self._add(key, _Kind(counts, key, _is_model_thread()))
        kept = tuple(map(_keep, args)), _keep(dict(kwargs))
        tensors = _tensors_in(args, kwargs)
        why_not = AUTOCAST if key[-1] is AUTOCAST else _why_not(tensors)
        made_inside = tuple(each.is_inference() for each in tensors)
        modes = _modes(any(made_inside))
        if _count_items(kept) > MOST_IN_ALL:
            # All such calls are one kind, because the key would be as large as what is kept.
            key, kept, why_not = (id(counts), MANY), ((), {}), MANY
            if key in self._kinds:
                return self._kinds[key]
        kind = _Kind(counts, kept, _is_model_thread(), modes, made_inside, why_not)
        return self._add(key, kind)

    def note_kind(
        self,
        counts: CallCounts,
        use: Use,
        signature: Signature,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Record a kind of calls that the dispatcher counts."""
        key = id(counts), use[3]
        if not use[3] or key in self._counted:  # or it is counted together with others
            return
        made_inside = tuple(each.is_inference() for each in tensors)
        modes = _modes(any(made_inside))
        why_not = _why_not_kept(signature.structure)
        if why_not:
            signature = Signature(structure="", tensors=())
        where = _is_model_thread()
        made = _Kind(counts, signature, where, modes, made_inside, why_not, use=use[3])
        with self._lock:
            if len(self._counted) >= COUNTED_KEPT:
                living, counted = list_living(), _DispatcherCounts(self._replayed)
                by_use = sorted(
                    self._counted.items(),
                    key=lambda item: (
                        id(item[1].counts) not in living,
                        -item[1].total(counted),
                    ),
                )
                self._counted = dict(by_use[: COUNTED_KEPT // 2])
            self._say_new(len(self._counted))
            kind = self._counted.setdefault(key, made)
        kinds = reached.get()
        kinds = self.others if kinds is None else kinds
        if kinds is not None:
            kinds.add(id(kind))

    def note_replayed(self, counts: CallCounts, use: Use, calls: int) -> None:
        """Record that calls which the dispatcher counts are those of a replay, not of traffic."""
        if self.is_recording:
            self._replayed[id(counts), use[3]] += calls

    def calls(self) -> tuple[list[RecordedCall], dict[str, int]]:
        """Return the kinds that were called, most frequent first, and what was not recorded.

        The latter is the number of calls by the reason.
        """
        with self._lock:
            kinds = [*self._kinds.values(), *self._counted.values()]
        numbers = _numbers()
        found: dict[tuple[object, ...], RecordedCall] = {}
        not_recorded: dict[str, int] = {}
        if self._strange:
            not_recorded["an argument cannot be looked at"] = self._strange
        counted, lost = _DispatcherCounts(self._replayed), self._forgotten
        lost += sum(counted.all_of(c) - self._counted_before.get(c, 0) for c in SESSION.counts)
        for kind in kinds:
            total = kind.total(counted)
            if not total or id(kind.counts) not in numbers:
                continue
            lost -= total if isinstance(kind.arguments, Signature) else 0
            try:
                call = kind.recorded(numbers[id(kind.counts)], calls=total)
            except NoEntry as error:
                not_recorded[str(error)] = not_recorded.get(str(error), 0) + total
                continue
            known = found.get(call.key)  # of a callable that is gone, whose model was loaded again
            calls = total if known is None else total + known.calls
            found[call.key] = call if known is None else replace(known, calls=calls)
        if lost > 0:
            not_recorded[RARE] = lost
        return sorted(found.values(), key=lambda each: -each.calls), not_recorded

    def name_kinds(self, kinds: Collection[int]) -> list[str] | None:
        """Return what tells kinds apart in all replicas, for the ids that `reached` gets.

        Returns None if a kind has been forgotten, or cannot be replayed.
        """
        with self._lock:
            known = {id(each): each for each in (*self._kinds.values(), *self._counted.values())}
        numbers = _numbers()
        found = [known[each] for each in kinds if each in known]
        if len(found) < len(kinds) or any(id(each.counts) not in numbers for each in found):
            return None
        with suppress(NoEntry):
            calls = [each.recorded(numbers[id(each.counts)], calls=0) for each in found]
            return sorted(repr(each.key) for each in calls)
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the kinds so far as plain data."""
        calls, not_recorded = self.calls()
        return {"calls": [each.to_json() for each in calls], "not_recorded": not_recorded}

    def _add(self, key: tuple[object, ...], kind: _Kind) -> _Kind:
        with self._lock:
            if len(self._kinds) >= KINDS_KEPT:
                by_calls = sorted(self._kinds.items(), key=lambda item: -item[1].calls)
                kept = KINDS_KEPT // 2
                self._kinds = dict(by_calls[:kept])
                self._known.clear()
                self._forgotten += sum(each.calls for _, each in by_calls[kept:])
            self._say_new(len(self._kinds))
            return self._kinds.setdefault(key, kind)

    def _say_new(self, known: int) -> None:
        if known < KINDS_SOON and not self.new.is_set():  # which is faster than to set it
            self.new.set()


def _metadata(value: torch.Tensor) -> tuple[object, ...]:
    """Return the fields of `_Tensor`, on all of which a replay depends.

    They begin with a `torch.Size`, as no other part of a key does.
    """
    dtype = value.dtype
    return (
        value.shape,
        value.stride(),
        dtype,
        value.device,
        value.requires_grad,
        value.is_inference(),
        bool(value.__dict__),
        value.layout,
        value.is_neg() or (dtype.is_complex and value.is_conj()),
    )


def _key(value: Any, inner: list[int]) -> object:  # noqa: PLR0911 - the hot path
    """Return the part of a key for an argument, and add the ids of its tensors to `inner`."""
    kind = type(value)
    if kind is Tensor:
        inner.append(id(value))
        return _metadata(value)
    if kind in _VALUES:
        if kind is float and value - value != 0:  # no NaN equals another
            return _NOT_FINITE
        if kind is int and not -LARGEST < value < LARGEST:
            return _LARGE
        if kind is float and value == 0:  # 0.0 equals -0.0, and entries tell them apart
            return kind, repr(value)
        return kind, value
    if kind in _CONTAINERS:
        if (most := _too_many(kind, value)) is not None:
            return kind, most
        if kind is dict:
            # Only a plain name is compared: a key of another class could run code of its own.
            return tuple(
                (_short(name) if type(name) is str else type(name), _key(each, inner))
                for name, each in value.items()
            )
        return (kind, *value) if kind is torch.Size else (kind, *[_key(e, inner) for e in value])
    return kind


def _too_many(kind: type, value: Any) -> int | None:
    """Return the number that the items of a container exceed, if it is not recorded."""
    count = len(value)
    if count > MOST_ITEMS:
        return MOST_ITEMS
    if count > MOST_NUMBERS and (kind is list or kind is tuple):
        numbers = sum(type(each) is int or type(each) is float for each in value)
        return MOST_NUMBERS if numbers > MOST_NUMBERS else None
    return None


def _why_many(kind: type, most: int) -> str:
    items = "numbers" if most == MOST_NUMBERS else "items"
    return f"an argument is a {kind.__name__} of more than {most} {items}"


def _short(name: str) -> object:
    return name if len(name) <= LONGEST_NAME else len(name)


_NOT_FINITE, _LARGE = (float, "not finite"), (int, "large")

_CONTAINERS = frozenset({list, tuple, dict, torch.Size})

_VALUES = frozenset({int, float, bool, type(None), torch.dtype})
"""Classes of arguments whose values are recorded."""


def _count_items(kept: Any) -> int:
    if type(kept) is dict:
        return len(kept) + sum(map(_count_items, kept.values()))
    if type(kept) is list or type(kept) is tuple:
        return len(kept) + sum(map(_count_items, kept))
    return 0


def _keep(value: Any) -> Any:  # noqa: PLR0911 - one for each class
    """Return what is kept of an argument: nothing of a request's content but numbers."""
    kind = type(value)
    if kind is torch.Tensor:
        return _Tensor(value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    if kind in _CONTAINERS and (most := _too_many(kind, value)) is not None:
        return _NotKept(_why_many(kind, most))
    if kind is int and not -LARGEST < value < LARGEST:
        return _NotKept("an int argument is too large")
    if kind is list or kind is tuple:
        return kind(map(_keep, value))
    if kind is dict:
        return {_keep_name(name): _keep(each) for name, each in value.items()}
    if kind is torch.Size or kind in _VALUES:
        return value
    return _Text(len(value)) if kind is str else _Other(kind)


def _keep_name(name: Any) -> Any:
    if type(name) is not str:
        return _keep(name) if type(name) in _VALUES else _Other(type(name))
    return name if is_name(name) else _Text(len(name))


def _signature(arguments: Signature | Kept) -> Signature:
    """Return the signature of a call.

    Raises:
        NoEntry: no entry can take an argument of this kind.
    """
    if isinstance(arguments, Signature):
        return arguments
    args, kwargs = arguments if len(arguments) == 2 else (_tensors_of(arguments), {})
    kept: list[_Tensor] = []
    structure, _ = describe_structure(
        [_as_argument(each, kept) for each in args],
        {_as_argument(name, kept): _as_argument(each, kept) for name, each in kwargs.items()},
        known=frozenset(),
    )
    if not kept:
        raise NoEntry("it is called without a tensor")
    if any(each.requires_grad for each in kept):
        raise NoEntry(REQUIRES_GRAD)
    return Signature(structure=structure, tensors=tuple(map(str, kept)))


def _tensors_of(key: tuple[Any, ...]) -> list[_Tensor]:
    """Return the tensors in the key of a call with tensors alone, which begins with its modes."""
    starts = range(OF_MODES, len(key) - OF_TENSOR + 1, OF_TENSOR)
    return [_Tensor._make(key[at : at + OF_TENSOR]) for at in starts]


def _modes_of(key: tuple[Any, ...]) -> dict[str, bool]:
    """Return the modes of a call with tensors alone, by its key."""
    return {
        "inference_tensors": any(each.is_inference for each in _tensors_of(key)),
        "inference_mode": key[1],
        "grad_mode": key[2],
    }


def _why_not_of(key: tuple[Any, ...]) -> str:
    """Return why a replay could not make a call with tensors alone, by its key."""
    if key[-1] in (AUTOCAST, SAME_TENSOR):
        return str(key[-1])
    for each in _tensors_of(key):
        if each.has_attributes:
            return "a tensor has attributes of its own, as those of mark_dynamic"
        if each.layout != torch.strided or each.is_lazy:
            return "a tensor is sparse, or a lazy conjugate or negative"
    return ""


def _as_argument(kept: Any, tensors: list[_Tensor]) -> Any:
    """Return an argument with the same structure as the one of which this was kept."""
    if isinstance(kept, _Tensor):
        tensors.append(kept)
        return torch.empty(0)
    if isinstance(kept, _Text):
        return "\0" * kept.length
    if isinstance(kept, _NotKept):
        raise NoEntry(kept.why)
    if isinstance(kept, _Other):
        raise NoEntry(f"an argument is a {class_name(kept.kind)}")
    if type(kept) is list or type(kept) is tuple:
        return type(kept)(_as_argument(each, tensors) for each in kept)
    if type(kept) is dict:
        return {
            _as_argument(name, tensors): _as_argument(each, tensors) for name, each in kept.items()
        }
    return kept


def _why_not(tensors: Sequence[torch.Tensor]) -> str:
    """Return why a replay could not make a call with these, beside what the structure says."""
    if len({*map(id, tensors)}) < len(tensors):
        return SAME_TENSOR
    for each in tensors:
        if each.__dict__:
            return "a tensor has attributes of its own, as those of mark_dynamic"
        if each.layout != torch.strided or each.is_conj() or each.is_neg():
            return "a tensor is sparse, or a lazy conjugate or negative"
    return ""


def _why_not_kept(structure: str) -> str:
    """Return why the structure of a call is not kept; empty if it is."""
    if len(structure) > LONGEST:
        return TOO_LONG
    if structure.count(",") < MOST_NUMBERS:
        return ""
    sizes = set[ast.AST]()
    for node in ast.walk(ast.parse(f"f({structure})", mode="eval")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # torch.Size
            sizes.update(node.args)
        elif isinstance(node, ast.Dict) and len(node.keys) > MOST_ITEMS:
            return _why_many(dict, MOST_ITEMS)
        elif isinstance(node, (ast.List, ast.Tuple)):
            kind: type = list if isinstance(node, ast.List) else tuple
            kind = torch.Size if node in sizes else kind
            values = [_value(each) for each in node.elts]
            if (most := _too_many(kind, values)) is not None:
                return _why_many(kind, most)
    return ""


def _value(node: ast.expr) -> object:
    """Return the value of a constant; None for anything else."""
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return node.value if isinstance(node, ast.Constant) else None


TOO_LONG = "its arguments are too many"
RARE = f"their kinds are rarer than the {KINDS_KEPT} that are kept"
MANY = f"the arguments have more than {MOST_IN_ALL} items"
SAME_TENSOR = "a tensor is passed more than once"
AUTOCAST = "it is called under autocast"
REQUIRES_GRAD = "a tensor requires grad: make such arguments under torch.inference_mode() too"


def _tensors_in(args: Sequence[object], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in args:
        _add_tensors(value, found)
    for value in kwargs.values():
        _add_tensors(value, found)
    return found


def _add_tensors(value: Any, into: list[torch.Tensor]) -> None:
    # The classes first: `isinstance` asks the metaclass of tensors, which takes 0.3 µs.
    if type(value) is Tensor:
        into.append(value)
    elif isinstance(value, dict):
        for each in value.values():
            _add_tensors(each, into)
    elif isinstance(value, (list, tuple)):
        if len(value) <= MOST_ITEMS:
            for each in value:
                _add_tensors(each, into)
    elif isinstance(value, torch.Tensor):
        into.append(value)


def _modes(has_inference_tensor: bool) -> dict[str, bool]:  # noqa: FBT001 - one of three modes
    return {
        "inference_tensors": has_inference_tensor,
        "inference_mode": is_inference_mode_enabled(),
        "grad_mode": is_grad_enabled(),
    }


def _is_model_thread() -> bool:
    return threading.current_thread().name.startswith(MODEL_THREAD)


def _numbers() -> dict[int, int]:
    """Return the number of each callable among those of its name, by the id of its counts.

    Those that are gone have one number together: mostly, one model was loaded again and again.
    """
    living, seen, numbers = list_living(), Counter[str](), {}
    for counts in ordered_counts():
        numbers[id(counts)] = seen[counts.name]
        if id(counts) in living:
            seen[counts.name] += 1
    return numbers
