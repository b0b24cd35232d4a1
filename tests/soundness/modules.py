# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that change the modules of a model during serving: containers, hooks, methods."""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from soundness.rows import both, group, linear, method_of, of, on, own, row, x


class Blocks(nn.Module):
    """Modules in each of torch's containers, and one by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([linear(0), linear(1)])
        self.steps = nn.Sequential(linear(2), linear(3))
        self.named = nn.ModuleDict({"a": linear(4), "b": linear(5)})
        self.sub = linear(6)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        x = self.steps(x)
        for block in self.named.values():
            x = block(x)
        return self.sub(x) / 4096


class Held(nn.Module):
    """Modules that torch does not register, because they are in a plain list and a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first = linear(0)
        self.layers = [linear(1), linear(2)]
        self.table = {"a": linear(3)}

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.first(self.table["a"](x)) / 64


class Pair(nn.Module):
    """Two layers that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = linear(0), linear(1)
        self.other.weight = self.one.weight

    def forward(self, x: Any) -> Any:
        return self.other(self.one(x))


class Inner(nn.Module):
    """A module that calls another module."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = linear(0)

    def number(self) -> int:
        return 2

    def forward(self, x: Any) -> Any:
        return self.sub(x) * self.number()


class Hooked(Inner):
    """A module with a hook that can be removed, and that reads an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = 2
        self.handle = self.sub.register_forward_hook(lambda module, args, out: out * self.strength)


class HookedByKind(Inner):
    """A module with a hook whose answer depends on the number of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = self.sub.register_forward_hook(lambda module, *rest: rest[-1] * len(rest))


class HookedTwice(Hooked):
    """A module with two hooks, whose order changes the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.sub.register_forward_hook(lambda module, args, out: out + 1)


def doubling(module: Any, args: Any, output: Any) -> Any:
    return output * 2


def doubling_before(module: Any, args: Any) -> Any:
    return (args[0] * 2,)


def doubling_both(module: Any, args: Any, kwargs: Any) -> Any:
    return (args[0] * 2,), kwargs


def global_hook(register: Any, hook: Any) -> Any:
    return lambda app: register(hook).remove


def forward_of(scale: int) -> Any:
    def forward(self: Any, x: Any) -> Any:
        return x * scale

    return forward


def untied(f: Any) -> Any:
    names = {name: p.detach() + 1 for name, p in f.named_parameters()}
    first = next(name for name in names if name.endswith("one.weight"))
    return torch.func.functional_call(f, {first: names[first]}, (x(),), tie_weights=False)


def tied(f: Any) -> Any:
    names = {name: p.detach() + 1 for name, p in f.named_parameters()}
    first = next(name for name in names if name.endswith("one.weight"))
    return torch.func.functional_call(f, {first: names[first]}, (x(),))


class Five(nn.Linear):
    def forward(self, x: Any) -> Any:
        return x * 5


def doubling_more(module: Any, args: Any, output: Any) -> Any:
    return output * 4


def trade(blocks: Any) -> None:
    blocks[0], blocks[1] = blocks[1], blocks[0]


def weigh(layer: Any) -> None:
    layer.weight = nn.Parameter(x(4, 4) + 3)


GROUPS = (
    group(
        "containers",
        Blocks,
        both("ModuleList.insert", lambda app: app.blocks.insert(0, linear(7))),
        row("ModuleList.append", lambda app: app.blocks.append(linear(7))),
        row("ModuleList.extend", lambda app: app.blocks.extend([linear(7)])),
        row("ModuleList.pop", lambda app: app.blocks.pop(0)),
        row("ModuleList.pop of the last", lambda app: app.blocks.pop(-1)),
        row("ModuleList item", lambda app: app.blocks.__setitem__(0, nn.Identity())),
        row("ModuleList item of its class", lambda app: app.blocks.__setitem__(0, linear(8))),
        row("del ModuleList item", lambda app: app.blocks.__delitem__(0)),
        row("ModuleList in place", lambda app: app.blocks.__iadd__([linear(7)])),
        row("ModuleList that is replaced", own("blocks", nn.ModuleList([linear(7)]))),
        row("Sequential.insert", lambda app: app.steps.insert(0, linear(7))),
        row("Sequential.append", lambda app: app.steps.append(linear(7))),
        row("Sequential.extend", lambda app: app.steps.extend(nn.Sequential(linear(7)))),
        row("Sequential.pop", lambda app: app.steps.pop(0)),
        row("Sequential item", lambda app: app.steps.__setitem__(0, nn.Identity())),
        row("del Sequential item", lambda app: app.steps.__delitem__(0)),
        row("ModuleDict.pop", lambda app: app.named.pop("a")),
        row("ModuleDict.clear", lambda app: app.named.clear()),
        row("ModuleDict.update", lambda app: app.named.update({"a": nn.Identity()})),
        row("ModuleDict item", lambda app: app.named.__setitem__("c", linear(7))),
        row("del ModuleDict item", lambda app: app.named.__delitem__("a")),
        row(
            "order of a ModuleDict",
            lambda app: app.named._modules.update(a=nn.Identity(), z=app.named._modules.pop("a")),
        ),
        row("del model.sub", lambda app: delattr(app, "sub")),
        row("submodule that is replaced", own("sub", nn.Identity())),
        row("submodule of its class", own("sub", linear(8))),
        row("submodule in _modules", lambda app: app._modules.update(sub=nn.Identity())),
        row("submodule of its class in _modules", lambda app: app._modules.update(sub=linear(8))),
        row("submodule in __dict__", lambda app: app.__dict__.update(sub=nn.Identity())),
        row("add_module", lambda app: app.add_module("sub", nn.Identity())),
        row("register_module", lambda app: app.register_module("sub", nn.Identity())),
        row("set_submodule", lambda app: app.set_submodule("blocks.0", nn.Identity())),
        row("submodule that becomes None", own("sub", None)),
        row("modules that trade places", lambda app: trade(app.blocks)),
        row(
            "copy of a submodule",
            lambda app: setattr(app, "sub", copy.deepcopy(app.sub)),
            same=True,
        ),
        row("Linear without in_features", of("sub", "in_features", 9), same=True),
    ),
    group(
        "modules in plain containers",
        Held,
        both("module in a list", lambda app: app.layers.__setitem__(0, nn.Identity())),
        row("module of its class in a list", lambda app: app.layers.__setitem__(0, linear(8))),
        row("module that a list gains", lambda app: app.layers.append(linear(8))),
        row("module that a list loses", lambda app: app.layers.pop()),
        both("module in a dict", lambda app: app.table.update(a=nn.Identity())),
        row("module of its class in a dict", lambda app: app.table.update(a=linear(8))),
        row("weights of a module in a list", lambda app: weigh(app.layers[0])),
        row("weight of another dtype in a list", lambda app: app.layers[0].double()),
        row("training of a module in a list", lambda app: app.layers[0].train(), same=True),
        row(
            "hook of a module in a list", lambda app: app.layers[0].register_forward_hook(doubling)
        ),
    ),
    group(
        "tied weights",
        Pair,
        both("untied by a new parameter", lambda app: weigh(app.other)),
        both(
            "untied in _parameters",
            lambda app: app.other._parameters.update(weight=nn.Parameter(x(4, 4) + 3)),
        ),
        row("untied by functional_call", call=untied),
        row("tied through functional_call", call=tied),
    ),
    group(
        "hooks and methods",
        Inner,
        both("forward hook", lambda app: app.sub.register_forward_hook(doubling)),
        row(
            "forward hook that is put first",
            lambda app: app.sub.register_forward_hook(doubling, prepend=True),
        ),
        row("pre-hook", lambda app: app.sub.register_forward_pre_hook(doubling_before)),
        row(
            "pre-hook with keywords",
            lambda app: app.sub.register_forward_pre_hook(doubling_both, with_kwargs=True),
        ),
        row(
            "table of hooks that is replaced",
            lambda app: setattr(app.sub, "_forward_hooks", OrderedDict({9: doubling})),
        ),
        row(
            "table of pre-hooks that is replaced",
            lambda app: setattr(app.sub, "_forward_pre_hooks", OrderedDict({9: doubling_before})),
        ),
        row(
            "table of the model's hooks that is replaced",
            lambda app: setattr(app, "_forward_hooks", OrderedDict({9: doubling})),
        ),
        row(
            "pre-hook in its table",
            lambda app: app.sub._forward_pre_hooks.update({9: doubling_before}),
        ),
        row("forward hook of the model", lambda app: app.register_forward_hook(doubling)),
        both("global forward hook", global_hook(nn_module.register_module_forward_hook, doubling)),
        row(
            "global pre-hook",
            global_hook(nn_module.register_module_forward_pre_hook, doubling_before),
        ),
        both("forward of a submodule", of("sub", "forward", lambda x: x * 5)),
        row(
            "bound forward of a submodule",
            lambda app: setattr(app.sub, "forward", types.MethodType(forward_of(5), app.sub)),
        ),
        row("forward of the model", own("forward", lambda x: x * 5)),
        row("forward in __dict__", lambda app: app.sub.__dict__.update(forward=lambda x: x * 5)),
        both("forward of a class", on(Inner, "forward", forward_of(5))),
        both("forward of torch's class", on(nn.Linear, "forward", forward_of(5))),
        row("another method of the model", own("number", lambda: 3)),
        both("another method of its class", on(Inner, "number", method_of(3))),
        row("__call__ of a class", on(nn.Linear, "__call__", forward_of(5))),
        row("class of a submodule", lambda app: setattr(app.sub, "__class__", Five), slow=True),
    ),
    group(
        "a module without parts",
        lambda: linear(
            0
        ),  # Stock torch.compile wraps the model in another module, so the global hook runs twice.
        both(
            "global forward hook of a model without parts",
            global_hook(nn_module.register_module_forward_hook, doubling),
        ),
    ),
    group(
        "hooks in an order",
        HookedTwice,
        both(
            "hooks that change places",
            lambda app: app.sub._forward_hooks.move_to_end(app.handle.id),
        ),
    ),
    group(
        "hook by its arguments",
        HookedByKind,
        row(
            "hook that is given keywords",
            lambda app: app.sub._forward_hooks_with_kwargs.update({app.handle.id: True}),
        ),
    ),
    group(
        "hooks that are removed",
        Hooked,
        both("handle.remove()", lambda app: app.handle.remove()),
        row("hooks that are cleared", lambda app: app.sub._forward_hooks.clear()),
        both("value that a hook reads", own("strength", 3)),
        row(
            "hook that is replaced",
            lambda app: app.sub._forward_hooks.update({app.handle.id: doubling_more}),
        ),
    ),
)
