# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that change the parameters and buffers of a model during serving, with each API of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import fusion, parametrizations, parametrize, prune, stateless

from soundness.rows import Numbered, both, group, linear, of, own, row, x


class Weighted(Numbered):
    """Weights, a buffer, and other weights that rows may add."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", x(4))
        self.late = None

    def forward(self, x: Any) -> Any:
        out = torch.addmm(self.bias, x, self.weight) + self.shift
        extra = getattr(self, "extra", None)
        if extra is not None:
            out = out * extra
        return out if self.late is None else out * self.late


def of_dtype(f: Any) -> Any:
    return f(x().to(next(iter(f.parameters())).dtype))


def data(app: Any, value: Any) -> None:
    app.weight.data = value


def assign(app: Any, **changed: Any) -> None:
    app.load_state_dict({**app.state_dict(), **changed}, assign=True)


@torch.no_grad()
def halve(app: Any) -> None:
    app.weight.mul_(0.5)


def swap(app: Any) -> None:
    torch.utils.swap_tensors(app.weight, nn.Parameter(x(4, 4).double()))


def swap_alike(app: Any) -> None:
    torch.utils.swap_tensors(app.weight, nn.Parameter(x(4, 4) + 1))


class Doubled(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(0)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Parametrized(Plain):
    def __init__(self) -> None:
        super().__init__()
        parametrize.register_parametrization(self.layer, "weight", Doubled())


class Pruned(Plain):
    def __init__(self) -> None:
        super().__init__()
        prune.custom_from_mask(self.layer, "weight", mask=torch.eye(4))


class Convolved(nn.Module):
    """A convolution and its normalization."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.drop(self.norm(self.conv(x)))


def fuse(app: Any) -> None:
    app.conv = fusion.fuse_conv_bn_eval(app.conv, app.norm)
    app.norm = nn.Identity()


def image() -> torch.Tensor:
    return x(1, 2, 5, 5)


def reparametrized(f: Any) -> Any:
    names = {name: p.detach() + 1 for name, p in f.named_parameters()}
    return stateless._functional_call(f, names, (x(),))


def other_weights(f: Any) -> Any:
    names = {name: p.detach() + 1 for name, p in f.named_parameters()}
    return torch.func.functional_call(f, names, (x(),))


def other_dtypes(f: Any) -> Any:
    names = {n: t.detach().double() for n, t in (*f.named_parameters(), *f.named_buffers())}
    return torch.func.functional_call(f, names, (x().double(),))


class Marked(nn.Parameter):
    """A subclass of Parameter."""


def caught(f: Any) -> Any:
    return f(x())


def zeroed(app: Any) -> None:
    for tensor in (*app.parameters(), *app.buffers()):
        tensor.data.zero_()


def ones(module: Any) -> None:
    for tensor in module.parameters(recurse=False):
        tensor.data.fill_(1)


def demote(app: Any) -> None:
    del app.weight
    app.register_buffer("weight", x(4, 4) + 1)


def plain_attribute(app: Any) -> None:
    del app.weight
    app.weight = x(4, 4) + 1


def normed(app: Any) -> None:
    parametrizations.weight_norm(app.layer).parametrizations.weight.original0.data.mul_(2)


def old_normed(app: Any) -> None:
    nn.utils.weight_norm(app.layer).weight_g.data.mul_(2)


def quantized(app: Any) -> None:
    app.layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(app.layer), {nn.Linear})[0]


def untracked(norm: Any) -> None:
    norm.running_mean = norm.running_var = None
    norm.track_running_stats = False


def grouped(app: Any) -> None:
    app.conv.groups = 2
    app.conv.weight = nn.Parameter(app.conv.weight.detach()[:, :1].contiguous())


def synced(app: Any) -> None:
    app.norm = nn.SyncBatchNorm.convert_sync_batchnorm(app.norm)


def seeded(f: Any) -> Any:
    torch.manual_seed(0)
    return f(image())


GROUPS = (
    group(
        "weights",
        Weighted,
        both("to(float64)", lambda app: app.to(torch.float64), call=of_dtype),
        row("half()", lambda app: app.half(), call=of_dtype),
        row("bfloat16()", lambda app: app.bfloat16(), call=of_dtype),
        row("double() and float()", lambda app: app.double().float(), same=True),
        row("to(float64), called in float32", lambda app: app.to(torch.float64)),
        row("to('meta')", lambda app: app.to("meta")),
        row("to_empty", lambda app: zeroed(app.to_empty(device="cpu"))),
        row("weights in place", halve),
        row("data of other numbers", lambda app: data(app, x(4, 4) + 1)),
        row("data of another dtype", lambda app: data(app, x(4, 4).double())),
        row("data of other strides", lambda app: data(app, (x(4, 4) + 1).T)),
        row("data of another shape", lambda app: data(app, x(4, 8)[:, :2])),
        row("data of a bias", lambda app: setattr(app.bias, "data", x(1, 4) + 1)),
        row(
            "load_state_dict",
            lambda app: app.load_state_dict({**app.state_dict(), "bias": x(4) + 1}),
        ),
        both("load_state_dict, assigned", lambda app: assign(app, bias=x(4) + 1)),
        both(
            "load_state_dict, assigned in another dtype",
            lambda app: assign(app, shift=x(4).double() + 1),
        ),
        row(
            "load_state_dict, assigned in other strides",
            lambda app: assign(app, weight=(x(4, 4) + 1).T),
        ),
        row("new parameter", own("weight", nn.Parameter(x(4, 4) + 1))),
        row("new parameter of other strides", own("weight", nn.Parameter((x(4, 4) + 1).T))),
        row("new parameter of a subclass", own("weight", Marked(x(4, 4) + 1))),
        row(
            "parameter in its table",
            lambda app: app._parameters.update(weight=nn.Parameter(x(4, 4).double())),
            call=caught,
        ),
        row("bias that becomes None", own("bias", None), call=caught),
        row("parameter that is deleted", lambda app: delattr(app, "bias"), call=caught),
        row("parameter that becomes a buffer", demote),
        row("parameter that becomes an attribute", plain_attribute),
        row("register_parameter", lambda app: app.register_parameter("extra", nn.Parameter(x(4)))),
        both("register_buffer", lambda app: app.register_buffer("extra", x(4) + 1)),
        row("buffer that is set", own("late", x(4))),
        row("buffer in its table", lambda app: app._buffers.update(extra=x(4) + 1)),
        row("buffer in place", lambda app: app.shift.add_(1) is None),
        row("buffer of another dtype, by name", own("shift", x(4).double() + 1)),
        row("requires_grad_", lambda app: app.requires_grad_(False), same=True),
        row("requires_grad_ of a buffer", lambda app: app.shift.requires_grad_(), same=True),
        row("share_memory", lambda app: app.share_memory(), same=True),
        row("swap_tensors", swap_alike),
        row("swap_tensors of another dtype", swap, call=caught),
        row("apply", lambda app: app.apply(ones)),
        row(
            "vector_to_parameters",
            lambda app: nn.utils.vector_to_parameters(x(20) + 1, app.parameters()),
        ),
        row("functional_call", call=other_weights),
        row("functional_call in another dtype", call=other_dtypes),
        row("torch.nn.utils.stateless", call=reparametrized),
    ),
    group(
        "reparametrizations",
        Plain,
        both(
            "register_parametrization",
            lambda app: parametrize.register_parametrization(app.layer, "weight", Doubled()),
        ),
        both("weight_norm", normed),
        row("weight_norm of nn.utils", old_normed),
        both("spectral_norm", lambda app: parametrizations.spectral_norm(app.layer)),
        row("spectral_norm of nn.utils", lambda app: nn.utils.spectral_norm(app.layer)),
        row("orthogonal", lambda app: parametrizations.orthogonal(app.layer)),
        both("prune", lambda app: prune.custom_from_mask(app.layer, "weight", torch.eye(4))),
        row("prune l1_unstructured", lambda app: prune.l1_unstructured(app.layer, "weight", 0.5)),
        row(
            "prune and remove",
            lambda app: prune.remove(
                prune.custom_from_mask(app.layer, "weight", torch.eye(4)), "weight"
            ),
        ),
        row("quantize_dynamic", quantized),
        row("compile()", lambda app: app.layer.compile(backend="eager"), same=True),
    ),
    group(
        "parametrized",
        Parametrized,
        row(
            "parametrize.remove",
            lambda app: parametrize.remove_parametrizations(app.layer, "weight"),
            same=True,
        ),
        both(
            "parametrize.remove, left as it was",
            lambda app: parametrize.remove_parametrizations(
                app.layer, "weight", leave_parametrized=False
            ),
        ),
        row(
            "second parametrization",
            lambda app: parametrize.register_parametrization(app.layer, "weight", Doubled()),
        ),
        row(
            "parametrization that is replaced",
            lambda app: app.layer.parametrizations.weight.__setitem__(0, nn.Identity()),
        ),
    ),
    group(
        "pruned",
        Pruned,
        row("prune.remove", lambda app: prune.remove(app.layer, "weight"), same=True),
        row(
            "mask of a pruned weight",
            lambda app: setattr(app.layer, "weight_mask", torch.ones(4, 4)),
        ),
        row(
            "pruned again",
            lambda app: prune.custom_from_mask(app.layer, "weight", torch.zeros(4, 4)),
        ),
    ),
    group(
        "convolution",
        Convolved,
        both("channels_last", lambda app: app.to(memory_format=torch.channels_last), same=True),
        row("channels_last input", call=lambda f: f(image().to(memory_format=torch.channels_last))),
        both("fuse_conv_bn_eval", fuse, same=True),
        both("eps of a normalization", of("norm", "eps", 1.0)),
        row("momentum of a normalization", of("norm", "momentum", 0.5), same=True),
        row("training of a normalization", of("norm", "training", True)),
        row("running statistics", lambda app: app.norm.running_mean.add_(1) is None),
        row("running statistics that end", lambda app: untracked(app.norm)),
        both("padding of a convolution", of("conv", "padding", (1, 1))),
        row("stride of a convolution", of("conv", "stride", (2, 2))),
        row("dilation of a convolution", of("conv", "dilation", (2, 2))),
        row("groups of a convolution", grouped),
        row("dropout in training", of("drop", "training", True), call=seeded),
        row("p of a dropout", of("drop", "p", 0.9), same=True),
        row("SyncBatchNorm", synced, same=True),
        call=lambda f: f(image()),
    ),
)
