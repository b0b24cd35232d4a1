# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` that decode by compiled steps: eager's tokens, by entries of a build."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import generators
import serve_warm
from components import require_module
from generators import MODELS, batch_of, draw, eagerly, generate, load, load_compiled  # noqa: F401 - a fixture
from levels import in_a_process
from serve_warm.compiler.compiled_objects import compile_arguments, reaches_compiled
from serve_warm.errors import ConfigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
]

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "generation.json"

APP = """
import generators

FORBID = True
def make():
    models = {{"eager": generators.load("{name}")}}
    models["compiled"] = generators.load_compiled("{name}", level={level}, lengths=(16,))
    def run(side, lengths, count):
        if side == "were the steps compared?":
            return [[models["compiled"]._serve_warm_check.is_done]]
        if side == "touch":  # a change that no entry depends on
            models["compiled"].get_input_embeddings().touched = True
            return [[]]
        inputs = generators.batch_of("{name}", lengths)
        return generators.generate(models[side], inputs, max_new_tokens=count)
    return run

def calls():
    return [("touch", (), 0)] + [
        (side, lengths, count)
        for lengths, count in (((12, 9), {tokens}), ((3,), 4))
        for side in ("eager", "compiled")
    ] + [("were the steps compared?", (), 0)]
"""


@pytest.fixture(params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.usefixtures("eagerly")
def test_tokens_and_logits_are_those_of_eager(name: str):
    inputs = batch_of(name, (16, 9, 1))
    options: dict[str, Any] = {"return_dict_in_generate": True, "output_logits": True}
    theirs = draw(load(name), inputs, **options)
    ours = draw(load_compiled(name), inputs, **options)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    expected = torch.stack(theirs.logits)
    assert (torch.stack(ours.logits) - expected).abs().max() < 1e-5 * expected.abs().max()


SERVED = [
    pytest.param(name, level, marks=pytest.mark.long if in_ci else pytest.mark.stress)
    for name in MODELS
    for level in (2, 3)
    for in_ci in [(name, level) == ("llama", 2)]
]


@pytest.mark.parametrize(("served", "level"), SERVED)
def test_another_process_decodes_without_a_compile(served: str, level: int, tmp_path: Path):
    """A build makes an entry for each bucket and one for decode steps; a start loads them all."""
    source = APP.format(name=served, level=level, tokens=generators.TOKENS)
    (tmp_path / "app.py").write_text(source)
    built = in_a_process(tmp_path, "build", level=level)
    start = in_a_process(tmp_path, "start")

    assert built["refused"] == {}
    assert (start["why"], start["reasons"], start["compiles"]) == ("", [""], 0)
    assert start["compiler_processes"] == 0
    assert set(start["levels"]) == {level}
    _, *outputs, are_compared = start["outputs"]
    assert outputs[1::2] == outputs[0::2]
    assert are_compared == "[[False]]"  # the build has done this


def test_the_committed_table_is_of_what_was_served():
    """Each row of the guide has eager's tokens, no compile, and its level for every call."""
    rows = json.loads(RESULTS.read_text())["rows"]
    assert {row["model"] for row in rows} <= MODELS.keys()
    for row in rows:
        found = row["tokens_equal"], row["compiles"], row["refused"], row["why"]
        assert found == (True, 0, [], "")
        assert row["levels"] == [row["level"]]


@pytest.mark.usefixtures("eagerly")
def test_the_model_stays_as_it_was():
    model = load("llama")
    attributes, names = set(vars(model)), list(model.state_dict())
    compiled = serve_warm.compile_generation(model, batch=1, max_length=32, prompt_lengths=[16])
    generate(compiled, batch_of("llama", (5,)), max_new_tokens=4)
    assert set(vars(model)) == attributes
    assert list(compiled.state_dict()) == list(model.state_dict()) == names
    assert compiled.lm_head.weight is model.lm_head.weight
    assert isinstance(compiled, type(model))


@pytest.mark.parametrize("level", [2, 3])
def test_the_fingerprint_sees_how_the_steps_are_compiled(level: int):
    """Else an artifact of another level or mode would fit, and no call would have its entry."""
    options = {"epilogue_fusion": False}
    owner = SimpleNamespace(model=load_compiled("llama", level=level, options=options))
    arguments = compile_arguments(owner)
    assert reaches_compiled(owner)
    assert list(arguments) == ["model"]
    assert "epilogue_fusion" in arguments["model"]
    assert ("level=3" in arguments["model"]) == (level == 3)


def llama4() -> Any:
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")
    settings = {**generators.TEXT, "intermediate_size_mlp": 48, "num_local_experts": 2}
    kinds = ["chunked_attention", "full_attention"]
    config = transformers.Llama4TextConfig(
        **settings, head_dim=8, attention_chunk_size=8, layer_types=kinds
    )
    return transformers.Llama4ForCausalLM(config).eval()


def mamba() -> Any:
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")
    return transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    ).eval()


def flash() -> Any:
    model = load("llama")
    model.config._attn_implementation = "flash_attention_2"
    return model


SIZES = {"batch": 2, "max_length": 32, "prompt_lengths": [16]}
NO_ROOM = "the prompt length 32 leaves no room in max_length=32"
# Since transformers 5.24, a Mamba's states are layers of a cache too.
STATES = "does not keep its state in a transformers key-value cache|kind is linear attention"
CHUNKED = "layer 0 of Llama4ForCausalLM has no static key-value cache.*chunked attention"


@pytest.mark.parametrize(
    ("make", "sizes", "message"),
    [
        (mamba, {}, STATES),
        (llama4, {}, CHUNKED),
        (lambda: torch.nn.Linear(2, 2), {}, r"a Linear, which has no generate\(\)"),
        (lambda: load("llama").model, {}, r"a LlamaModel, which has no generate\(\)"),
        (lambda: load("llama").train(), {}, "in training mode"),
        (flash, {}, "attention 'flash_attention_2', whose masks are not tensors"),
        (lambda: load("llama"), {"max_length": 65}, "max_length=65 exceeds the 64 positions"),
        (lambda: load("whisper"), {"max_length": 65}, "max_length=65 exceeds the 64 positions"),
        (lambda: load("llama"), {"prompt_lengths": []}, "got no prompt_lengths"),
        (lambda: load("llama"), {"prompt_lengths": [32]}, NO_ROOM),
        (lambda: load("llama"), {"batch": 0}, "got an invalid batch: 0"),
        (lambda: load("llama"), {"batch": True}, "got an invalid batch: True"),
        (lambda: load("llama"), {"prompt_lengths": 4}, "got prompt_lengths=4"),
        (lambda: load("llama"), {"prompt_lengths": [4, "8"]}, "got an invalid prompt_lengths: '8'"),
    ],
)
def test_a_model_without_a_static_cache_says_why(make: Any, sizes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message) as refused:
        serve_warm.compile_generation(make(), **{**SIZES, **sizes})
    assert refused.value.hint


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_model_generates_as_before_where_the_compiler_is_off(
    how: str, monkeypatch: pytest.MonkeyPatch
):
    model = load("llama")
    inputs = batch_of("llama")
    expected = generate(model, inputs)
    kind = type(model)
    if how == "variable":
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")

    found = serve_warm.compile_generation(
        load("llama"),
        **{**SIZES, "max_length": 60},
        **({"disable": True} if how == "argument" else {}),
    )

    assert generate(found, inputs) == expected
    assert isinstance(found, kind)
    assert type(model) is kind


def test_the_line_that_branches_is_named():
    """A model whose step has no single graph: torch's own error names the call of generate()."""
    transformers = require_module("transformers", "pip install 'serve-warm[generation]'")

    class Branching(transformers.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        def forward(self, input_ids: Any = None, position_ids: Any = None, **rest: Any) -> Any:
            out = super().forward(input_ids, position_ids=position_ids, **rest)
            if out.logits.sum() > 0:  # branches
                out.logits = out.logits * 1
            return out

    model = generators.with_steps(Branching(transformers.LlamaConfig(**generators.TEXT)).eval())

    with pytest.raises(ConfigError, match="cannot be compiled as one graph: data-dep") as error:
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=2)

    line = Branching.forward.__code__.co_firstlineno + 2
    assert f"at test_generation.py:{line}: `if out.logits.sum() > 0:" in error.value.message
    assert "without compile_generation" in str(error.value.hint)
    assert "\n" not in error.value.message


def test_a_changed_graph_raises_its_version():
    """Facts never digest code of this package, so GRAPH must change if the traced graph changes.

    If this fails because a step computes otherwise: raise GRAPH and record both. If it computes the
    same graph: record the digest alone.
    """
    steps = require_module("serve_warm.generation.steps", "pip install 'serve-warm[generation]'")
    tree = ast.parse(Path(steps.__file__).read_text())
    for node in ast.walk(tree):
        has_text = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Module))
        if has_text and ast.get_docstring(node):
            node.body = node.body[1:]
    text = "\n".join(ast.unparse(node) for node in tree.body)
    assert (steps.GRAPH, hashlib.sha256(text.encode()).hexdigest()[:16]) == (1, "23bee44701f7331f")
