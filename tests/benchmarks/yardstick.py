# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""How well the comparison with full precision tells right compiled code from damaged code.

    python tests/benchmarks/yardstick.py --json tests/benchmarks/results/yardstick.json
        [--minutes 8] [--device cuda] [--only NAME ...] [--small]

Each model is compiled by torch.compile and judged, first as it is and then with each damage that it
can have. Weights are damaged in place while the compiled code runs, so the judge sees damage and
rounding together. Another eps, and the dropped mask of a decoder, are damages of eager code,
because torch.compile would compile again. A row has:

    rmse_ratio, max_ratio  the largest distance of a tensor from full precision, relative to eager's
    old                    largest difference from eager, relative to the largest value
    passes, old_passes     what the ratios decide, and what a fixed limit for `old` decides
    expected               whether the row must pass; null if it may do either, see `note`
    note                   why a row may pass or be refused
    rmse_limit, max_limit  the limits of the two ratios
    numbers, inputs        numbers of the smallest tensor, and how many inputs were compared

A damage may pass if its RMSE is less than 1.5 times eager's, or if float32 results differ from
eager by less than 1e-4. A local damage may pass if the fixed limit passes it too.

`--small` compares right compiles of 1, 2 and 10 numbers. Run the program again to go on where it
stopped; rows are never repeated. Progress goes to stderr. The exit status is 1 if a row is not as
expected, and 75 while rows are left.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import platform
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from serve_warm.precompile.facts.no_entry import NoEntry
from serve_warm.precompile.parity import distance_check
from serve_warm.precompile.parity.distance_check import Comparison, compare
from serve_warm.precompile.parity.eager import NEVER_REFUSED, tolerance
from served_models.rows import transformers_model
from served_models.table import ROWS

DTYPES = ("bfloat16", "float16", "float32")
MATTERS = 1.5
"""RMSE from which a damage must be refused, relative to eager's."""

distance_check.BUDGET_S = 0.8
"""Seconds for more inputs of one row. A build has more time."""

Call = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model, and the arguments of a call."""

    name: str
    make: Callable[[], Any]
    arguments: Callable[[Any], Any]
    method: str = ""
    is_causal: bool = False
    """Whether the call accepts an attention mask of four dimensions instead of its causal mask."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A damage: a context around the run of compiled or eager code, or a change of its result."""

    text: str
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    change: Callable[[Any], Any] = field(default=lambda out: out)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_compiled: bool = True
    is_local: bool = False


def _padded(tokens: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(tokens)
    mask[1:, tokens.shape[1] // 2 :] = 0
    return mask


def _words(count: int, length: int, *, masked: bool = True) -> Callable[[Any], dict[str, Any]]:
    def arguments(_: Any) -> dict[str, Any]:
        tokens = torch.randint(3, count, (2, length))
        return {
            "input_ids": tokens,
            **({"attention_mask": _padded(tokens)} if masked else {"use_cache": False}),
        }

    return arguments


def _pixels(size: int, batch: int = 2) -> Callable[[Any], dict[str, Any]]:
    return lambda _: {"pixel_values": torch.randn(batch, 3, size, size)}


SMALL_TEXT: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL_BERT = {key: value for key, value in SMALL_TEXT.items() if key != "num_key_value_heads"}
SMALL_IMAGE: dict[str, Any] = {
    **{key: SMALL_BERT[key] for key in ("hidden_size", "num_hidden_layers", "intermediate_size")},
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
}


def _encoder(name: str, kind: str, **more: Any) -> Model:
    make = transformers_model(kind, {**SMALL_BERT, **more})
    return Model(name=name, make=make, arguments=_words(512, 32))


def _decoder(name: str, kind: str, **more: Any) -> Model:
    make = transformers_model(kind, {**SMALL_TEXT, **more}, "ForCausalLM")
    arguments = _words(512, 32, masked=False)
    return Model(name=name, make=make, arguments=arguments, is_causal=True)


def _row(name: str) -> Model:
    row = ROWS[name]

    def arguments(model: Any) -> Any:
        given = row.call(model, 0)
        if "attention_mask" in given:
            given = {**given, "attention_mask": _padded(given["input_ids"])}
        return given

    return Model(name=name, make=row.make, arguments=arguments, method=row.method)


def _on_cpu() -> list[Model]:
    return [
        _encoder("bert", "Bert"),
        _encoder("bert, init 0.05", "Bert", initializer_range=0.05),
        _encoder("roberta", "Roberta"),
        _encoder("mpnet", "MPNet"),
        _row("deberta-v2"),
        _row("modernbert"),
        _decoder("llama", "Llama"),
        _decoder("qwen3", "Qwen3", head_dim=32),
        _decoder("qwen3, init 0.04", "Qwen3", head_dim=32, initializer_range=0.04),
        _decoder("gemma2", "Gemma2", head_dim=32),
        _decoder("mistral, sliding window", "Mistral", sliding_window=8, head_dim=32),
        _row("t5"),
        _row("bart"),
        Model(name="vit", make=transformers_model("ViT", SMALL_IMAGE), arguments=_pixels(64)),
        _row("convnext"),
        _row("resnet"),
        _row("swin"),
        _row("whisper encoder-decoder"),
        _row("sd unet"),
        _row("sd vae decoder"),
        _row("sd3"),
        _row("wav2vec2"),
        _row("mixtral"),
    ]


def _on_gpu() -> list[Model]:
    qwen = {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    }
    vit = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
    }
    whisper = {
        "d_model": 1280,
        "encoder_layers": 32,
        "decoder_layers": 32,
        "encoder_attention_heads": 20,
        "decoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "decoder_ffn_dim": 5120,
        "num_mel_bins": 128,
    }
    convnext = {"hidden_sizes": [128, 256, 512, 1024], "depths": [3, 3, 27, 3]}
    return [
        *(
            Model(
                name=f"qwen3-0.6b, init {init}",
                make=transformers_model(
                    "Qwen3", {**qwen, "initializer_range": init}, "ForCausalLM"
                ),
                arguments=_words(500, 512, masked=False),
                is_causal=True,
            )
            for init in (0.02, 0.04)
        ),
        Model(name="vit-l", make=transformers_model("ViT", vit), arguments=_pixels(224, 8)),
        _sd_unet(),
        Model(
            name="whisper-large",
            make=transformers_model("Whisper", whisper),
            arguments=lambda _: {
                "input_features": torch.randn(1, 128, 3000),
                "decoder_input_ids": torch.randint(3, 1000, (1, 16)),
                "use_cache": False,
            },
        ),
        Model(
            name="convnext-b",
            make=transformers_model("ConvNext", convnext),
            arguments=_pixels(224, 8),
        ),
    ]


def _sd_unet() -> Model:
    def make() -> Any:
        import diffusers

        return diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768)

    return Model(
        name="sd unet",
        make=make,
        arguments=lambda _: {
            "sample": torch.randn(2, 4, 64, 64),
            "timestep": torch.tensor(7.0),
            "encoder_hidden_states": torch.randn(2, 77, 768),
            "return_dict": False,
        },
    )


class Prepared:
    """A model on its device in one dtype, its compiled code, and the tensors of a call."""

    def __init__(self, model: Model, dtype: torch.dtype, device: str) -> None:
        torch.manual_seed(zlib.crc32(model.name.encode()))
        self.model = model
        self.callee = model.make().eval().to(device=device, dtype=dtype)
        arguments = model.arguments(self.callee)
        if isinstance(arguments, tuple):
            self._positional, self._named = arguments, {}
        else:
            self._positional, self._named = (), dict(arguments)
        flat, self._spec = tree_flatten((self._positional, self._named))
        self._flat = [self._place(each, dtype, device) for each in flat]
        self._places = [
            place for place, each in enumerate(self._flat) if isinstance(each, torch.Tensor)
        ]
        self.tensors = [self._flat[place] for place in self._places]
        torch.compiler.reset()
        self._compiled = torch.compile(self._function(), dynamic=False)
        with torch.no_grad():
            self._call(self._compiled, self.tensors, {})

    @staticmethod
    def _place(value: Any, dtype: torch.dtype, device: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)

    def _function(self) -> Any:
        return getattr(self.callee, self.model.method) if self.model.method else self.callee

    def _call(self, function: Any, tensors: Sequence[Any], changed: Mapping[str, Any]) -> Any:
        flat = list(self._flat)
        for place, tensor in zip(self._places, tensors, strict=True):
            flat[place] = tensor
        args, kwargs = tree_unflatten(flat, self._spec)
        return function(*args, **{**kwargs, **changed})

    def eager(self, _: Any, *tensors: Any) -> Any:
        """Run eager code."""
        return self._call(self._function(), tensors, {})

    def damaged(self, damage: Damage | None) -> Call:
        """Return a function that runs compiled code, or damaged eager code."""
        if damage is None:
            return lambda _, *tensors: self._call(self._compiled, tensors, {})

        def run(_: Any, *tensors: Any) -> Any:
            function = self._compiled if damage.is_compiled else self._function()
            with damage.around():
                out = self._call(function, tensors, damage.arguments)
            return damage.change(out)

        return run

    def damages(self) -> Iterator[Damage]:
        """Yield the damages that the model can have."""
        matrix = self._matrix()
        yield Damage(text=f"{matrix} x 1.1", around=lambda: self._scaled(matrix, 1.1))
        yield Damage(text=f"{matrix} set to zero", around=lambda: self._scaled(matrix, 0.0))
        yield from self._masks()
        norms = [each for each in self.callee.modules() if _eps_of(each)]
        if norms:
            yield Damage(text="another eps", around=lambda: _changed_eps(norms), is_compiled=False)
        layers = _layers(self.callee)
        if layers is not None:
            yield Damage(text="layers 0 and 1 swapped", around=lambda: _swapped(*layers))
        for text, change in LOCAL.items():
            yield Damage(text=text, change=lambda out, c=change: _change(out, c), is_local=True)

    def _masks(self) -> Iterator[Damage]:
        name = next((name for name in self._named if name.endswith("attention_mask")), None)
        if name is not None:
            ones = torch.ones_like(self._named[name]).to(self.tensors[0].device)
            yield Damage(text="mask dropped", arguments={name: ones})
        elif self.model.is_causal:
            tokens = self._named["input_ids"]
            shape = (tokens.shape[0], 1, tokens.shape[1], tokens.shape[1])
            visible = torch.zeros(shape, dtype=self.callee.dtype, device=self.tensors[0].device)
            yield Damage(
                text="mask dropped", arguments={"attention_mask": visible}, is_compiled=False
            )

    def _matrix(self) -> str:
        names = [
            name
            for name, parameter in self.callee.named_parameters()
            if parameter.dim() > 1 and not LITTLE_EFFECT.search(name)
        ]
        return names[len(names) // 2]

    @contextlib.contextmanager
    def _scaled(self, name: str, factor: float) -> Iterator[None]:
        parameter = self.callee.get_parameter(name)
        with torch.no_grad():
            before = parameter.clone()
            parameter.mul_(factor)
            try:
                yield
            finally:
                parameter.copy_(before)


LITTLE_EFFECT = re.compile(r"embed|bias|(^|[._])(q|k|query|key)(_proj)?[._]|to_[qk][._]")
"""Names of weights whose damage random models hardly show: all scores are almost equal."""

EPS = ("eps", "variance_epsilon", "layer_norm_eps")


def _eps_of(module: Any) -> str:
    names = [name for name in EPS if isinstance(getattr(module, name, None), float)]
    return names[0] if names else ""


@contextlib.contextmanager
def _changed_eps(modules: Sequence[Any]) -> Iterator[None]:
    before = [(each, _eps_of(each), getattr(each, _eps_of(each))) for each in modules]
    for module, name, value in before:
        setattr(module, name, max(10 * value, 1e-5))
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _layers(model: Any) -> tuple[Any, Any] | None:
    for module in model.modules():
        if not isinstance(module, torch.nn.ModuleList) or len(module) < 2:
            continue
        shapes = [
            [(name, each.shape) for name, each in layer.named_parameters()] for layer in module
        ]
        if shapes[0] == shapes[1] and len(shapes[0]) > 2:
            return module[0], module[1]
    return None


@contextlib.contextmanager
def _swapped(first: Any, second: Any) -> Iterator[None]:
    def swap() -> None:
        for one, two in zip(first.parameters(), second.parameters(), strict=True):
            before = one.clone()
            one.copy_(two)
            two.copy_(before)

    with torch.no_grad():
        swap()
        try:
            yield
        finally:
            swap()


def _wrong_element(tensor: torch.Tensor) -> None:
    flat = tensor.view(-1)
    flat[tensor.numel() // 2] += 0.1 * tensor.abs().max()


def _last_row(tensor: torch.Tensor) -> None:
    rows = tensor.view(-1, tensor.shape[-1])
    rows[-1] = rows[0] if rows.shape[0] > 1 else 0


def _tail(tensor: torch.Tensor) -> None:
    tensor.view(-1)[-3:] = 0


LOCAL: dict[str, Callable[[torch.Tensor], None]] = {
    "one element off by a tenth of the largest value": _wrong_element,
    "last row is a copy of the first": _last_row,
    "last 3 elements are zero": _tail,
}


def _change(out: Any, change: Callable[[torch.Tensor], None]) -> Any:
    """Return a result whose largest float tensor is changed."""
    flat, spec = tree_flatten(out)
    floats = [
        place
        for place, each in enumerate(flat)
        if isinstance(each, torch.Tensor) and each.is_floating_point()
    ]
    place = max(floats, key=lambda place: flat[place].numel())
    copy = flat[place].clone(memory_format=torch.contiguous_format)
    change(copy)
    flat[place] = copy
    return tree_unflatten(flat, spec)


def _judge(prepared: Prepared, damage: Damage | None) -> tuple[Comparison | None, str]:
    with torch.no_grad():
        try:
            found = compare(
                prepared.callee, prepared.eager, prepared.damaged(damage), prepared.tensors
            )
        except NoEntry as error:
            return None, str(error)
    return found, found.verdict.reason


def measure(model: Model, dtype: str, device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for the model as it is, and one for each damage."""
    prepared = Prepared(model, getattr(torch, dtype), device)
    for damage in (None, *prepared.damages()):
        began = time.perf_counter()
        found, reason = _judge(prepared, damage)
        verdict = found.verdict if found else None
        limit = tolerance(torch.empty(0, dtype=getattr(torch, dtype), device=device))
        row = {
            "model": model.name,
            "dtype": dtype,
            "device": device,
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if device == "cuda" else "",
            "damage": damage.text if damage else None,
            "rmse_ratio": verdict.rmse_ratio if verdict else None,
            "max_ratio": verdict.max_ratio if verdict else None,
            "whole_ratio": verdict.whole_ratio if verdict else None,
            "old": verdict.difference if verdict else None,
            "passes": not reason,
            "old_passes": verdict is not None and verdict.difference <= limit,
            "rmse_limit": verdict.rmse_limit if verdict else None,
            "max_limit": verdict.max_limit if verdict else None,
            "numbers": verdict.numbers if verdict else None,
            "inputs": found.inputs if found else None,
            "near_ties": verdict.near_ties if verdict else None,
            "fixed": verdict.fixed if verdict else None,
            "reason": reason.partition(". ")[0],
            "took_s": round(time.perf_counter() - began, 1),
        }
        yield {**row, **_expectation(row, damage)}


def _expectation(row: Mapping[str, Any], damage: Damage | None) -> dict[str, Any]:
    if damage is None:
        return {"expected": True, "note": ""}
    if row["rmse_ratio"] is None:
        return {"expected": False, "note": ""}
    if damage.is_local and row["old_passes"]:
        return {"expected": None, "note": "a local damage that the fixed limit passes too"}
    if not damage.is_local and row["whole_ratio"] < MATTERS:
        return {"expected": None, "note": f"its RMSE is less than {MATTERS} times eager's"}
    if row["dtype"] == "float32" and row["old"] <= NEVER_REFUSED[torch.float32]:
        return {"expected": None, "note": "float32 results that differ by less than 1e-4 pass"}
    return {"expected": False, "note": ""}


class Head(torch.nn.Module):
    """Returns a few numbers for a batch of one."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128)
        )
        self.last = torch.nn.Linear(128, numbers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(x))


class Pictures(torch.nn.Module):
    """Returns a few numbers for a picture."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2),
            torch.nn.BatchNorm2d(8),
            torch.nn.SiLU(),
            torch.nn.Conv2d(8, 16, 3, stride=2),
        )
        self.last = torch.nn.Linear(16, numbers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(x).mean((2, 3))).tanh()


def _classifier(numbers: int) -> Any:
    settings = {**SMALL_BERT, "num_hidden_layers": 2, "num_labels": numbers}
    return transformers_model("Bert", settings, "ForSequenceClassification")()


SMALL: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "mlp": (Head, lambda _: (torch.randn(1, 64),)),
    "convolutions": (Pictures, lambda _: (torch.rand(1, 3, 24, 24),)),
    "bert": (_classifier, lambda _: {"input_ids": torch.randint(3, 500, (1, 12))}),
}
COMPILES = 200
"""Right results to judge, over all models, dtypes and counts of numbers."""

COUNTS = (1, 2, 10)


def measure_small(dtype: str, numbers: int, device: str) -> dict[str, Any]:
    """Judge right compiled code that returns a few numbers, with many weights and inputs."""
    refused, rmse, most, old = [], [], [], []
    inputs = 0
    each = -(-COMPILES // (len(SMALL) * len(DTYPES) * len(COUNTS)))
    for name, (make, arguments) in SMALL.items():
        model = Model(name=name, make=lambda: make(numbers), arguments=arguments)  # noqa: B023
        prepared = Prepared(model, getattr(torch, dtype), device)
        for draw in range(each):
            torch.manual_seed(draw)
            with torch.no_grad():
                for parameter in prepared.callee.parameters():
                    parameter.mul_(1 + 0.3 * torch.randn(parameter.shape).to(parameter))
                for tensor in prepared.tensors:
                    if tensor.is_floating_point():
                        tensor.normal_()
                    else:
                        tensor.random_(3, 500)
            found, reason = _judge(prepared, None)
            if reason or found is None:
                refused.append(f"{name}: {reason}")
                continue
            rmse.append(found.verdict.rmse_ratio or 0.0)
            most.append(found.verdict.max_ratio or 0.0)
            old.append(found.verdict.difference)
            inputs += found.inputs
    return {
        "numbers": numbers,
        "dtype": dtype,
        "device": device,
        "right": each * len(SMALL),
        "refused": len(refused),
        "reasons": refused[:3],
        "largest_rmse_ratio": max(rmse, default=None),
        "largest_max_ratio": max(most, default=None),
        "largest_old": max(old, default=None),
        "inputs": inputs,
    }


def _read(path: Path) -> dict[str, Any]:
    if path.exists():
        document: dict[str, Any] = json.loads(path.read_text())
        return document
    return {"rows": [], "small": []}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    document = {**document, "machine": platform.machine(), "versions": versions}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main() -> int:
    """Measure the rows that are missing from the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="right compiles of few numbers")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    is_done = (_run_small if arguments.small else _run)(arguments, until)
    document = _read(arguments.json)
    wrong = [row for row in document["rows"] if row["expected"] not in (None, row["passes"])]
    if wrong or any(row["refused"] for row in document["small"]):
        return 1
    return 0 if is_done else MORE


MORE = 75
"""Exit status while rows are left; EX_TEMPFAIL of sysexits.h."""


def _run_small(arguments: argparse.Namespace, until: float) -> bool:
    """Measure rows, and return whether none is left."""
    document = _read(arguments.json)
    known = {(row["numbers"], row["dtype"], row["device"]) for row in document["small"]}
    for numbers, dtype in itertools.product(COUNTS, arguments.dtypes):
        if (numbers, dtype, arguments.device) in known:
            continue
        if time.monotonic() > until:
            _say(AGAIN)
            return False
        document["small"].append(measure_small(dtype, numbers, arguments.device))
        _say(f"{document['small'][-1]}")
        _write(arguments.json, document)
    return True


def _run(arguments: argparse.Namespace, until: float) -> bool:
    """Measure rows, and return whether none is left."""
    document = _read(arguments.json)
    known = {(row["model"], row["dtype"], row["device"]) for row in document["rows"]}
    models = _on_cpu() if arguments.device == "cpu" else _on_gpu()
    for model, dtype in itertools.product(models, arguments.dtypes):
        if (model.name, dtype, arguments.device) in known:
            continue
        if arguments.only and model.name not in arguments.only:
            continue
        if time.monotonic() > until:
            _say(AGAIN)
            return False
        rows = []
        for row in measure(model, dtype, arguments.device):
            rows.append(row)
            _say_row(row)
        document["rows"] += rows
        _write(arguments.json, document)
    return True


AGAIN = "time is up: run the program again to go on"


def _say_row(row: Mapping[str, Any]) -> None:
    is_good = row["expected"] in (None, row["passes"])
    numbers = " ".join(
        "-" if row[name] is None else f"{row[name]:.3g}"
        for name in ("rmse_ratio", "max_ratio", "old", "numbers", "inputs", "took_s")
    )
    _say(
        f"{'' if is_good else 'BAD '}{row['model']} {row['dtype']} {row['damage']}: "
        f"{'passes' if row['passes'] else 'refused'} {numbers} {row['fixed'] or ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
