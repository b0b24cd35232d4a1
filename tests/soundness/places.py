# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Places of values in the fuzzer's programs, and the definitions that the programs use.

A place is a root (an attribute of the model, a global, a closure...) or a step from the root to the
value (an item, a property...). Any root and any steps can be combined. In the texts, `{n}` is the
number of the read, `{v}` the value or the expression that reads it, `{o}` another value, and `{h}`
the expression of the holder. Changes refer to the model as `m`, and to its module as `M`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Place:
    """A root or a step: a way to hold a value, and to read it."""

    get: tuple[str, ...]
    """Expressions that read the value. Each read uses one of them."""
    make: str = ""
    """Expression of a step's holder with the value."""
    empty: str = ""
    """Expression of a step's holder without the value."""
    put: str = ""
    """Statement that replaces the value. Empty if the holder is immutable."""
    cut: str = ""
    """Statement that deletes the value."""
    probes: tuple[str, ...] = ()
    """Expressions of whether the value exists, or of it or a default."""
    top: str = ""
    """Definitions of a root at the top of the module."""
    body: str = ""
    """Definitions of a root in the class of the model."""
    init: str = ""
    """Statements of a root in `__init__`."""
    empty_top: str = ""
    empty_body: str = ""
    empty_init: str = ""
    """Definitions and statements of a root that does not hold the value."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Other changes of the place: name and statement."""


def attributes(h: str, name: str = "v") -> tuple[str, ...]:
    return (
        f"{h}.{name}",
        f"getattr({h}, '{name}')",
        f"getattr({h}, '{name}', 9)",
        f"operator.attrgetter('{name}')({h})",
    )


def own_attributes(h: str, name: str = "v") -> tuple[str, ...]:
    return (*attributes(h, name), f"{h}.__dict__['{name}']", f"vars({h})['{name}']")


def probes(h: str, name: str = "v") -> tuple[str, ...]:
    return (f"hasattr({h}, '{name}')", f"getattr({h}, '{name}', None) is None")


def own_probes(h: str, name: str = "v") -> tuple[str, ...]:
    return (*probes(h, name), f"'{name}' in {h}.__dict__", f"'{name}' in vars({h})")


def reads(h: str, name: str = "v") -> dict[str, tuple[str, ...]]:
    return {"get": attributes(h, name), "probes": probes(h, name)}


def own_reads(h: str, name: str = "v") -> dict[str, tuple[str, ...]]:
    return {"get": own_attributes(h, name), "probes": own_probes(h, name)}


def kept(target: str, **texts: Any) -> Place:
    """Return a place whose value is assigned to a target, and deleted from it."""
    return Place(put=f"{target} = {{v}}", cut=f"del {target}", **texts)


def of_kind(kind: str, target: str, given: str = "{v}", **texts: Any) -> Place:
    """Return a step through an object of a class."""
    return kept(target, make=f"{kind}({given})", empty=f"{kind}()", **texts)


def keyed(make: str, empty: str, **texts: Any) -> Place:
    """Return a step through a mapping, by default with the reads that all mappings have."""
    get, found = ("{h}['k']", "{h}.get('k')"), ("'k' in {h}", "{h}.get('k') is None")
    return kept("{h}['k']", make=make, empty=empty, **{"get": get, "probes": found, **texts})


ROOTS: dict[str, Place] = {
    "attribute": kept("m.a{n}", init="self.a{n} = {v}", **own_reads("self", "a{n}")),
    "global": kept("M.G_{n}", top="G_{n} = {v}", get=("G_{n}",)),
    "class attribute": kept(
        "M.Model.c{n}",
        body="c{n} = {v}",
        get=(*attributes("self", "c{n}"), "type(self).c{n}", "Model.c{n}"),
        probes=(*probes("self", "c{n}"), "hasattr(Model, 'c{n}')"),
        more={"instance attribute over it": "m.c{n} = {o}"},
    ),
    "inherited class attribute": kept(
        "M.Base_{n}.i{n}",
        top="class Base_{n}:\n    i{n} = {v}",
        empty_top="class Base_{n}:\n    pass",
        get=(*attributes("self", "i{n}"), "Base_{n}.i{n}"),
        probes=probes("self", "i{n}"),
        more={
            "instance attribute over it": "m.i{n} = {o}",
            "class attribute over it": "M.Model.i{n} = {o}",
        },
    ),
    "closure": kept(
        "M.f_{n}.__closure__[0].cell_contents",
        top="def scope_{n}(v):\n    def read():\n        return v\n    return read\n"
        "f_{n} = scope_{n}({v})",
        get=("f_{n}()",),
        more={"function of the factory": "M.f_{n} = M.scope_{n}({o})"},
    ),
    "closure of a held function": Place(
        top="def scope_{n}(v):\n    def read():\n        return v\n    return read",
        init="self.f{n} = scope_{n}({v})",
        get=("self.f{n}()",),
        put="m.f{n} = M.scope_{n}({v})",
        cut="del m.f{n}.__closure__[0].cell_contents",
        more={"contents of the cell": "m.f{n}.__closure__[0].cell_contents = {o}"},
    ),
    "default": Place(
        top="def default_{n}(v={v}):\n    return v",
        get=("default_{n}()", "default_{n}.__defaults__[0]"),
        put="M.default_{n}.__defaults__ = ({v},)",
        cut="M.default_{n}.__defaults__ = None",
    ),
    "keyword default": Place(
        top="def keyword_{n}(*, v={v}):\n    return v",
        get=("keyword_{n}()", "keyword_{n}.__kwdefaults__['v']"),
        put="M.keyword_{n}.__kwdefaults__['v'] = {v}",
        cut="M.keyword_{n}.__kwdefaults__ = None",
        more={"new dict of defaults": "M.keyword_{n}.__kwdefaults__ = {{'v': {o}}}"},
    ),
    "function attribute": kept(
        "M.owner_{n}.v",
        top="def owner_{n}():\n    return 0\nowner_{n}.v = {v}",
        empty_top="def owner_{n}():\n    return 0",
        **reads("owner_{n}"),
    ),
    "default of a method": Place(
        body="def d{n}(self, v={v}):\n    return v",
        get=("self.d{n}()", "type(self).d{n}(self)"),
        put="M.Model.d{n}.__defaults__ = ({v},)",
        cut="M.Model.d{n}.__defaults__ = None",
        more={"method of the instance": "m.d{n} = functools.partial(same, {o})"},
    ),
    "property of the model": kept(
        "m.under{n}",
        init="self.under{n} = {v}",
        body="@property\ndef p{n}(self):\n    return self.under{n}",
        empty_body="@property\ndef p{n}(self):\n    return self.under{n}",
        get=("self.p{n}", "getattr(self, 'p{n}')"),
        probes=("hasattr(self, 'p{n}')",),
    ),
    "class method": kept(
        "M.Model.u{n}",
        body="u{n} = {v}\n@classmethod\ndef k{n}(cls):\n    return cls.u{n}",
        get=("self.k{n}()", "Model.k{n}()"),
    ),
    "submodule attribute": kept(
        "m.s{n}.v",
        init="self.s{n} = nn.Identity(); self.s{n}.v = {v}",
        empty_init="self.s{n} = nn.Identity()",
        **own_reads("self.s{n}"),
    ),
    "attribute of a module in a ModuleList": kept(
        "m.l{n}[1].v",
        init="self.l{n} = nn.ModuleList([nn.Identity(), nn.Identity()]); self.l{n}[1].v = {v}",
        empty_init="self.l{n} = nn.ModuleList([nn.Identity(), nn.Identity()])",
        get=("self.l{n}[1].v", "self.l{n}[-1].v", "[each for each in self.l{n}][1].v"),
        probes=probes("self.l{n}[1]"),
        more={"another module": "m.l{n}[1] = nn.Identity(); m.l{n}[1].v = {o}"},
    ),
    "parameter attribute": kept(
        "m.weight.v{n}",
        init="self.weight.v{n} = {v}",
        **reads("self.weight", "v{n}"),
    ),
    "buffer attribute": kept(
        "m.b{n}.v",
        init="self.register_buffer('b{n}', torch.zeros(2)); self.b{n}.v = {v}",
        empty_init="self.register_buffer('b{n}', torch.zeros(2))",
        **reads("self.b{n}"),
    ),
    "partial": Place(
        top="partial_{n} = functools.partial(same, {v})",
        get=("partial_{n}()", "partial_{n}.args[0]"),
        put="M.partial_{n} = functools.partial(same, {v})",
    ),
    "held partial": Place(
        init="self.q{n} = functools.partial(same, v={v})",
        get=("self.q{n}()", "self.q{n}.keywords['v']"),
        put="m.q{n} = functools.partial(same, v={v})",
        more={"keyword of the partial": "m.q{n}.keywords['v'] = {o}"},
    ),
    "module attribute": kept(
        "M.settings_{n}.v",
        top="settings_{n} = types.ModuleType('fuzz_settings_{n}')\n"
        "sys.modules['fuzz_settings_{n}'] = settings_{n}\nsettings_{n}.v = {v}",
        empty_top="settings_{n} = types.ModuleType('fuzz_settings_{n}')\n"
        "sys.modules['fuzz_settings_{n}'] = settings_{n}",
        **reads("settings_{n}"),
    ),
    "class of a registry": kept(
        "M.Registry_{n}.v",
        top="class Registry_{n}:\n    v = {v}",
        empty_top="class Registry_{n}:\n    pass",
        get=attributes("Registry_{n}"),
        probes=(*probes("Registry_{n}"), "'v' in vars(Registry_{n})"),
    ),
    "__getattr__ of a Python module": Place(
        top=(
            "settings_{n} = types.ModuleType('fuzz_settings_{n}')\n"
            "sys.modules['fuzz_settings_{n}'] = settings_{n}\n"
            "settings_{n}.held = {v}\n"
            "def getattr_{n}(name):\n"
            "    if name != 'v':\n"
            "        raise AttributeError(name)\n"
            "    return settings_{n}.held\n"
            "settings_{n}.__getattr__ = getattr_{n}"
        ),
        get=("settings_{n}.v", "getattr(settings_{n}, 'v')"),
        put="M.settings_{n}.held = {v}",
        more={"attribute over it": "M.settings_{n}.v = {o}"},
    ),
    "property of a base class": kept(
        "m.under{n}",
        top="class Base_{n}:\n    @property\n    def i{n}(self):\n        return self.under{n}",
        init="self.under{n} = {v}",
        get=("self.i{n}", "getattr(self, 'i{n}')"),
        more={
            "property": "M.Base_{n}.i{n} = property(lambda self: {o})",
            "class attribute over it": "M.Model.i{n} = {o}",
        },
    ),
    "method of a base class": kept(
        "m.under{n}",
        top="class Base_{n}:\n    def i{n}(self):\n        return self.under{n}",
        init="self.under{n} = {v}",
        get=("self.i{n}()", "super().i{n}()", "Base_{n}.i{n}(self)"),
        more={
            "method": "M.Base_{n}.i{n} = lambda self: {o}",
            "method over it": "M.Model.i{n} = lambda self: {o}",
            "attribute over it": "m.i{n} = lambda: {o}",
        },
    ),
    "item of the module's __dict__": Place(
        init="self.__dict__['a{n}'] = {v}",
        get=own_attributes("self", "a{n}"),
        put="m.__dict__['a{n}'] = {v}",
        cut="m.__dict__.pop('a{n}')",
        probes=own_probes("self", "a{n}"),
        more={
            "update of __dict__": "vars(m).update(a{n}={o})",
            "object.__setattr__": "object.__setattr__(m, 'a{n}', {o})",
        },
    ),
    "enum value": Place(
        top="class Enum_{n}(enum.Enum):\n    A = {v}",
        get=("Enum_{n}.A.value", "Enum_{n}['A'].value"),
        put="M.Enum_{n} = enum.Enum('Enum_{n}', {{'A': {v}}})",
    ),
    "item of a global dict": kept(
        "M.table_{n}['k']",
        top="table_{n} = {{'x': 5, 'k': {v}}}",
        empty_top="table_{n} = {{'x': 5}}",
        get=("table_{n}['k']", "table_{n}.get('k')", "table_{n}.get('k', 9)"),
        probes=("'k' in table_{n}", "table_{n}.get('k') is None", "'k' in table_{n}.keys()"),
    ),
}

STEPS: dict[str, Place] = {
    "namespace": of_kind("SimpleNamespace", "{h}.v", given="v={v}", **own_reads("{h}")),
    "instance": of_kind("Plain", "{h}.v", given="v={v}", **own_reads("{h}")),
    "dataclass": kept(
        "{h}.v",
        make="Data({v})",
        get=(*own_attributes("{h}"), "dataclasses.replace({h}).v"),
        probes=own_probes("{h}"),
    ),
    "frozen dataclass": Place(make="Frozen({v})", get=attributes("{h}")),
    "slots": of_kind("Slots", "{h}.v", **reads("{h}")),
    "property": of_kind(
        "Property",
        "{h}.inner",
        **reads("{h}"),
        more={"property": "type({h}).v = property(lambda self: {o})"},
    ),
    "__getattr__": of_kind(
        "Fallback",
        "{h}.held['v']",
        **reads("{h}"),
        more={
            "attribute over it": "{h}.v = {o}",
            "class attribute over it": "type({h}).v = {o}",
            "method": "type({h}).__getattr__ = lambda self, name: {o}",
        },
    ),
    "__getattribute__": of_kind("Config", "{h}.v", **reads("{h}")),
    "method": of_kind(
        "Method",
        "{h}.inner",
        get=("{h}.v()", "type({h}).v({h})", "operator.methodcaller('v')({h})"),
        more={
            "method over it": "{h}.v = functools.partial(same, {o})",
            "method": "type({h}).v = lambda self: {o}",
        },
    ),
    "__call__": of_kind(
        "Called",
        "{h}.inner",
        get=("{h}()", "{h}.__call__()"),
        more={"method": "type({h}).__call__ = lambda self: {o}"},
    ),
    "__getitem__": of_kind(
        "Items",
        "{h}.inner['k']",
        get=("{h}['k']", "operator.itemgetter('k')({h})"),
        probes=("'k' in {h}",),
        more={
            "method": "type({h}).__getitem__ = lambda self, key: {o}",
            "__contains__": "type({h}).__contains__ = lambda self, key: False",
        },
    ),
    "descriptor": of_kind(
        "Described",
        "{h}.inner",
        get=("{h}.v",),
        more={
            "attribute over it": "{h}.__dict__['v'] = {o}",
            "__get__": "Descriptor.__get__ = lambda self, owner, kind=None: {o}",
            "class attribute": "type({h}).v = {o}",
        },
    ),
    "weak reference": kept(
        "{h}.held.v",
        make="Weak({v})",
        get=("{h}.ref().v", "{h}.ref().__dict__['v']"),
        more={"referent": "{h}.held = Plain(v={o}); {h}.ref = weakref.ref({h}.held)"},
    ),
    "class made by type": kept(
        "{h}.v",
        make="type('Held', (), {{'v': {v}}})",
        get=("{h}.v", "vars({h})['v']", "{h}.__dict__['v']", "{h}().v"),
        probes=("hasattr({h}, 'v')", "'v' in vars({h})"),
    ),
    "dict": keyed(
        "{{'x': 5, 'k': {v}}}",
        "{{'x': 5}}",
        get=("{h}['k']", "{h}.get('k')", "{h}.get('k', 9)", "operator.itemgetter('k')({h})"),
        probes=("'k' in {h}", "{h}.get('k') is None", "'k' in {h}.keys()", "'k' in list({h})"),
    ),
    "dict of integers": kept(
        "{h}[1]",
        make="{{0: 5, 1: {v}}}",
        empty="{{0: 5}}",
        get=("{h}[1]", "{h}.get(1)", "list({h}.values())[1]"),
        probes=("1 in {h}", "{h}.get(1) is None"),
    ),
    "dict of classes": kept(
        "{h}[Plain]",
        make="{{int: 5, Plain: {v}}}",
        empty="{{int: 5}}",
        get=("{h}[Plain]", "{h}.get(Plain)"),
        probes=("Plain in {h}", "{h}.get(Plain) is None"),
    ),
    "dict of tuples": kept(
        "{h}[1, 'x']",
        make="{{(1, 'x'): {v}}}",
        empty="{{}}",
        get=("{h}[1, 'x']", "{h}.get((1, 'x'))"),
        probes=("(1, 'x') in {h}",),
    ),
    "OrderedDict": keyed("collections.OrderedDict(x=5, k={v})", "collections.OrderedDict(x=5)"),
    "defaultdict": keyed("collections.defaultdict(int, k={v})", "collections.defaultdict(int)"),
    "UserDict": keyed(
        "collections.UserDict(k={v})",
        "collections.UserDict()",
        get=("{h}['k']", "{h}.get('k')", "{h}.data['k']"),
        probes=("'k' in {h}",),
    ),
    "dict subclass": keyed("Dict(k={v})", "Dict()"),
    "__missing__": keyed("Missing(k={v})", "Missing()", get=("{h}['k']",), probes=("'k' in {h}",)),
    "mapping proxy": Place(
        make="types.MappingProxyType({{'k': {v}}})",
        empty="types.MappingProxyType({{}})",
        get=("{h}['k']", "{h}.get('k')"),
        probes=("'k' in {h}",),
    ),
    "list": kept(
        "{h}[1]",
        make="[5, {v}]",
        empty="[5]",
        get=("{h}[1]", "{h}[-1]", "list(reversed({h}))[0]"),
        probes=("len({h}) > 1",),
    ),
    "tuple": Place(make="(5, {v})", empty="(5,)", get=("{h}[1]", "{h}[-1]", "{h}[1:][0]")),
    "named tuple": Place(make="Pair({v}, 5)", get=("{h}.v", "{h}[0]", "getattr({h}, 'v')")),
    "deque": Place(
        make="collections.deque([5, {v}])",
        empty="collections.deque([5])",
        get=("{h}[1]", "{h}[-1]"),
        put="{h}[1] = {v}",
        cut="{h}.pop()",
    ),
    "closure of an item": kept(
        "{h}.__closure__[0].cell_contents", make="scaled_by({v})", get=("{h}()",)
    ),
    "default of an item": Place(
        make="defaulted({v})", get=("{h}()",), put="{h}.__defaults__ = ({v},)"
    ),
    "keyword default of an item": Place(
        make="keyword({v})", get=("{h}()",), put="{h}.__kwdefaults__['v'] = {v}"
    ),
    "partial of an item": Place(make="functools.partial(same, {v})", get=("{h}()", "{h}.args[0]")),
    "class from a factory": Place(
        make="class_of({v})",
        get=("{h}.value", "{h}.get_class()", "{h}.get_static()", "{h}().get()"),
        more={"of the class attribute": "{h}.value = {o}"},
    ),
    "instance of a class from a factory": Place(
        make="class_of({v})()",
        get=("{h}.value", "{h}.get()", "{h}.get_class()", "type({h}).value"),
        more={
            "of the class attribute": "type({h}).value = {o}",
            "attribute over the class's": "{h}.value = {o}",
        },
    ),
}


PLACES = {**ROOTS, **STEPS}


HOLDS = """
    def __init__(self, *v):
        if v:
            (self.inner,) = v
"""

PRELUDE: dict[str, str] = {
    "Plain": """
class Plain:
    shared = 1

    def __init__(self, **given):
        vars(self).update(given)

    def method(self):
        return 1

    @property
    def computed(self):
        return self.absent
""",
    "Child": """
class Child(Plain):
    pass
""",
    "Other": """
class Other:
    shared = 1

    def __init__(self, **given):
        vars(self).update(given)

    def method(self):
        return 2
""",
    "Slots": """
class Slots:
    __slots__ = ("v", "absent")

    def __init__(self, *v):
        if v:
            (self.v,) = v
""",
    "Data": """
@dataclasses.dataclass
class Data:
    v: Any = 0
""",
    "Frozen": """
@dataclasses.dataclass(frozen=True)
class Frozen:
    v: Any = 0
""",
    "Property": f"""
class Property:{HOLDS}
    @property
    def v(self):
        return self.inner
""",
    "Fallback": """
class Fallback:
    def __init__(self, *v):
        self.held = {"v": each for each in v}

    def __getattr__(self, name):
        try:
            return self.__dict__["held"][name]
        except KeyError:
            raise AttributeError(name)
""",
    "Config": """
class Config:
    attribute_map = {"v": "inner"}

    def __init__(self, *v):
        if v:
            (self.inner,) = v

    def __getattribute__(self, key):
        if key != "attribute_map" and key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        return super().__getattribute__(key)

    def __setattr__(self, key, value):
        if key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        super().__setattr__(key, value)

    def __delattr__(self, key):
        super().__delattr__(self.attribute_map.get(key, key))
""",
    "Method": f"""
class Method:{HOLDS}
    def v(self):
        return self.inner
""",
    "Called": f"""
class Called:{HOLDS}
    def __call__(self):
        return self.inner
""",
    "Items": """
class Items:
    def __init__(self, *v):
        self.inner = {"k": each for each in v}

    def __getitem__(self, key):
        return self.inner[key]

    def __contains__(self, key):
        return key in self.inner
""",
    "Described": f"""
class Descriptor:
    def __get__(self, owner, kind=None):
        return owner.inner

class Described:
    v = Descriptor()
{HOLDS}""",
    "Weak": """
class Weak:
    def __init__(self, v):
        self.held = Plain(v=v)
        self.ref = weakref.ref(self.held)
""",
    "Over": """
class Over:
    def __init__(self, inner):
        self.inner = inner

    def __eq__(self, other):
        return self.inner == other

    def __hash__(self):
        return 3

    def __lt__(self, other):
        return self.inner < other

    def __bool__(self):
        return self.inner > 1

    def __len__(self):
        return int(self.inner)

    def __iter__(self):
        return iter([self.inner, 2])

    def __contains__(self, item):
        return item == self.inner

    def __getitem__(self, key):
        return self.inner + key

    def __add__(self, other):
        return self.inner + other

    def __radd__(self, other):
        return self.inner + other

    def __mul__(self, other):
        return self.inner * other

    def __neg__(self):
        return -self.inner

    def __int__(self):
        return int(self.inner)

    def __float__(self):
        return float(self.inner)

    def __index__(self):
        return int(self.inner)

    def __str__(self):
        return 'a' * int(self.inner)

    def __repr__(self):
        return 'b' * int(self.inner)

    def __format__(self, spec):
        return 'c' * int(self.inner)

    def __call__(self, v=0):
        return self.inner + v
""",
    "dispatched": """
@functools.singledispatch
def dispatched(v):
    return 3
""",
    "Managed": f"""
class Managed:{HOLDS}
    def __enter__(self):
        return self.inner

    def __exit__(self, *error):
        return False
""",
    "Pair": "Pair = collections.namedtuple('Pair', ['v', 'w'])\n",
    "Dict": "\nclass Dict(dict):\n    pass\n",
    "Missing": "\nclass Missing(dict):\n    def __missing__(self, key):\n        return 4\n",
    "List": "\nclass List(list):\n    pass\n",
    "Int": "\nclass Int(int):\n    pass\n",
    "Str": "\nclass Str(str):\n    pass\n",
    "Kind": "\nclass Kind(enum.Enum):\n    A = 1\n    B = 2\n",
    "IntKind": "\nclass IntKind(enum.IntEnum):\n    A = 1\n    B = 2\n",
    "Flags": "\nclass Flags(enum.Flag):\n    A = 1\n    B = 2\n",
    "scaled_by": """
def scaled_by(k):
    def scaled():
        return k
    return scaled
""",
    "defaulted": """
def defaulted(k):
    def scaled(v=k):
        return v
    return scaled
""",
    "keyword": """
def keyword(k):
    def scaled(*, v=k):
        return v
    return scaled
""",
    "marked": """
def marked(k):
    def scaled():
        return scaled.k
    scaled.k = k
    return scaled
""",
    "wrapped": """
def wrapped(k):
    @functools.wraps(scaled_by)
    def scaled():
        return k
    return scaled
""",
    "one": "\ndef one():\n    return 1\n",
    "two": "\ndef two():\n    return 2\n",
    "constant": "\ndef constant():\n    return 1\n",
    "same": "\ndef same(v):\n    return v\n",
    "class_of": """
def class_of(k):
    class Made:
        value = k

        def get(self):
            return k

        @classmethod
        def get_class(cls):
            return cls.value

        @staticmethod
        def get_static():
            return k

    return Made
""",
    "Functions": "Functions = [scaled_by(1.0), scaled_by(2.0)]\n",
    "Classes": "Classes = [class_of(1), class_of(2)]\n",
    "Objects": "Objects = [object(), object()]\n",
    "Plains": "Plains = [Plain(b=1), Plain(b=1)]\n",
    "Lists": "Lists = [[1, 2], [1, 2]]\n",
    "Bound": "Bound = [Plain(b=1), Plain(b=1)]\n",
    "hook": "\ndef hook(*a):\n    return None\n",
}
"""Definitions by name. A program contains only those that it uses."""

HEAD = """import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import math
import operator
import os
import sys
import types
import typing
import weakref
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import nn
"""
