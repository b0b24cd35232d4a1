# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The grammar of the fuzzer: reads, their changes, and the text of a module that makes reads.

Everything is Python text, so that a program can be imported as a module and printed as a script.
A read is composed of a root, steps, a value, an operation and a form (the code that contains the
operation).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from soundness.operations import CAUGHT, VALUES
from soundness.places import HEAD, PRELUDE, ROOTS, STEPS, Place
from soundness.states import STATES


@dataclass(frozen=True, kw_only=True)
class Form:
    """The code that contains an operation.

    In the texts, `{direct}` is the operation on the value's path, and `{local}` is the operation on
    a local variable `v`.
    """

    method: str
    """Body of the model's method, which returns `n`."""
    top: str = ""
    """Definitions at the top of the module."""
    body: str = ""
    """Definitions in the class of the model."""
    init: str = ""
    """Statement in `__init__`."""


HELPER = """
def help_{n}(v):
    {local}
    return n
"""

FORMS: dict[str, Form] = {
    "method": Form(method="{direct}\nreturn n"),
    "inner function": Form(
        method="""
def inner():
    {direct}
    return n
return inner()
"""
    ),
    "caught": Form(
        method=f"""
try:
    {{direct}}
except {CAUGHT}:
    n = 5
return n
"""
    ),
    "helper of the model": Form(
        top="""
def help_{n}(self):
    {direct}
    return n
""",
        method="return help_{n}(self)",
    ),
    "closure": Form(
        method="""
v = {v}
def inner():
    {local}
    return n
return inner()
"""
    ),
    "helper": Form(top=HELPER, method="return help_{n}({v})"),
    "comprehension": Form(top=HELPER, method="return [help_{n}(v) for v in ({v},)][0]"),
    "partial": Form(top=HELPER, method="return functools.partial(help_{n}, {v})()"),
    "generator": Form(top=HELPER.replace("return", "yield"), method="return next(help_{n}({v}))"),
    "context manager": Form(
        top=HELPER,
        method="""
with contextlib.nullcontext({v}) as v:
    return help_{n}(v)
""",
    ),
    "wrapped": Form(
        top=f"""
def wrap_{{n}}(f):
    @functools.wraps(f)
    def inner(*a, **k):
        return f(*a, **k)
    return inner
@wrap_{{n}}{HELPER}""",
        method="return help_{n}({v})",
    ),
    "lru_cache": Form(top=f"@functools.lru_cache{HELPER}", method="return help_{n}({v})"),
    "keyword": Form(top=HELPER, method="return help_{n}(**dict(v={v}))"),
    "mapped": Form(top=HELPER, method="return list(map(help_{n}, [{v}]))[0]"),
    "lambda": Form(top=HELPER, method="return (lambda v: help_{n}(v))({v})"),
    "if and else": Form(
        top=HELPER,
        method="""
if self.training:
    return 8
else:
    return help_{n}({v})
""",
    ),
    "loop": Form(
        method="""
n = 0
for i in range(3):
    if i != 1:
        continue
    {direct}
return n
"""
    ),
    "tried and finally": Form(
        method="""
try:
    {direct}
    return n
finally:
    n = 9
"""
    ),
    "static method": Form(
        body="""
@staticmethod
def static{n}(v):
    {local}
    return n
""",
        method="return self.static{n}({v})",
    ),
    "class method": Form(
        body="""
@classmethod
def of{n}(cls, v):
    {local}
    return n
""",
        method="return type(self).of{n}({v})",
    ),
    "object": Form(
        top="""
class Help_{n}:
    def __call__(self, v):
        {local}
        return n
""",
        init="self.help{n} = Help_{n}()",
        method="return self.help{n}({v})",
    ),
    "submodule": Form(
        top="""
class Help_{n}(nn.Module):
    def forward(self, v):
        {local}
        return n
""",
        init="self.help{n} = Help_{n}()",
        method="return self.help{n}({v})",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Read:
    """One read of a program. Everything is a key of a table above, or an index."""

    root: str = ""
    steps: tuple[str, ...] = ()
    value: str = ""
    op: str = ""
    """A key of the operations of the value, or `probe I`."""
    form: str = "method"
    gets: tuple[int, ...] = ()
    """The index of the expression of the root and of each step."""
    state: str = ""
    """A key of `STATES`, if the read has no place."""

    @property
    def kind(self) -> str:
        """The kind of read, as counted in `pairs`."""
        if self.state:
            return f"state: {self.state}"
        if self.op.startswith("probe"):
            return f"probe: {(self.steps or (self.root,))[-1]}"
        return f"{self.value}: {self.op}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a program."""

    kind: str
    text: str = ""
    """Statements. After a `yield`, they undo what outlives the program."""
    around: str = ""
    """Context of the call, as an expression."""
    slow: bool = False
    """Whether docs/concepts/levels.md says that the change is noticed within one second."""
    before: int = 0
    """Number of changes without an effect before this one, after READY, each followed by a call.
    serve_warm compares dicts that change often in another way."""


def places(read: Read) -> list[Place]:
    return [ROOTS[read.root], *(STEPS[step] for step in read.steps)]


def get_of(read: Read, n: int, depth: int) -> str:
    """Return the expression that reads what the first `depth` places hold."""
    text = ""
    for place, index in list(zip(places(read), read.gets, strict=True))[:depth]:
        text = place.get[index % len(place.get)].format(h=text, n=n)
    return text


def held_from(read: Read, n: int, depth: int, value: str | None) -> str | None:
    """Return the expression of what the first `depth` places hold; None if it is absent."""
    for place in reversed(places(read)[depth:]):
        value = (
            place.empty.format(n=n) or None if value is None else place.make.format(v=value, n=n)
        )
    return value


def in_change(text: str) -> str:
    """Return an expression of the model's code as it is written in a change."""
    text = re.sub(r"\bself\b", "m", text)
    text = text.replace("super().", "M.Model.")
    return re.sub(r"(?<![\w.'])([A-Za-z]+_\d+)\b", r"M.\1", text)


def changes_of(read: Read, n: int) -> Iterator[Change]:
    """Yield all changes of a read."""
    if read.state:
        state = STATES[read.state]
        for kind, text in state.changes.items():
            yield Change(kind=kind, text=numbered(text, n), slow=state.slow)
        for kind, text in state.around.items():
            yield Change(kind=kind, around=text)
        return
    found = [*_of_value(read, n), *_of_holders(read, n), *_of_places(read, n)]
    yield from (change for change in found if change.text)


def _of_value(read: Read, n: int) -> Iterator[Change]:
    """Yield changes of the value in place, and its replacement by another value."""
    value = VALUES[read.value]
    for kind, other in value.others.items():
        yield Change(kind=kind, text=_put(read, n, len(places(read)), other.format()))
    at = in_change(get_of(read, n, len(places(read))))
    for kind, template in value.changes.items():
        yield Change(kind=kind, text=template.format(v=at, n=n))
    for kind, template in value.slow.items():
        yield Change(kind=kind, text=template.format(v=at, n=n), slow=True)


def _of_holders(read: Read, n: int) -> Iterator[Change]:
    """Yield replacements of the holders of the value."""
    value = VALUES[read.value]
    for depth in range(1, len(places(read))):
        held = {"equal holder": held_from(read, n, depth, value.text.format() or None)}
        held["holder is None"] = "None"
        for kind, other in value.others.items():
            held[f"holder with {kind}"] = held_from(read, n, depth, other.format())
        for kind, text in held.items():
            if text is not None:
                yield Change(kind=kind, text=_put(read, n, depth, text))


def _of_places(read: Read, n: int) -> Iterator[Change]:
    """Yield deletions and other changes of the places."""
    value = VALUES[read.value]
    some = next(text for kind, text in value.others.items() if kind != "equal").format()
    names = (read.root, *read.steps)
    for depth, place in enumerate(places(read), start=1):
        holder, at = (in_change(get_of(read, n, d)) for d in (depth - 1, depth))
        if place.cut and (value.text or depth < len(places(read))):
            cut = place.cut.format(h=holder, n=n)
            yield Change(kind="deleted", text=cut)
            again = place.put.format(h=holder, v="kept", n=n)
            yield Change(kind="deleted and restored", text=f"kept = {at}; {cut}; {again}")
        for kind, template in place.more.items():
            other = held_from(read, n, depth, some)
            text = template.format(h=holder, o=other, n=n)
            yield Change(kind=f"{names[depth - 1]}: {kind}", text=text)


def _put(read: Read, n: int, depth: int, text: str) -> str:
    """Return the statement that makes the first `depth` places hold an expression."""
    way = places(read)
    while not way[depth - 1].put:
        depth -= 1
        text = way[depth].make.format(v=text, n=n)
    return way[depth - 1].put.format(h=in_change(get_of(read, n, depth - 1)), v=text, n=n)


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line if line else line for line in text.splitlines())


def op_text(read: Read, n: int, v: str) -> str:
    """Return the statements of a read that assign `n`."""
    if read.state:
        text = numbered(STATES[read.state].op, n)
        return text if "\n" in text else f"n = {text}"
    if read.op.startswith("probe"):
        place, index = places(read)[-1], int(read.op.split()[1])
        holder = get_of(read, n, len(read.steps))
        return f"n = {place.probes[index % len(place.probes)].format(h=holder, n=n)}"
    template = VALUES[read.value].ops[read.op]
    text = (template if template != "returned" else "{v}").format(v=v, n=n)
    return text if "\n" in template else f"n = {text}"


def form_of(read: Read, n: int) -> Form:
    """Return the texts of a read's form, with the operation."""
    form = FORMS[read.form]
    needs_path = read.state or read.op.startswith("probe") or read.value == "absent"
    if needs_path and "{direct}" not in form.top + form.method:
        form = FORMS["method"]
    v = "" if read.state else get_of(read, n, len(read.steps) + 1)
    ops = {"{direct}": op_text(read, n, v), "{local}": op_text(read, n, "v")}

    def fill(template: str) -> str:
        lines = []
        for line in template.strip("\n").splitlines():
            op = ops.get(line.strip())
            if op is None:
                lines.append(numbered(line, n).replace("{v}", v))
            else:
                lines.append(indented(op, len(line) - len(line.lstrip())))
        return "\n".join(lines)

    return Form(
        # `super()` needs the method of a class.
        top=fill(form.top).replace("super().", "self."),
        body=fill(form.body),
        init=fill(form.init),
        method=f"def read{n}(self):\n{indented(fill(form.method), 4)}",
    )


def numbered(text: str, n: int) -> str:
    return text.replace("{n}", str(n))


def is_returned(read: Read) -> bool:
    return STATES[read.state].is_returned if read.state else read.op == "returned"


BASES = ("inherited class attribute", "property of a base class", "method of a base class")
"""Roots that define a base class of the model."""


CALLEES = {
    "model": "",
    "function": """
def callee_of(model):
    def call(x):
        return model(x)
    return call
""",
    "method": """
def callee_of(model):
    return model.forward
""",
    "global function": """
MODELS = []
def call(x):
    return MODELS[0](x)
def callee_of(model):
    MODELS[:] = [model]
    return call
""",
    "partial": """
def call(model, x):
    return model(x)
def callee_of(model):
    return functools.partial(call, model)
""",
}
"""Definitions of the callable that is compiled. Without one, it is the model."""


def program(
    reads: Mapping[int, Read], offset: float = 0, more: str = "", callee: str = "model"
) -> str:
    """Return the text of a module with a class `Model` that makes these reads.

    The model multiplies by the sum of the numbers that it reads, minus `offset`. So all graphs are
    alike if the number is. The module has the definitions that the text `more` uses, too.
    """
    tops, bodies, inits, bases = [], [], [], ["nn.Module"]
    numbers, returned = [], []
    for n, read in reads.items():
        root = root_of(read, n)
        form = form_of(read, n)
        tops += [root.top, form.top]
        bodies += [root.body, form.body, form.method]
        inits += [root.init, form.init]
        if read.root in BASES:
            bases.insert(0, f"Base_{n}")
        (returned if is_returned(read) else numbers).append(f"self.read{n}()")
    total = " + ".join(f"float({number})" for number in numbers) or "0.0"
    result = ", ".join(["torch.addmm(self.bias, x, self.weight, alpha=alpha)", *returned])
    if any("self.offset" in body for body in bodies):
        bodies.append("def offset(self, v):\n    return same(v) + 1")
    lines = [
        *filter(None, tops),
        f"class Model({', '.join(bases)}):",
        *(indented(body, 4) for body in bodies if body),
        "    def __init__(self):",
        "        super().__init__()",
        "        self.weight = nn.Parameter(torch.arange(16.0).reshape(4, 4) % 7 / 7 + 0.1)",
        "        self.bias = nn.Parameter(torch.arange(4.0) / 7)",
        *(indented(init, 8) for init in inits if init),
        "    def forward(self, x):",
        f"        alpha = {total} - {offset!r}",
        f"        return {result}",
        CALLEES[callee],
    ]
    return with_prelude("\n".join(lines) + "\n", more)


def root_of(read: Read, n: int) -> Place:
    """Return the root of a read, with the texts that define its value."""
    if read.state:
        return Place(get=(), top=numbered(STATES[read.state].top, n).strip("\n"))
    root = ROOTS[read.root]
    held = held_from(read, n, 1, VALUES[read.value].text.format() or None)
    if held is None:
        return Place(
            get=(),
            top=root.empty_top.format(n=n),
            body=root.empty_body.format(n=n),
            init=root.empty_init.format(n=n),
        )
    texts = {part: getattr(root, part).format(n=n, v=held) for part in ("top", "body", "init")}
    return Place(get=(), **texts)


def with_prelude(text: str, more: str = "") -> str:
    """Return the text after the imports and definitions that it uses. `more` uses them too."""
    wanted: set[str] = set()
    queue = [text + more]
    while queue:
        part = queue.pop()
        for name, definition in PRELUDE.items():
            if name not in wanted and re.search(rf"\b{name}\b", part):
                wanted.add(name)
                queue.append(definition)
    definitions = "".join(each for name, each in PRELUDE.items() if name in wanted)
    used = "".join(
        line + "\n"
        for line in HEAD.splitlines()
        if not line or re.search(rf"\b{line.split()[-1]}\b", definitions + text + more)
    )
    return f"{used}{definitions}\n\n{text}"
