# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A second list of models, chosen by their use before any of them was compiled."""

from __future__ import annotations

from typing import Any

import torch

from served_models.diffusion import UNET
from served_models.others import graphs, quantised
from served_models.rows import (
    DYNAMIC,
    TWO,
    Row,
    ids,
    image,
    transformers_model,
    transformers_row,
)
from served_models.seen_and_heard import (
    AROUND_IMAGES,
    IMAGE_TOKEN,
    STAGES,
    TEXT_IN_SPACE,
    VISION,
    WAVES,
)
from served_models.text import BART, BERT, HEADS, SIZES, TEXT


def _right_padded(_: Any, more: int) -> dict[str, Any]:
    """Two texts of different lengths, as the tokenizer of an encoder gives them."""
    tokens = ids(more)
    mask = torch.ones_like(tokens)
    mask[1, -3:] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def _left_padded(_: Any, more: int) -> dict[str, Any]:
    """Two prompts of different lengths, as the tokenizer of a decoder gives them."""
    tokens = ids(more)
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def _prompts(_: Any, more: int) -> dict[str, Any]:
    return {**_left_padded(_, more), "use_cache": False}


def _proteins(_: Any, more: int) -> dict[str, Any]:
    """Two chains of amino acids, with a residue masked in each and the shorter one padded."""
    tokens = torch.randint(4, 24, (2, 10 + 4 * more))
    mask = torch.ones_like(tokens)
    tokens[:, 0], tokens[:, 2] = 0, 32
    tokens[1, -3:], mask[1, -3:] = 1, 0
    return {"input_ids": tokens, "attention_mask": mask}


def _captions(_: Any, more: int) -> dict[str, Any]:
    """Texts for CLIP. All have the same length, and the end token has the largest id."""
    tokens = torch.randint(3, 60, (2 + more, 16))
    tokens[:, 0], tokens[:, 9:] = 62, 63
    return {"input_ids": tokens}


def _translated(_: Any, more: int) -> dict[str, Any]:
    given = _right_padded(_, more)
    return {**given, "decoder_input_ids": ids()[:, :4], "use_cache": False}


class Reranker(torch.nn.Module):
    """The score of a decoder that answers yes or no: the share of "yes" at the last token."""

    yes, no = 11, 12

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers_model("Qwen3", HEADS, "ForCausalLM")()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return a score for each pair of a query and a document."""
        given = {"attention_mask": attention_mask, "use_cache": False, "logits_to_keep": 1}
        last = self.model(input_ids, **given).logits[:, -1]
        answers = torch.stack([last[:, self.no], last[:, self.yes]], dim=1)
        return answers.log_softmax(dim=1)[:, 1].exp()


def _qwen35() -> Any:
    import transformers

    config = transformers.Qwen3_5TextConfig(
        **HEADS,
        layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 1.0,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )
    return transformers.Qwen3_5ForCausalLM(config)


WRITTEN = [
    transformers_row("nomic-bert", "NomicBert", BERT, _right_padded, shapes=DYNAMIC),
    transformers_row(
        "esm2",
        "Esm",
        {
            **BERT,
            "vocab_size": 33,
            "pad_token_id": 1,
            "mask_token_id": 32,
            "position_embedding_type": "rotary",
            "token_dropout": True,
            "emb_layer_norm_before": False,
        },
        _proteins,
        "ForMaskedLM",
        TWO,
    ),
    transformers_row(
        "clip text, projected",
        "CLIPText",
        {**BERT, "bos_token_id": 62, "eos_token_id": 63, "projection_dim": 16},
        _captions,
        "ModelWithProjection",
        TWO,
    ),
    transformers_row(
        "embeddinggemma",
        "Gemma3Text",
        {
            **HEADS,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
            "use_bidirectional_attention": True,
        },
        _right_padded,
        shapes=DYNAMIC,
    ),
    Row(
        name="qwen3 reranker",
        library="transformers",
        make=Reranker,
        call=_left_padded,
        shapes=DYNAMIC,
    ),
    transformers_row(
        "opt, left padding",
        "OPT",
        {**BERT, "ffn_dim": 48, "word_embed_proj_dim": 32},
        _prompts,
        "ForCausalLM",
        DYNAMIC,
    ),
    transformers_row(
        "deepseek-v3",
        "DeepseekV3",
        {
            **TEXT,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
        },
        _prompts,
        "ForCausalLM",
        TWO,
    ),
    Row(name="qwen3.5", library="transformers", make=_qwen35, call=_prompts, shapes=TWO),
    transformers_row("nllb", "M2M100", BART, _translated, "ForConditionalGeneration", TWO),
]


def _trocr() -> Any:
    import transformers

    encoder = transformers.DeiTConfig(**VISION)
    kept = {key: BART[key] for key in BART if not key.startswith(("encoder", "forced"))}
    decoder = transformers.TrOCRConfig(**kept, is_decoder=True, add_cross_attention=True)
    config = transformers.VisionEncoderDecoderConfig(
        encoder=encoder.to_dict(), decoder=decoder.to_dict()
    )
    return transformers.VisionEncoderDecoderModel(config)


def _line(_: Any, more: int) -> dict[str, Any]:
    """Pictures of lines of text, and the text so far."""
    return {**image(_, 0), "decoder_input_ids": ids(more), "use_cache": False}


def _densenet() -> Any:
    import timm

    return timm.create_model(
        "densenet121", num_classes=10, growth_rate=8, block_config=(2, 2, 2, 2)
    )


def _picture(_: Any, more: int) -> tuple[Any, ...]:
    return (torch.rand(2 + more, 3, 64, 64),)


def _photograph(_: Any, more: int, size: int = 64) -> dict[str, Any]:
    """The inputs of a detector: pictures, and a mask of the pixels that are not padding."""
    mask = torch.ones(1 + more, size, size, dtype=torch.long)
    return {"pixel_values": torch.rand(1 + more, 3, size, size), "pixel_mask": mask}


def _of_one_size(_: Any, more: int) -> dict[str, Any]:
    return {"pixel_values": torch.rand(1 + more, 3, 64, 64)}


def _named_things(_: Any, more: int) -> dict[str, Any]:
    """A photograph and the text "a cat. a dog.". The tokens of BERT divide its phrases."""
    tokens = torch.tensor([[101, 1037, 900, 1012, *[1037, 901, 1012] * (1 + more), 102]])
    return {
        **_photograph(_, 0, 128),
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "token_type_ids": torch.zeros_like(tokens),
    }


def _clicks(_: Any, more: int) -> dict[str, Any]:
    points = torch.rand(1, 1, 1 + more, 2) * 64
    labels = torch.ones(1, 1, 1 + more, dtype=torch.long)
    return {**_of_one_size(_, 0), "input_points": points, "input_labels": labels}


FOUR_STAGES = {
    **STAGES,
    "model_type": "swin",
    "image_size": 64,
    "patch_size": 4,
    "window_size": 2,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 2, 2],
}

SEEN = [
    Row(name="trocr", library="transformers", make=_trocr, call=_line, shapes=TWO),
    transformers_row(
        "dinov3", "DINOv3ViT", {**VISION, "num_register_tokens": 4}, image, shapes=DYNAMIC
    ),
    Row(name="timm densenet", library="timm", make=_densenet, call=_picture, shapes=DYNAMIC),
    transformers_row(
        "rt-detr",
        "RTDetr",
        {
            "backbone_config": {
                "model_type": "rt_detr_resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 16, 24, 32],
                "depths": [1, 1, 1, 1],
                "layer_type": "basic",
                "out_features": ["stage2", "stage3", "stage4"],
            },
            "encoder_in_channels": [16, 24, 32],
            "decoder_in_channels": [32, 32, 32],
            "encoder_hidden_dim": 32,
            "encoder_ffn_dim": 48,
            "encoder_attention_heads": 4,
            "d_model": 32,
            "num_queries": 5,
            "decoder_ffn_dim": 48,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "num_labels": 3,
        },
        _photograph,
        "ForObjectDetection",
        TWO,
    ),
    transformers_row(
        "grounding-dino",
        "GroundingDino",
        {
            "backbone_config": {**FOUR_STAGES, "image_size": 128, "out_indices": [2, 3, 4]},
            "text_config": {**BERT, "model_type": "bert", "vocab_size": 1100},
            "num_queries": 5,
            "encoder_layers": 2,
            "encoder_ffn_dim": 48,
            "encoder_attention_heads": 4,
            "decoder_layers": 2,
            "decoder_ffn_dim": 48,
            "decoder_attention_heads": 4,
            "d_model": 32,
            "max_text_len": 16,
            "disable_custom_kernels": True,
        },
        _named_things,
        "ForObjectDetection",
    ),
    transformers_row(
        "mask2former",
        "Mask2Former",
        {
            "backbone_config": {
                **FOUR_STAGES,
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
            "feature_size": 32,
            "mask_feature_size": 32,
            "hidden_dim": 32,
            "encoder_feedforward_dim": 48,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "num_attention_heads": 4,
            "dim_feedforward": 48,
            "num_queries": 5,
            "num_labels": 3,
        },
        _photograph,
        "ForUniversalSegmentation",
    ),
    transformers_row(
        "sam2",
        "Sam2",
        {
            "vision_config": {
                "backbone_config": {
                    "model_type": "sam2_hiera_det_model",
                    "hidden_size": 8,
                    "image_size": [64, 64],
                    "blocks_per_stage": [1, 1, 2, 1],
                    "embed_dim_per_stage": [8, 16, 32, 64],
                    "window_size_per_stage": [4, 2, 4, 2],
                    "global_attention_blocks": [3],
                },
                "backbone_channel_list": [64, 32, 16, 8],
                "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
                "fpn_hidden_size": 32,
            },
            "prompt_encoder_config": {
                "hidden_size": 32,
                "image_size": 64,
                "patch_size": 16,
                "mask_input_channels": 4,
            },
            "mask_decoder_config": {
                "hidden_size": 32,
                "mlp_dim": 48,
                "num_attention_heads": 4,
                "iou_head_hidden_dim": 16,
            },
        },
        _clicks,
        shapes=TWO,
    ),
]


def _picture_of_patches(_: Any, more: int) -> dict[str, Any]:
    """A picture, cut into patches. The second picture is twice as wide."""
    wide = 4 * (1 + more)
    tokens = torch.cat([torch.full((1, wide), IMAGE_TOKEN), ids()[:1]], dim=1)
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.rand(4 * wide, 3 * 2 * 8 * 8),
        "image_grid_thw": torch.tensor([[1, 4, wide]]),
        "mm_token_type_ids": (tokens == IMAGE_TOKEN).int(),
        "use_cache": False,
    }


def _begun_caption(_: Any, more: int) -> dict[str, Any]:
    return {**image(_, 0), **_right_padded(_, more)}


def _page(_: Any, more: int) -> dict[str, Any]:
    """The words of a page, their positions, and the picture of the page."""
    words = _right_padded(_, more)
    boxes = torch.randint(0, 60, (*words["input_ids"].shape, 4)).sort()[0]
    return {**words, **image(_, 0), "bbox": boxes}


def _task_and_image(_: Any, more: int) -> dict[str, Any]:
    """The tokens of a picture, then those of a task."""
    task = ids(more)
    tokens = torch.cat([torch.full((2, 5), IMAGE_TOKEN), task], dim=1)
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.rand(2, 3, 64, 64),
        "decoder_input_ids": ids()[:, :4],
        "use_cache": False,
    }


SEEN_AND_READ = [
    transformers_row(
        "qwen2.5-vl",
        "Qwen2_5_VL",
        {
            "text_config": TEXT_IN_SPACE,
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "out_hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 4,
                "patch_size": 8,
                "window_size": 32,
                "fullatt_block_indexes": [1],
            },
            **AROUND_IMAGES,
        },
        _picture_of_patches,
        "ForConditionalGeneration",
        TWO,
    ),
    transformers_row(
        "blip, captions",
        "Blip",
        {
            "text_config": {**BERT, "sep_token_id": 3},
            "vision_config": {**VISION, "initializer_range": 0.02},
            "projection_dim": 16,
            "image_text_hidden_size": 16,
        },
        _begun_caption,
        "ForConditionalGeneration",
        TWO,
    ),
    transformers_row(
        "layoutlmv3",
        "LayoutLMv3",
        {
            **BERT,
            "max_2d_position_embeddings": 64,
            "coordinate_size": 6,
            "shape_size": 4,
            "input_size": 32,
            "patch_size": 8,
        },
        _page,
        "ForTokenClassification",
        TWO,
    ),
    transformers_row(
        "florence2",
        "Florence2",
        {
            "text_config": {**BART, "model_type": "bart"},
            "vision_config": {
                "depths": [1, 1, 1, 1],
                "embed_dim": [8, 16, 24, 32],
                "num_heads": [2, 2, 2, 2],
                "num_groups": [2, 2, 2, 2],
                "window_size": 2,
                "projection_dim": 32,
            },
            "image_token_id": IMAGE_TOKEN,
        },
        _task_and_image,
        "ForConditionalGeneration",
        TWO,
    ),
]


def _speech(_: Any, more: int) -> dict[str, Any]:
    """Two recordings of different lengths."""
    sound = torch.rand(2, 400 + 80 * more)
    mask = torch.ones_like(sound, dtype=torch.long)
    mask[1, -80:] = 0
    return {"input_values": sound * mask, "attention_mask": mask}


def _sound_and_text(_: Any, more: int) -> dict[str, Any]:
    """Texts, and four views of each of two sounds. The first sound is longer than a view."""
    tokens = torch.randint(3, 60, (2, 8 + 4 * more))
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "input_features": torch.rand(2, 4, 64, 16),
        "is_longer": torch.tensor([[True], [False]]),
    }


def _mel_frames(_: Any, more: int) -> dict[str, Any]:
    mask = torch.ones(2, 64 + 32 * more, dtype=torch.bool)
    mask[1, -16:] = False
    return {"input_features": torch.randn(*mask.shape, 16), "attention_mask": mask}


def _parakeet() -> Any:
    import transformers

    encoder = {
        **SIZES,
        "conv_kernel_size": 5,
        "subsampling_conv_channels": 8,
        "num_mel_bins": 16,
        "max_position_embeddings": 64,
    }
    config = transformers.ParakeetCTCConfig(encoder_config=encoder, vocab_size=33, pad_token_id=32)
    return transformers.ParakeetForCTC(config)


HEARD = [
    transformers_row(
        "wavlm, speakers",
        "WavLM",
        {
            **{key: WAVES[key] for key in WAVES if key != "num_feat_extract_layers"},
            "num_buckets": 8,
            "max_bucket_distance": 16,
            "tdnn_dim": [16, 16, 16, 16, 32],
            "xvector_output_dim": 16,
            "classifier_proj_size": 16,
            "use_weighted_layer_sum": True,
        },
        _speech,
        "ForXVector",
    ),
    transformers_row(
        "clap, fused",
        "Clap",
        {
            "text_config": {**BERT, "projection_dim": 16},
            "audio_config": {
                "num_mel_bins": 16,
                "spec_size": 32,
                "window_size": 2,
                "hidden_size": 16,
                "patch_embeds_hidden_size": 8,
                "depths": [1, 1],
                "num_attention_heads": [2, 2],
                "num_hidden_layers": 2,
                "num_classes": 4,
                "enable_fusion": True,
                "fusion_type": "aff_2d",
                "aff_block_r": 2,
            },
            "projection_dim": 16,
        },
        _sound_and_text,
    ),
    Row(name="parakeet", library="transformers", make=_parakeet, call=_mel_frames, shapes=TWO),
]


def _z_image() -> Any:
    import diffusers

    return diffusers.ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[4, 6, 6],
        axes_lens=[128, 32, 32],
    )


def _noise_of_images(_: Any, more: int) -> dict[str, Any]:
    """A list of latents, and a list of texts with different lengths."""
    return {
        "x": [torch.randn(4, 1, 8, 8 + 4 * more) for _ in range(2)],
        "t": torch.full((2,), 0.5),
        "cap_feats": [torch.randn(6, 16), torch.randn(9, 16)],
        "return_dict": False,
    }


def _ltx() -> Any:
    import diffusers

    return diffusers.LTXVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=2,
        caption_channels=16,
    )


def _noise_of_video(_: Any, more: int) -> dict[str, Any]:
    frames = 2 + more
    mask = torch.ones(2, 6)
    mask[1, 4:] = 0
    return {
        "hidden_states": torch.randn(2, frames * 16, 4),
        "encoder_hidden_states": torch.randn(2, 6, 16),
        "timestep": torch.full((2,), 700.0),
        "encoder_attention_mask": mask,
        "num_frames": frames,
        "height": 4,
        "width": 4,
        "rope_interpolation_scale": (8 / 25, 32, 32),
        "return_dict": False,
    }


def _styled_unet() -> Any:
    """Return a model with LoRA weights beside its layers, not merged, like `load_lora_weights`."""
    import diffusers
    import peft

    model = diffusers.UNet2DConditionModel(**UNET)
    targets = ["to_q", "to_k", "to_v", "to_out.0"]
    model.add_adapter(peft.LoraConfig(r=2, init_lora_weights=False, target_modules=targets), "one")
    model.set_adapters("one", 0.8)
    return model


def _noise_and_words(_: Any, more: int) -> dict[str, Any]:
    return {
        "sample": torch.randn(2 + 2 * more, 4, 8, 8),
        "timestep": torch.tensor(7),
        "encoder_hidden_states": torch.randn(2 + 2 * more, 6, 16),
        "return_dict": False,
    }


def _prompt_tuned() -> Any:
    import peft

    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    return peft.get_peft_model(transformers_model("Llama", TEXT, "ForCausalLM")(), config)


DRAWN_AND_ADAPTED = [
    Row(name="z-image", library="diffusers", make=_z_image, call=_noise_of_images),
    Row(name="ltx video", library="diffusers", make=_ltx, call=_noise_of_video, shapes=TWO),
    Row(name="sd unet, lora", library="peft", make=_styled_unet, call=_noise_and_words, shapes=TWO),
    Row(name="peft prompt tuning", library="peft", make=_prompt_tuned, call=_prompts),
]


def _series(_: Any, more: int) -> dict[str, Any]:
    """A list of series of different lengths."""
    return {"past_values": [torch.randn(40 + 8 * more).cumsum(0), torch.randn(64).cumsum(0)]}


class Shop(torch.nn.Module):
    """Two layers over users and items, with a convolution for each kind of edge."""

    def __init__(self) -> None:
        from torch_geometric.nn import HeteroConv, SAGEConv

        super().__init__()

        def layer(sizes: tuple[int, int], back: tuple[int, int], out: int) -> Any:
            kinds = {
                ("user", "buys", "item"): SAGEConv(sizes, out),
                ("item", "bought by", "user"): SAGEConv(back, out),
            }
            return HeteroConv(kinds, aggr="sum")

        self.first, self.second = layer((8, 12), (12, 8), 16), layer((16, 16), (16, 16), 4)

    def forward(self, x: dict[str, Any], edges: dict[Any, Any]) -> dict[str, torch.Tensor]:
        """Return a row for each node, by kind of node."""
        x = {kind: rows.relu() for kind, rows in self.first(x, edges).items()}
        return self.second(x, edges)


def _purchases(_: Any, more: int) -> tuple[Any, ...]:
    users, items, edges = 6 + more, 9 + 2 * more, 20 + 4 * more
    pairs = torch.stack([torch.randint(users, (edges,)), torch.randint(items, (edges,))])
    x = {"user": torch.randn(users, 8), "item": torch.randn(items, 12)}
    return x, {("user", "buys", "item"): pairs, ("item", "bought by", "user"): pairs.flip(0)}


def _int4() -> Any:
    """Return a model as PyTorch publishes for devices: 8-bit activations, 4-bit weights."""
    from torchao import quantization
    from torchao.quantization.granularity import PerGroup

    model = transformers_model("Llama", TEXT, "ForCausalLM")().eval()
    config = quantization.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(16)
    )
    quantization.quantize_(model, config)
    return model


OTHERS = [
    transformers_row(
        "timesfm",
        "TimesFm2_5",
        {
            **SIZES,
            "patch_length": 8,
            "context_length": 64,
            "horizon_length": 8,
            "head_dim": 8,
            "num_key_value_heads": 4,
            "output_quantile_len": 16,
        },
        _series,
        "ModelForPrediction",
    ),
    graphs(name="graph of users and items", make=Shop, call=_purchases, shapes=TWO),
    quantised(name="int8 activations, int4 weights", make=_int4, call=_prompts),
]

ROWS = [*WRITTEN, *SEEN, *SEEN_AND_READ, *HEARD, *DRAWN_AND_ADAPTED, *OTHERS]
