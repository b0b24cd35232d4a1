# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which architectures of `transformers` reach level 2, and what stops the others.

    python tests/architectures.py --json tests/benchmarks/results/architectures.json [NAME ...]

Tiny random models, built in one process and loaded in another; the second compares with eager.
The table has a row for each: level or reason, seconds to make and to load, error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import serve_warm
from serve_warm.compiler.watch import watch_process
from serve_warm.precompile.session import SESSION

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT = {k: v for k, v in TEXT.items() if k != "num_key_value_heads"}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4}

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("Bert", "Model", BERT, "masked"),
    "roberta": ("Roberta", "Model", BERT, "masked"),
    "distilbert": (
        "DistilBert",
        "Model",
        {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        "masked",
    ),
    "electra": ("Electra", "ForSequenceClassification", {**BERT, "embedding_size": 32}, "masked"),
    "albert": ("Albert", "Model", {**BERT, "embedding_size": 16}, "masked"),
    "mpnet": ("MPNet", "Model", BERT, "masked"),
    "deberta-v2": (
        "DebertaV2",
        "Model",
        {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "masked",
    ),
    "modernbert": ("ModernBert", "Model", BERT, "masked"),
    "gpt2": (
        "GPT2",
        "LMHeadModel",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        "no cache",
    ),
    "llama": ("Llama", "ForCausalLM", TEXT, "no cache"),
    "qwen3": ("Qwen3", "ForCausalLM", {**TEXT, "head_dim": 8}, "no cache"),
    "gemma2": ("Gemma2", "ForCausalLM", {**TEXT, "head_dim": 8}, "no cache"),
    "llama, cache made inside": ("Llama", "ForCausalLM", TEXT, "cache inside"),
    "llama, DynamicCache given": ("Llama", "ForCausalLM", TEXT, "dynamic cache"),
    "llama, StaticCache given": ("Llama", "ForCausalLM", TEXT, "static cache"),
    "mixtral": ("Mixtral", "ForCausalLM", {**TEXT, **EXPERTS}, "no cache"),
    "qwen3-moe": (
        "Qwen3Moe",
        "ForCausalLM",
        {**TEXT, **EXPERTS, "head_dim": 8, "moe_intermediate_size": 16},
        "no cache",
    ),
    "mamba": (
        "Mamba",
        "ForCausalLM",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "no cache",
    ),
    "t5": (
        "T5",
        "ForConditionalGeneration",
        {
            "vocab_size": 64,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
        },
        "encoder-decoder",
    ),
    "bart": (
        "Bart",
        "Model",
        {
            "vocab_size": 64,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
        "encoder-decoder",
    ),
    "vit": ("ViT", "Model", VISION, "image"),
    "convnext": (
        "ConvNext",
        "Model",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 32},
        "image",
    ),
    "resnet": (
        "ResNet",
        "Model",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        "image",
    ),
    "clip vision": ("CLIPVision", "Model", VISION, "image"),
    "whisper encoder-decoder": (
        "Whisper",
        "Model",
        {
            "vocab_size": 64,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        "audio features",
    ),
    "wav2vec2": (
        "Wav2Vec2",
        "Model",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "conv_dim": [8, 8],
            "conv_kernel": [10, 3],
            "conv_stride": [5, 2],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        },
        "waveform",
    ),
}
"""Class without its last word, that word, configuration, and which inputs it takes."""

FEW = ("llama", "llama, DynamicCache given")
"""Those that `make test` takes; the command takes all."""
MORE = ("bert", "vit")
"""Those that `make stress` takes, too."""


def model_of(name: str) -> torch.nn.Module:
    import transformers

    kind, suffix, settings, _ = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    model: torch.nn.Module = getattr(transformers, f"{kind}{suffix}")(config)
    return model.eval()


def inputs_of(name: str, model: Any) -> dict[str, Any]:
    """Return the arguments of one call."""
    import transformers

    torch.manual_seed(1)
    kind = ARCHITECTURES[name][3]
    ids = torch.randint(3, 60, (2, 8))
    mask = torch.ones(2, 8, dtype=torch.int64)
    if kind == "dynamic cache":
        cache: Any = transformers.DynamicCache(config=model.config)
        return {"input_ids": ids, "past_key_values": cache}
    if kind == "static cache":
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        return {"input_ids": ids, "past_key_values": cache}
    calls: dict[str, dict[str, Any]] = {
        "masked": {"input_ids": ids, "attention_mask": mask},
        "no cache": {"input_ids": ids, "use_cache": False},
        "cache inside": {"input_ids": ids},
        "encoder-decoder": {"input_ids": ids, "decoder_input_ids": ids[:, :4], "use_cache": False},
        "image": {"pixel_values": torch.rand(2, 3, 32, 32)},
        "waveform": {"input_values": torch.rand(2, 400)},
        "audio features": {
            "input_features": torch.rand(2, 8, 32),
            "decoder_input_ids": ids[:, :4],
            "use_cache": False,
        },
    }
    return calls[kind]


def build(names: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Make entries, a folder for each architecture, and return what became of them."""
    rows = {}
    for name in names:
        torch._dynamo.reset()
        eager = model_of(name)
        model = serve_warm.compile(eager, dynamic=False)
        began = time.perf_counter()
        # Only what level 2 does is measured: where there is no entry, level 1 runs eagerly.
        with (
            torch.inference_mode(),
            torch.compiler.set_stance("force_eager"),
            SESSION.building() as library,
        ):
            model(**inputs_of(name, eager))
        where = folder / name.replace(" ", "_").replace(",", "")
        where.mkdir()
        for file, data in library.to_files().items():
            (where / file).write_bytes(data)
        entries = [entry for unit in library.units.values() for entry in unit.entries]
        rows[name] = {
            "refused": "; ".join(library.refused.values()),
            "make_s": round(time.perf_counter() - began, 2),
            "error_at_build": max((entry.error for entry in entries), default=None),
            "bytes": sum(file.stat().st_size for file in where.iterdir()),
            "facts": sum(len(entry.facts.facts) for entry in entries),
        }
    return rows


def start(names: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Load the entries, call each model once, and compare with eager."""
    watch = watch_process()
    rows = {}
    for name in names:
        eager = model_of(name)
        model = serve_warm.compile(eager, dynamic=False)
        began = time.perf_counter()
        why = SESSION.load(folder / name.replace(" ", "_").replace(",", ""))
        counts = watch.counts()
        with torch.inference_mode():
            with torch.compiler.set_stance("force_eager"):
                ours = model(**inputs_of(name, eager))
            seconds = time.perf_counter() - began
            theirs = eager(**inputs_of(name, eager))
        uses = model.__dict__["_serve_warm"].uses()
        rows[name] = {
            "level": min((use.level for use in uses), default=1),
            "reason": why or "; ".join(use.reason for use in uses if use.reason),
            "same_class": type(ours) is type(theirs),
            "error": _error(ours, theirs),
            "compiles": (watch.counts() - counts).compiles,
            "load_and_first_call_s": round(seconds, 3),
        }
        SESSION.unload()
    return rows


def _error(ours: Any, theirs: Any) -> float:
    from torch.utils._pytree import tree_leaves

    pairs = zip(tree_leaves(ours), tree_leaves(theirs), strict=True)
    return max(
        float((one - other).abs().max() / other.abs().max().clamp_min(1e-6))
        for one, other in pairs
        if isinstance(one, torch.Tensor) and one.is_floating_point()
    )


def table(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return a row for each architecture: a build in one process, a start in another."""
    with tempfile.TemporaryDirectory() as folder:
        question = ["--in", folder, *names]
        environ = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache",
            # Torch's probes of the CPU say nothing of entries, and take five seconds.
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
        }
        rows: dict[str, dict[str, Any]] = {name: {} for name in names}
        for do in ("build", "start"):
            answer = subprocess.run(
                [sys.executable, __file__, "--do", do, *question],
                env=environ,
                stdout=subprocess.PIPE,
                check=True,
            )
            for name, row in json.loads(answer.stdout.splitlines()[-1]).items():
                rows[name].update(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--do", choices=["build", "start"])
    parser.add_argument("--in", type=Path, dest="folder")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    names = asked.names or list(ARCHITECTURES)
    if asked.do:
        torch.set_num_threads(1)
        answer = {"build": build, "start": start}[asked.do](names, asked.folder)
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    rows = table(names)
    for name, row in rows.items():
        sys.stdout.write(f"{name:28} {row['level']}  {row['error']:.1e}  {row['reason']}\n")
    if asked.json:
        import transformers

        versions = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
