# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""What a call is to compiled code. Nothing is compiled here."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from components import require_module
from serve_warm._redaction import SHOWN
from serve_warm.precompile.calls import signature as call_signature
from serve_warm.precompile.calls.signature import describe, key_of, list_known_values
from serve_warm.precompile.calls.torch_state import tensor_check
from serve_warm.precompile.facts.no_entry import NoEntry

Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - the kind that applications have


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


BASE = ((t(2, 3), 1.0), {"flag": True, "parts": [t(1), {"a": t(2)}]})

OTHERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "shape": ((t(2, 4), 1.0), BASE[1]),
    "dimensions": ((t(2, 3, 1), 1.0), BASE[1]),
    "dtype": ((t(2, 3, dtype=torch.float64), 1.0), BASE[1]),
    "transposed": ((t(3, 2).T, 1.0), BASE[1]),
    "sliced": ((t(2, 6)[:, ::2], 1.0), BASE[1]),
    "int for float": ((t(2, 3), 1), BASE[1]),
    "bool for float": ((t(2, 3), True), BASE[1]),
    "value": ((t(2, 3), 1.5), BASE[1]),
    "int for bool": ((t(2, 3), 1.0), {**BASE[1], "flag": 1}),
    "none for bool": ((t(2, 3), 1.0), {**BASE[1], "flag": None}),
    "text for bool": ((t(2, 3), 1.0), {**BASE[1], "flag": "True"}),
    "keyword for positional": ((t(2, 3),), {"scale": 1.0, **BASE[1]}),
    "default left out": ((t(2, 3),), BASE[1]),
    "one keyword more": ((t(2, 3), 1.0), {**BASE[1], "more": None}),
    "other keyword": ((t(2, 3), 1.0), {"flags": True, "parts": BASE[1]["parts"]}),
    "tuple for list": ((t(2, 3), 1.0), {"flag": True, "parts": (t(1), {"a": t(2)})}),
    "longer list": ((t(2, 3), 1.0), {"flag": True, "parts": [t(1), {"a": t(2)}, None]}),
    "other key": ((t(2, 3), 1.0), {"flag": True, "parts": [t(1), {"b": t(2)}]}),
    "nested deeper": ((t(2, 3), 1.0), {"flag": True, "parts": [[t(1)], {"a": t(2)}]}),
    "tensor for scalar": ((t(2, 3), torch.tensor(1.0)), BASE[1]),
    "scalar for tensor": ((t(2, 3), 1.0), {"flag": True, "parts": [1, {"a": t(2)}]}),
    "dtype value": ((t(2, 3), torch.float32), BASE[1]),
    "size for float": ((t(2, 3), torch.Size([2, 3])), BASE[1]),
    "tuple for float": ((t(2, 3), (2, 3)), BASE[1]),
    "list for float": ((t(2, 3), [2, 3]), BASE[1]),
}


class Anything:
    def __contains__(self, value: Any) -> bool:
        return True


def quick(args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    tensors: list[Any] = []
    # As with an entry for a call of each kind here: others have no key of their own.
    return key_of(args, kwargs, tensors, Anything()), tensors


@pytest.mark.parametrize("args", [pytest.param(call, id=name) for name, call in OTHERS.items()])
def test_another_call_has_another_signature(args: Any):
    """No two calls share an entry; the key and the C++ check tell apart what the text does."""
    key, tensors = quick(*BASE)
    same = tensor_check(tensors)
    other_key, others = quick(*args)
    assert describe(*args)[0] != describe(*BASE)[0]
    assert other_key != key or not same(*others)


@pytest.mark.parametrize(
    "scalar", [0.0, -0.0, 1, True, "a'\\", None, 1e-45, torch.float16, -(2**70)]
)
def test_an_equal_call_is_equal_both_ways(scalar: Any):
    """New tensors with other values, of the same metadata, are the same call."""
    one, two = ((t(2, 3), scalar), {"x": [t(1)]}), ((t(2, 3) * 2, scalar), {"x": [t(1) * 2]})
    key, tensors = quick(*one)
    other_key, others = quick(*two)
    assert describe(*one)[0] == describe(*two)[0]
    assert other_key == key
    assert tensor_check(tensors)(*others)


def test_a_size_is_neither_a_tuple_nor_another_size():
    """A forward can call `numel()` only on a `torch.Size`."""
    calls = [((t(2, 3), size), {}) for size in (torch.Size([2, 3]), torch.Size([2]), (2, 3))]
    structures = [describe(*call)[0].structure for call in calls]
    assert structures[0] == "t0, torch.Size([2, 3])"
    assert len(set(structures)) == len({quick(*call)[0] for call in calls}) == len(calls)
    assert list_known_values(structures[0]) == {(int, 2), (int, 3)}
    assert describe(*calls[0])[0].function("entry")(lambda _, size: size.numel(), None) == 6


def test_a_float_is_known_by_its_value():
    """Each request makes its own object. Both zeros are equal to Python, but `1 / x` differs."""
    one, two = (t(1), float("0.25")), (t(1), float("0.250"))
    assert one[1] is not two[1]
    assert quick(one, {})[0] == quick(two, {})[0]
    assert describe((t(1), 0.0), {})[0] != describe((t(1), -0.0), {})[0]
    assert quick((t(1), 0.0), {})[0] != quick((t(1), -0.0), {})[0]


@pytest.mark.parametrize("scalar", ["text", 3, 0.5])
def test_values_of_requests_are_not_kept(scalar: Any):
    """All values without an entry are one kind of call."""
    key = key_of((t(1), scalar), {"user": scalar}, [], frozenset())
    other = key_of((t(1), scalar * 2), {"user": scalar * 2}, [], frozenset())
    assert key == other
    assert repr(scalar) not in repr(key)


def test_values_that_entries_were_made_for_are_known():
    found = list_known_values("t0, -1, 0.5, 'text', {'key': [2, t1]}, flag=True")
    assert {(int, -1), (float, "0.5"), (str, "text"), (int, 2)} <= found


def test_a_signature_reads_as_the_call_without_texts_of_requests():
    """Reports, logs and state files show the length of a text, and of a key that is no name."""
    said, _ = describe(
        (t(1), "secret"),
        {"user": "a@b.c", "n": 3, "parts": {"k": "v"}, "more": {"a@b.c": "v", "mask": 2}},
    )
    long, _ = describe((t(1), list(range(10_000))), {})

    assert str(said) == (
        "(t0, str[6], user=str[5], n=3, parts={'k': str[1]}, more={str[5]: str[1], 'mask': 2}) "
        f"with {said.tensors[0]}"
    )
    assert "secret" in said.structure
    assert len(str(long)) == SHOWN


def test_a_text_that_no_entry_knows_is_not_kept():
    """A megabyte of it is not copied into a signature either."""
    said, _ = describe((t(1), "x" * 1_000_000), {}, frozenset())
    assert said.structure == "t0, str[1000000]"


ANY_KEY = ("a@b.c", "n" * 41)


@pytest.mark.parametrize("key", ANY_KEY)
def test_a_key_of_a_request_is_not_kept(key: str):
    """A key that does not read as a name is a value: of a mapping, and of keyword arguments."""
    call = ((t(1), {key: 1}), {key: 2})
    said, _ = describe(*call, known=frozenset())
    quick = key_of(*call, [], frozenset())
    length = f"str[{len(key)}]"
    assert said.structure == f"t0, {{{length}: 1}}, **{{{length}: 2}}"
    assert quick == key_of((t(1), {"other key": 1}), {"other key": 2}, [], frozenset())
    assert key not in repr(quick)


@pytest.mark.parametrize("key", [*ANY_KEY, "name"])
def test_a_key_that_an_entry_was_made_for_is_known(key: str):
    call = ((t(1), {key: 1}), {key: 2})
    made, _ = describe(*call)
    known = frozenset(list_known_values(made.structure))
    assert describe(*call, known=known)[0] == made
    assert key_of(*call, [], known) != key_of((t(1), {"b c": 1}), {key: 2}, [], known)
    assert key_of(*call, [], known) != key_of((t(1), {key: 1}), {"b c": 2}, [], known)


def test_a_number_that_cannot_be_printed_has_no_entry():
    """Python refuses to print 5000 digits, and a request does not fail for that."""
    with pytest.raises(NoEntry, match="an int argument is too large: it has 16610 bits"):
        describe((t(1), 10**5000), {}, frozenset())


@pytest.mark.parametrize("name", ["from", "class", "not a name"])
def test_a_keyword_may_have_any_name(name: str):
    """A caller that passes a dict as keywords can use names that Python's grammar forbids."""
    said, tensors = describe((t(1),), {name: 2})

    def callee(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    assert said.function("entry")(callee, *tensors)[1] == {name: 2}


class Subclass(torch.Tensor):
    pass


def conjugate() -> torch.Tensor:
    return torch.ones(2, dtype=torch.complex64).conj()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        pytest.param(lambda: (), "without a tensor", id="nothing"),
        pytest.param(lambda: (1, "a"), "without a tensor", id="no tensor"),
        pytest.param(lambda: (t(1), object()), "builtins.object", id="object"),
        pytest.param(lambda: (t(1), math.nan), "float", id="nan"),
        pytest.param(lambda: (t(1), math.inf), "float", id="infinity"),
        pytest.param(lambda: (t(1), 1j), "complex", id="complex"),
        pytest.param(lambda: (t(1), torch.device("cpu")), "device", id="device"),
        pytest.param(lambda: (t(1), slice(1)), "slice", id="slice"),
        pytest.param(lambda: (t(1), {1: t(1)}), "dict", id="key that is no text"),
        pytest.param(lambda: (OrderedDict(a=t(1)),), "OrderedDict", id="ordered dict"),
        pytest.param(lambda: (Pair(t(1), t(1)),), "Pair", id="named tuple"),
        pytest.param(lambda: (torch.nn.Parameter(t(1)),), "Parameter", id="parameter"),
        pytest.param(lambda: (t(1).as_subclass(Subclass),), "Subclass", id="subclass"),
        pytest.param(lambda: (t(1).requires_grad_(),), "requires grad", id="requires grad"),
        pytest.param(lambda: (conjugate(),), "Conjugate", id="conjugate"),
        pytest.param(lambda: (conjugate().imag,), "Negative", id="negative"),
        pytest.param(lambda: (t(2, 2).to_sparse(),), "Sparse", id="sparse"),
        pytest.param(lambda: (t(2).to("meta"),), "Meta", id="meta"),
        pytest.param(lambda: (torch._efficientzerotensor((2,)),), "ZeroTensor", id="zero tensor"),
        pytest.param(lambda: (torch.nested.nested_tensor([t(1), t(2)]),), "Nested", id="nested"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_what_no_entry_takes_is_named(made: Any, why: str):
    """The reason says which argument: its class, or what its tensor is beside memory."""
    args = made()
    quick(args, {})  # whatever it is, looking it up raises nothing
    with pytest.raises(NoEntry, match=why):
        describe(args, {})


def test_the_reason_for_a_foreign_argument_says_what_to_pass():
    """A cache of transformers has its own way to be compiled."""
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")
    with pytest.raises(NoEntry, match=r"DynamicCache: decode with serve_warm\.compile_generation"):
        describe((t(1), transformers.DynamicCache()), {})
    with pytest.raises(NoEntry, match=r"builtins\.slice: pass plain tensors"):
        describe((t(1), slice(1)), {})


def test_one_tensor_passed_twice_has_no_entry():
    """The graph would have one input for both, and two other tensors would be one to it."""
    one = t(2)
    _, tensors = quick((t(2), t(2)), {})
    same = tensor_check(tensors)
    with pytest.raises(NoEntry, match="twice"):
        describe((one, one), {})
    assert not same(one, one)


def test_a_signature_becomes_a_function_that_makes_the_call():
    args, kwargs = (t(2), 1.0, "it's", torch.float16, None), {"more": [{"a": (t(1), -0.0)}, ()]}
    signature, tensors = describe(args, kwargs)
    seen = []
    signature.function("entry")(lambda *a, **k: seen.append((a, k)), *tensors)
    assert repr(seen) == repr([(args, kwargs)])


@pytest.mark.slow
@pytest.mark.parametrize("under", ["device", "function mode", "dispatch mode", "vmap", "jvp"])
def test_what_stands_between_a_call_and_torch_has_no_entry(under: str):
    """A transform or a mode changes what operations do, and compiled code has none of them left."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Logged(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            return function(*args, **(kwargs or {}))

    class Passing(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            return function(*args, **(kwargs or {}))

    def read(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(NoEntry, match="intercepts the call"):
            call_signature.state()
        return x

    if under == "vmap":
        torch.vmap(read)(t(2, 3))
    elif under == "jvp":
        torch.func.jvp(read, (t(2),), (t(2),))
    else:
        context: Any = {
            "device": torch.device("cpu"),
            "function mode": Passing(),
            "dispatch mode": Logged(),
        }
        with context[under]:
            read(t(2))


def test_a_tensor_inside_a_transform_is_not_plain():
    """A tensor inside vmap has the class of a tensor, but stands for many tensors."""

    def read(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(NoEntry, match="FuncTorchBatched"):
            describe((x,), {})
        return x

    torch.vmap(read)(t(2, 3))


@pytest.mark.parametrize(("made_in", "called_in"), [(True, False), (False, True)])
def test_inference_mode_is_not_no_grad(made_in: bool, called_in: bool):
    """Outputs of one are not those of the other; the check in C++ tells them apart."""
    plain = t(2)
    with torch.inference_mode(made_in), torch.no_grad():
        same = tensor_check([plain])
        here = same(plain)
    with torch.inference_mode(called_in), torch.no_grad():
        there = same(plain)
    assert (here, there) == (True, False)


def test_a_condition_on_what_a_view_is_of_does_not_hold_for_others():
    """A tensor of the same sizes and strides may be no view, and have no base to ask."""
    dynamic = call_signature.Dynamic(conditions=("L['t0']._base.size()[0] == L['t0'].size()[0]",))
    view = t(4, 2)[:]
    assert dynamic.holds([view])
    assert not dynamic.holds([t(4, 2)])


@pytest.mark.parametrize(
    ("condition", "sizes"),
    [
        ("math.ceil((torch.sym_float(L['t0'].size()[0] // 2) - 0.5) / 1.0) == 3", (6, 8)),
        ("math.floor(torch._sym_sqrt(L['t0'].size()[0])) == 3", (9, 16)),
        ("(L['t0'].size()[0] if L['t0'].size()[0] > 2 else 0) >= 3", (3, 2)),
        ("max(1, min(5, abs(-L['t0'].size()[0]))) == 4 and not False", (4, 5)),
        ("8 % (L['t0'].size()[0] - 1) == 0", (5, 1)),
        ("2.0 ** (L['t0'].size()[0] ** 2) < 1e9", (5, 40)),
    ],
)
def test_a_condition_is_computed_as_torch_writes_it(condition: str, sizes: tuple[int, int]):
    """The second size does not fit, or the condition cannot be computed for it."""
    dynamic = call_signature.Dynamic(conditions=(condition,))
    assert [dynamic.holds([t(rows)]) for rows in sizes] == [True, False]


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("IsNonOverlappingAndDenseIndicator(L['t0'].size()[0], 1) == 1", "IsNonOverlapping"),
        ("L['t0'].size()[0] == s58", "s58"),
    ],
)
def test_a_condition_that_needs_an_unknown_name_is_refused_at_the_build(condition: str, name: str):
    """A request must not be what finds out that the name is missing."""
    with pytest.raises(NoEntry, match=f"computed with {name}"):
        call_signature.Dynamic(conditions=(condition,))
