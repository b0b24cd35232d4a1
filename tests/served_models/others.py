# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models of timm, peft, sentence-transformers, PyG, torchao and open_clip."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from served_models.rows import DYNAMIC, ONE, TWO, Row, image, masked, no_cache, transformers_model
from served_models.seen_and_heard import VISION
from served_models.text import BERT, TEXT

LLAMA = transformers_model("Llama", TEXT, "ForCausalLM")

sentences = functools.partial(Row, library="sentence-transformers")
graphs = functools.partial(Row, library="torch_geometric")
quantised = functools.partial(Row, library="torchao")
clip = functools.partial(Row, library="open_clip")


def _picture(_: Any, more: int) -> tuple[Any, ...]:
    return (torch.rand(2 + more, 3, 64, 64),)


def _timm(name: str, shapes: str = ONE, *, of: str = "", **settings: Any) -> Row:
    def make() -> Any:
        import timm

        return timm.create_model(of or name, num_classes=10, **settings)

    return Row(name=f"timm {name}", library="timm", make=make, call=_picture, shapes=shapes)


TIMM = [
    _timm("resnet18", DYNAMIC),
    _timm("vit", TWO, of="vit_tiny_patch16_224", img_size=64, depth=2, embed_dim=32, num_heads=2),
    _timm("efficientnet", of="test_efficientnet"),
    _timm("mobilenetv3_small_050"),
    _timm("convnextv2", of="convnextv2_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
    _timm(
        "eva02",
        of="eva02_tiny_patch14_224",
        img_size=64,
        patch_size=16,
        depth=2,
        embed_dim=48,
        num_heads=2,
    ),
    _timm(
        "swin",
        of="swin_tiny_patch4_window7_224",
        img_size=64,
        depths=(1, 1),
        num_heads=(2, 2),
        embed_dim=16,
        window_size=4,
    ),
    _timm("features only", of="test_resnet"),
]


def _adapted(
    name: str,
    config: str,
    *,
    shapes: str = ONE,
    after: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Row:
    def make() -> Any:
        import peft

        model = peft.get_peft_model(LLAMA(), getattr(peft, config)(**settings))
        return model if after is None else after(model)

    return Row(name=f"peft {name}", library="peft", make=make, call=no_cache, shapes=shapes)


def _merge(model: Any) -> Any:
    return model.merge_and_unload()


def _add_second(model: Any) -> Any:
    import peft

    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"]))
    model.set_adapter("second")
    return model


def _lora_of_images() -> Any:
    import peft

    make = transformers_model("ViT", {**VISION, "num_labels": 3}, "ForImageClassification")
    return peft.get_peft_model(make(), peft.LoraConfig(r=2, target_modules="all-linear"))


PEFT = [
    _adapted("lora", "LoraConfig", shapes=TWO, r=2, target_modules=["q_proj", "v_proj"]),
    _adapted("lora, merged", "LoraConfig", after=_merge, r=2, target_modules=["q_proj"]),
    _adapted("dora", "LoraConfig", r=2, use_dora=True, target_modules=["q_proj", "v_proj"]),
    _adapted("two adapters", "LoraConfig", after=_add_second, r=2, target_modules=["q_proj"]),
    _adapted(
        "ia3",
        "IA3Config",
        target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    ),
    Row(name="peft lora of vit", library="peft", make=_lora_of_images, call=image),
]


def _embedder() -> Any:
    """Return a SentenceTransformer whose modules need no tokenizer."""
    import sentence_transformers
    from sentence_transformers import models

    encoder = Encoder(transformers_model("Bert", BERT)())
    return sentence_transformers.SentenceTransformer(
        modules=[encoder, models.Pooling(32, "mean"), models.Normalize()], device="cpu"
    )


def _projected() -> Any:
    import sentence_transformers
    from sentence_transformers import models

    encoder = Encoder(transformers_model("MPNet", BERT)())
    parts = [encoder, models.Pooling(32, "cls"), models.Dense(32, 16)]
    return sentence_transformers.SentenceTransformer(modules=parts, device="cpu")


class Encoder(torch.nn.Module):
    """The computation of sentence-transformers' `Transformer`, for a model without a tokenizer."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add the embeddings of the tokens."""
        given = {key: features[key] for key in ("input_ids", "attention_mask")}
        return {**features, "token_embeddings": self.model(**given)[0]}


def _features(_: Any, more: int) -> tuple[Any, ...]:
    return (masked(_, more),)


class Reranker(torch.nn.Module):
    """The score of a cross-encoder: a classifier's logit, through its activation."""

    def __init__(self) -> None:
        super().__init__()
        settings = {**BERT, "num_labels": 1}
        self.model = transformers_model("Bert", settings, "ForSequenceClassification")()
        self.activation_fn = torch.nn.Sigmoid()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return a score for each pair."""
        return self.activation_fn(self.model(input_ids, attention_mask).logits)


def _splade() -> Any:
    from sentence_transformers.sparse_encoder.models import SpladePooling

    words = transformers_model("Bert", BERT, "ForMaskedLM")()
    return torch.nn.Sequential(Encoder(words), SpladePooling("max"))


SENTENCES = [
    sentences(name="sentence embedder", make=_embedder, call=_features, shapes=TWO),
    sentences(name="sentence embedder, projected", make=_projected, call=_features, shapes=DYNAMIC),
    sentences(name="reranker", make=Reranker, call=masked, shapes=DYNAMIC),
    sentences(name="splade", make=_splade, call=_features),
]


def _graph(_: Any, more: int) -> tuple[Any, ...]:
    nodes, edges = 10 + more, 20 + 4 * more
    return torch.randn(nodes, 8), torch.randint(0, nodes, (2, edges))


def _typed_graph(_: Any, more: int) -> tuple[Any, ...]:
    x, edges = _graph(_, more)
    return x, edges, torch.randint(0, 3, (edges.shape[1],))


def _graphs(_: Any, more: int) -> tuple[Any, ...]:
    x, edges = _graph(_, more)
    return x, edges, torch.arange(x.shape[0]) // 5


class TypedGraph(torch.nn.Module):
    """Two relational convolutions."""

    def __init__(self) -> None:
        from torch_geometric.nn import RGCNConv

        super().__init__()
        self.first, self.second = RGCNConv(8, 16, 3), RGCNConv(16, 4, 3)

    def forward(self, x: Any, edges: Any, kinds: Any) -> torch.Tensor:
        """Return a row for each node."""
        return self.second(self.first(x, edges, kinds).relu(), edges, kinds)


class GraphClassifier(torch.nn.Module):
    """A network over nodes, a mean for each graph, and a layer."""

    def __init__(self) -> None:
        from torch_geometric.nn import GIN

        super().__init__()
        self.nodes, self.last = GIN(8, 16, 2), torch.nn.Linear(16, 3)

    def forward(self, x: Any, edges: Any, graph: Any) -> torch.Tensor:
        """Return a row for each of two graphs."""
        from torch_geometric.nn import global_mean_pool

        return self.last(global_mean_pool(self.nodes(x, edges), graph, size=3))


def _pyg(name: str) -> Callable[[], Any]:
    def make() -> Any:
        import torch_geometric

        return getattr(torch_geometric.nn, name)(8, 16, 2, 4)

    return make


GRAPHS = [
    graphs(name="gcn", make=_pyg("GCN"), call=_graph, shapes=TWO),
    graphs(name="gat", make=_pyg("GAT"), call=_graph),
    graphs(name="graphsage", make=_pyg("GraphSAGE"), call=_graph, shapes=DYNAMIC),
    graphs(name="rgcn", make=TypedGraph, call=_typed_graph),
    graphs(name="graph classifier", make=GraphClassifier, call=_graphs),
]


def _quantised(name: str) -> Callable[[], Any]:
    def make() -> Any:
        from torchao import quantization

        model = LLAMA().eval()
        quantization.quantize_(model, getattr(quantization, name)())
        return model

    return make


def _dynamically() -> Any:
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(transformers_model("Bert", BERT)().eval(), {torch.nn.Linear})


QUANTISED = [
    quantised(name="int8 weights", make=_quantised("Int8WeightOnlyConfig"), call=no_cache),
    quantised(
        name="int8 weights and activations",
        make=_quantised("Int8DynamicActivationInt8WeightConfig"),
        call=no_cache,
    ),
    quantised(name="float8 weights", make=_quantised("Float8WeightOnlyConfig"), call=no_cache),
    quantised(name="quantize_dynamic", make=_dynamically, call=masked),
]

CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "layers": 2, "width": 32, "head_width": 8},
    "text_cfg": {"vocab_size": 64, "context_length": 12, "width": 32, "heads": 4, "layers": 2},
}


COCA: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {
        **CLIP["vision_cfg"],
        "attentional_pool": True,
        "attn_pooler_heads": 2,
        "output_tokens": True,
    },
    "text_cfg": {**CLIP["text_cfg"], "embed_cls": True, "output_tokens": True},
    "multimodal_cfg": {**CLIP["text_cfg"], "attn_pooler_heads": 2},
}


def _clip(kind: str = "CLIP", settings: dict[str, Any] = CLIP) -> Callable[[], Any]:
    def make() -> Any:
        import open_clip

        return getattr(open_clip, kind)(**settings)

    return make


def _coca() -> Any:
    model = _clip("CoCa", COCA)()
    # open_clip (3.3) does not initialize this tensor, because it expects loaded weights.
    torch.nn.init.normal_(model.text_decoder.text_projection)
    return model


def _pairs(_: Any, more: int) -> tuple[Any, ...]:
    return torch.rand(2 + more, 3, 32, 32), torch.randint(1, 60, (2 + more, 12))


def _images(_: Any, more: int) -> tuple[Any, ...]:
    return (torch.rand(2 + more, 3, 32, 32),)


OPEN_CLIP = [
    clip(name="open_clip", make=_clip(), call=_pairs, shapes=TWO),
    clip(
        name="open_clip, images", make=_clip(), call=_images, shapes=DYNAMIC, method="encode_image"
    ),
    clip(name="coca", make=_coca, call=_pairs),
]

ROWS = [*TIMM, *PEFT, *SENTENCES, *GRAPHS, *QUANTISED, *OPEN_CLIP]
