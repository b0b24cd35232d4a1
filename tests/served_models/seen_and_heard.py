# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` for images, for images with text, and for audio."""

from __future__ import annotations

from typing import Any

import torch

from served_models.rows import DYNAMIC, TWO, Row, ids, image, transformers_row, waveform
from served_models.text import BART, BERT, HEADS, SIZES, TEXT

VISION = {**SIZES, "image_size": 32, "patch_size": 8}
WAVES: dict[str, Any] = {
    **SIZES,
    "vocab_size": 32,
    "conv_dim": [8, 8],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
STAGES = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2]}
IMAGE_TOKEN = 63
AROUND_IMAGES = {
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 60,
    "vision_start_token_id": 62,
    "vision_end_token_id": 61,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
TEXT_IN_SPACE = {**TEXT, "rope_parameters": ROPE}
WHISPER = {
    **{key: value for key, value in BART.items() if key != "max_position_embeddings"},
    "num_mel_bins": 8,
    "max_source_positions": 16,
    "max_target_positions": 16,
}


def _audio_features(_: Any, more: int) -> dict[str, Any]:
    return {
        "input_features": torch.rand(2, 8, 32),
        "decoder_input_ids": ids()[:, : 4 + more],
        "use_cache": False,
    }


def _text_and_image(_: Any, more: int) -> dict[str, Any]:
    return {"input_ids": ids(more), "pixel_values": torch.rand(2, 3, 32, 32)}


def _image_tokens(_: Any, more: int) -> dict[str, Any]:
    """Return a text in which one token stands for each of the 16 patches of an image."""
    text = ids(more)
    tokens = torch.cat([torch.full((2, 16), IMAGE_TOKEN), text], dim=1)
    return {"input_ids": tokens, "pixel_values": torch.rand(2, 3, 32, 32), "use_cache": False}


def _image_tokens_with_types(_: Any, more: int) -> dict[str, Any]:
    """Add token_type_ids. Without them, torch.compile itself differs from eager."""
    given = _image_tokens(_, more)
    return {**given, "token_type_ids": torch.zeros_like(given["input_ids"])}


def _grid(_: Any, more: int) -> dict[str, Any]:
    tokens = torch.cat([torch.full((1, 4), IMAGE_TOKEN), ids(more)[:1]], dim=1)
    return {
        "input_ids": tokens,
        "pixel_values": torch.rand(16, 3 * 2 * 8 * 8),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (tokens == IMAGE_TOKEN).int(),
        "use_cache": False,
    }


def _video(_: Any, more: int) -> dict[str, Any]:
    return {"pixel_values": torch.rand(1 + more, 4, 3, 32, 32)}


def _boxes(_: Any, more: int) -> dict[str, Any]:
    tokens = ids(more)
    return {"input_ids": tokens, "bbox": torch.randint(0, 30, (*tokens.shape, 4)).sort()[0]}


def _points(_: Any, more: int) -> dict[str, Any]:
    return {
        "pixel_values": torch.rand(1, 3, 32, 32),
        "input_points": torch.rand(1, 1, 1 + more, 2) * 32,
    }


def _spectrogram(_: Any, more: int) -> dict[str, Any]:
    return {"input_values": torch.rand(2 + more, 32, 16)}


def _codec(_: Any, more: int) -> dict[str, Any]:
    return {"input_values": torch.rand(1, 1, 320 + 160 * more)}


def _donut() -> Any:
    import transformers

    encoder = transformers.DonutSwinConfig(**STAGES, window_size=4)
    decoder = transformers.MBartConfig(
        **{**BART, "d_model": 16}, is_decoder=True, add_cross_attention=True
    )
    config = transformers.VisionEncoderDecoderConfig(
        encoder=encoder.to_dict(), decoder=decoder.to_dict()
    )
    return transformers.VisionEncoderDecoderModel(config)


def _read_page(_: Any, more: int) -> dict[str, Any]:
    return {**image(_, 0), "decoder_input_ids": ids(more), "use_cache": False}


def _detr() -> Any:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = transformers.DetrConfig(
        **{key: BART[key] for key in BART if key.startswith(("encoder", "decoder_a", "decoder_f"))},
        d_model=32,
        decoder_layers=2,
        num_queries=5,
        backbone_config=backbone,
        use_timm_backbone=False,
    )
    return transformers.DetrForObjectDetection(config)


def _depth() -> Any:
    import transformers

    backbone = transformers.Dinov2Config(
        **VISION, out_features=["stage1", "stage2"], reshape_hidden_states=False, mlp_ratio=2
    )
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=8,
        reassemble_hidden_size=32,
        reassemble_factors=[1, 0.5],
        neck_hidden_sizes=[8, 8],
        fusion_hidden_size=8,
        head_in_index=-1,
        head_hidden_size=4,
    )
    return transformers.DepthAnythingForDepthEstimation(config)


IMAGES = [
    transformers_row("vit", "ViT", VISION, image, shapes=DYNAMIC),
    transformers_row(
        "convnext",
        "ConvNext",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 32},
        image,
    ),
    transformers_row(
        "resnet",
        "ResNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        image,
        shapes=TWO,
    ),
    transformers_row("clip vision", "CLIPVision", VISION, image, shapes=DYNAMIC),
    transformers_row("dinov2", "Dinov2", VISION, image, shapes=DYNAMIC),
    transformers_row("swin", "Swin", {**STAGES, "window_size": 4}, image, "ForImageClassification"),
    transformers_row(
        "segformer",
        "Segformer",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        image,
        "ForSemanticSegmentation",
    ),
    Row(name="detr", library="transformers", make=_detr, call=image),
    Row(name="depth-anything", library="transformers", make=_depth, call=image),
    transformers_row(
        "sam",
        "Sam",
        {
            "vision_config": {
                **VISION,
                "num_channels": 3,
                "output_channels": 16,
                "mlp_dim": 48,
                "window_size": 2,
                "global_attn_indexes": [1],
                "num_pos_feats": 8,
            },
            "prompt_encoder_config": {
                "hidden_size": 16,
                "image_size": 32,
                "patch_size": 8,
                "mask_input_channels": 4,
            },
            "mask_decoder_config": {
                "hidden_size": 16,
                "mlp_dim": 32,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 16,
            },
        },
        _points,
    ),
    transformers_row(
        "videomae",
        "VideoMAE",
        {**VISION, "num_frames": 4, "tubelet_size": 2},
        _video,
        "ForVideoClassification",
    ),
]

IMAGES_AND_TEXT = [
    transformers_row(
        "clip",
        "CLIP",
        {"text_config": BERT, "vision_config": VISION, "projection_dim": 16},
        _text_and_image,
        shapes=TWO,
    ),
    transformers_row(
        "siglip",
        "Siglip",
        {"text_config": BERT, "vision_config": VISION},
        _text_and_image,
        shapes=DYNAMIC,
    ),
    transformers_row(
        "llava",
        "Llava",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**VISION, "model_type": "clip_vision_model"},
            "image_token_index": IMAGE_TOKEN,
        },
        _image_tokens,
        "ForConditionalGeneration",
    ),
    transformers_row(
        "paligemma",
        "PaliGemma",
        {
            "text_config": {**HEADS, "model_type": "gemma"},
            "vision_config": {**VISION, "model_type": "siglip_vision_model"},
            "image_token_index": IMAGE_TOKEN,
            "projection_dim": 32,
        },
        _image_tokens_with_types,
        "ForConditionalGeneration",
    ),
    transformers_row(
        "qwen2-vl",
        "Qwen2VL",
        {
            "text_config": TEXT_IN_SPACE,
            "vision_config": {
                "depth": 2,
                "embed_dim": 32,
                "hidden_size": 32,
                "num_heads": 4,
                "mlp_ratio": 2,
                "patch_size": 8,
            },
            **AROUND_IMAGES,
        },
        _grid,
        "ForConditionalGeneration",
    ),
    Row(name="donut", library="transformers", make=_donut, call=_read_page),
    transformers_row(
        "layoutlm",
        "LayoutLM",
        {**BERT, "max_2d_position_embeddings": 64},
        _boxes,
        "ForTokenClassification",
    ),
]

AUDIO = [
    transformers_row("whisper encoder-decoder", "Whisper", WHISPER, _audio_features),
    transformers_row("wav2vec2", "Wav2Vec2", WAVES, waveform),
    transformers_row("wav2vec2, speech to text", "Wav2Vec2", WAVES, waveform, "ForCTC"),
    transformers_row(
        "audio spectrogram transformer",
        "AST",
        {**VISION, "max_length": 32, "num_mel_bins": 16, "patch_size": 4},
        _spectrogram,
        "ForAudioClassification",
        DYNAMIC,
    ),
    transformers_row(
        "encodec",
        "Encodec",
        {
            "num_filters": 4,
            "hidden_size": 16,
            "codebook_size": 16,
            "codebook_dim": 16,
            "upsampling_ratios": [4, 2],
            "num_lstm_layers": 1,
            "target_bandwidths": [24.0],
        },
        _codec,
    ),
    transformers_row(
        "vits, text to speech",
        "Vits",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 16,
            "flow_size": 16,
            "spectrogram_bins": 17,
            "wavenet_dilation_rate": 1,
            "prior_encoder_num_flows": 2,
            "duration_predictor_num_flows": 2,
            "upsample_initial_channel": 16,
            "upsample_rates": [4, 2],
            "upsample_kernel_sizes": [8, 4],
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1]],
        },
        lambda _, more: {"input_ids": ids(more)},
    ),
]

ROWS = [*IMAGES, *IMAGES_AND_TEXT, *AUDIO]
