# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""As `from_docs_alone`, with models of `transformers`, whose import takes seconds."""

import torch
from _row import row
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    DistilBertConfig,
    DistilBertModel,
    ViTConfig,
    ViTForImageClassification,
)

import serve_warm
from serve_warm import Buckets, Input, WarmupMixin, shape_grid

torch.manual_seed(0)

VOCAB = 64


@row(
    "bert_buckets_right",
    [
        ("embed", [["one"]]),
        ("embed", [["two words", "a few more words than that", "x " * 40]]),
        ("embed", [["eight words are in this text here now"]]),
    ],
    kind="narrow",
    quiet=True,
)
class Embedder(WarmupMixin):
    """Right: a tiny BERT with buckets on batch and length, to which requests are padded, too.

    shape_grid declares each combination, with and without padding in the mask. Longer texts are
    truncated and larger batches are refused by fit. No request can have another shape, so a warning
    about this application would be a false alarm.
    """

    buckets = Buckets(batch=[1, 4], length=[8, 16])

    def __init__(self):
        config = BertConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
        )
        self.model = serve_warm.compile(BertModel(config).eval(), dynamic=False)

    def warmup_inputs(self):
        return shape_grid(self.encode, self.buckets)

    async def encode(self, input_ids, attention_mask):
        return await self.on_model_thread(self._run, input_ids, attention_mask)

    def _run(self, input_ids, attention_mask):
        with torch.inference_mode():
            hidden = self.model(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
            weights = attention_mask.unsqueeze(-1)
            return ((hidden * weights).sum(1) / weights.sum(1).clamp(min=1)).tolist()

    async def embed(self, texts: list[str]) -> list[list[float]]:
        rows = [
            [1 + sum(word.encode()) % (VOCAB - 1) for word in text.split()][:16] or [1]
            for text in texts
        ]
        size = self.buckets.fit(batch=len(rows), length=max(map(len, rows), default=1))
        ids = torch.zeros(size["batch"], size["length"], dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for index, used in enumerate(rows):
            ids[index, : len(used)] = torch.tensor(used)
            mask[index, : len(used)] = 1
        return (await self.encode(ids, mask))[: len(rows)]


CLIP_LENGTH = 12


@row("clip_text_features", [("embed", ["a drawing of a horse"])], kind="no_compiled_code")
class TextTower(WarmupMixin):
    """A CLIP model is compiled as a whole, but the handler calls get_text_features.

    torch.compile compiles only forward(). Any other method is looked up on the original module and
    runs eagerly, so the application contains a compiled model, yet no request ever runs compiled
    code. A READY replica has proven nothing here, and no user gets the faster kernels.
    """

    def __init__(self):
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "projection_dim": 8,
        }
        config = CLIPConfig(
            text_config={
                **sizes,
                "vocab_size": 256,
                "max_position_embeddings": CLIP_LENGTH,
                "bos_token_id": 0,
                "pad_token_id": 1,
                "eos_token_id": 2,
            },
            vision_config={**sizes, "image_size": 16, "patch_size": 8},
            projection_dim=8,
        )
        self.model = torch.compile(CLIPModel(config).eval(), dynamic=False)

    def warmup_inputs(self):
        return [
            Input(target=self.embed, args=("a photo of a cat",), name="photo"),
            Input(target=self.embed, args=("dog",), name="word"),
        ]

    async def embed(self, text: str) -> list[float]:
        ids = [*list(text.encode())[: CLIP_LENGTH - 1], 2]
        ids += [1] * (CLIP_LENGTH - len(ids))
        return await self.on_model_thread(self._run, torch.tensor([ids]))

    def _run(self, ids):
        with torch.inference_mode():
            found = self.model.get_text_features(input_ids=ids)
        found = getattr(found, "pooler_output", found)  # a tensor before transformers 5
        return nn.functional.normalize(found, dim=-1)[0].tolist()


LENGTH = 16


def tokens(text):
    return [1 + sum(word.encode()) % (VOCAB - 1) for word in text.split()][:LENGTH]


@row(
    "mask_only_when_padded",
    [("embed", ["a short text"]), ("embed", ["another one"])],
    kind="first_request",
)
class Masked(WarmupMixin):
    """A tiny DistilBERT gets an attention mask only if the text is shorter than the fixed length.

    The engineer declared the "worst case", a text that fills all positions, so warm-up always calls
    the model with attention_mask=None. Every short text passes a tensor instead of None. Shapes of
    the ids never change, but None and a tensor are different graphs, so the first short text waits.
    """

    def __init__(self):
        config = DistilBertConfig(
            vocab_size=VOCAB,
            dim=16,
            n_layers=1,
            n_heads=2,
            hidden_dim=16,
            max_position_embeddings=LENGTH,
        )
        self.model = torch.compile(DistilBertModel(config).eval(), dynamic=False)

    def warmup_inputs(self):
        longest = " ".join(["word"] * LENGTH)
        return [Input(target=self.embed, args=(longest,), name="longest text")]

    async def embed(self, text: str) -> list[float]:
        used = tokens(text)
        ids = torch.zeros(1, LENGTH, dtype=torch.int64)
        ids[0, : len(used)] = torch.tensor(used, dtype=torch.int64)
        mask = None
        if len(used) < LENGTH:  # nothing to mask in a full row
            mask = (torch.arange(LENGTH) < len(used)).long().unsqueeze(0)
        return await self.on_model_thread(self._run, ids, mask)

    def _run(self, ids, mask):
        with torch.inference_mode():
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            return hidden[0, 0].tolist()


@row(
    "utf8_longer_than_bucket",
    [("embed", ["plain text"]), ("embed", ["привет мир как"])],
    kind="first_request",
)
class ByteEmbedder(WarmupMixin):
    """A byte-level BERT pads to a bucket that it chooses by characters, but its tokens are bytes.

    For ASCII both numbers are the same, so all declared texts hit their buckets. A Russian text of
    14 characters gets the bucket of 16 and has 26 bytes: there is no padding, and the model sees a
    length that is in no bucket. The first user who does not write ASCII waits.
    """

    buckets = Buckets(length=[16, 32])

    def __init__(self):
        config = BertConfig(
            vocab_size=256,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=128,
        )
        self.model = torch.compile(BertModel(config).eval(), dynamic=False)

    def warmup_inputs(self):
        return shape_grid(self.embed, self.buckets, make=lambda length: {"text": "a" * length})

    async def embed(self, text: str) -> list[float]:
        text = text[:32] or " "
        size = self.buckets.fit(length=len(text))["length"]
        ids = list(text.encode())
        ids += [0] * (size - len(ids))
        return await self.on_model_thread(self._run, ids)

    def _run(self, ids):
        batch = torch.tensor([ids])
        mask = (batch != 0).long()
        with torch.inference_mode():
            found = self.model(input_ids=batch, attention_mask=mask)
            return found.last_hidden_state[0, 0].tolist()


SIDE = 16


@row(
    "vit_resized_right",
    [
        ("classify", [[[0.1] * 30 for _ in range(10)]]),
        ("classify", [[[1] * 16 for _ in range(16)]]),
        ("classify", [[[0.9]]]),
    ],
    kind="narrow",
    quiet=True,
)
class Classifier(WarmupMixin):
    """Right: a tiny ViT gets gray images of any size, and the handler resizes each to 16 x 16.

    One input is declared. Requests have other heights and widths, but the resize runs eagerly
    before the compiled model, which sees only one shape. So an axis of the request with one
    declared size is no danger here, and a warning would be a false alarm.
    """

    def __init__(self):
        config = ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=SIDE,
            patch_size=8,
            num_channels=1,
            num_labels=3,
        )
        self.model = serve_warm.compile(ViTForImageClassification(config).eval(), dynamic=False)

    def warmup_inputs(self):
        image = [[0.5] * 20 for _ in range(24)]
        return [Input(target=self.classify, args=(image,), name="image")]

    async def classify(self, image: list[list[float]]) -> int:
        if not image or not image[0] or any(len(row) != len(image[0]) for row in image):
            raise ValueError("send rows of equal length")
        pixels = torch.tensor(image, dtype=torch.float32)[None, None]
        pixels = nn.functional.interpolate(
            pixels, size=(SIDE, SIDE), mode="bilinear", align_corners=False
        )
        return await self.on_model_thread(self._run, pixels.contiguous())

    def _run(self, pixels):
        with torch.inference_mode():
            return self.model(pixel_values=pixels).logits.argmax(-1).item()
