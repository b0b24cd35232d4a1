# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications whose declared inputs do not vary, and those whose inputs need not."""

import numpy as np
import torch
from _row import row
from diffusers import UNet2DModel
from torch import nn

from serve_warm import Buckets, Input, WarmupMixin, shape_grid


@row("batch_is_always_three", [("score", [[[1.0, 2.0, 3.0, 4.0]] * 5])], says=r"\brows\b")
class ThreeRows(WarmupMixin):
    """All declared batches have three rows, and the handler accepts any number."""

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, kwargs={"rows": [[0.0] * 4] * 3})]

    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).tolist()


@row(
    "one_dynamic_graph_for_all_batches",
    [("score", [[[1.0, 2.0, 3.0, 4.0]] * batch]) for batch in (5, 13, 1, 2)],
    quiet=True,
)
class Dynamic(WarmupMixin):
    """The model is compiled with `dynamic=True`; a large batch and a batch of 1 are declared."""

    def __init__(self):
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.model = torch.compile(net.eval(), dynamic=True)

    def warmup_inputs(self):
        # torch compiles separate code for a batch of 1.
        return [Input(target=self.score, args=([[0.0] * 4] * batch,)) for batch in (8, 1)]

    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).tolist()


@row("one_length_only", [("embed", [[1, 2, 3, 4, 5, 6]])], says="tokens.0., always 4")
class OneLength(WarmupMixin):
    """All declared texts have one length, and the handler accepts any."""

    def __init__(self):
        self.model = torch.compile(
            nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 4)), dynamic=False
        )

    def warmup_inputs(self):
        return [Input(target=self.embed, args=([1, 2, 3, 4],))]

    @torch.inference_mode()
    def embed(self, tokens: list[int]) -> list[float]:
        return self.model(torch.tensor(tokens)).mean(0).tolist()


@row("one_resolution_as_a_number", [("paint", [24])], says=r"\bpixels\b")
class OneResolution(WarmupMixin):
    """A number decides how large the image is, and one resolution is declared."""

    def __init__(self):
        net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))
        self.model = torch.compile(net, backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.paint, kwargs={"pixels": 16})]

    async def paint(self, pixels: int) -> float:
        noise = torch.ones(1, 3, pixels, pixels)
        with torch.inference_mode():
            return self.model(noise).mean().item()


@row("one_size_declared_as_fixed", [("score", [[[1.0, 2.0, 3.0, 4.0]] * 3])], quiet=True)
class FixedSize(WarmupMixin):
    """Each request has three rows, and the declared input says that its sizes never differ."""

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, args=([[0.0] * 4] * 3,), fixed=True)]

    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).tolist()


@row("one_token_per_character", [("embed", ["jumps over the lazy dog"])], says=r"\btext\b")
class Characters(WarmupMixin):
    """The number of characters decides the size of the tensor, and one sentence is declared."""

    def __init__(self):
        net = nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 4))
        self.model = torch.compile(net, backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.embed, args=("the quick brown fox",))]

    @torch.inference_mode()
    def embed(self, text: str) -> list[float]:
        ids = torch.zeros(1, len(text), dtype=torch.int64)
        for place, character in enumerate(text):
            ids[0, place] = ord(character) % 99
        return self.model(ids).mean(1)[0].tolist()


@row(
    "requests_padded_to_buckets",
    [
        ("score", [[[1, 2, 3]]]),
        ("score", [[[1] * 12]]),
        ("score", [[[1, 2], [3, 4, 5, 6], [7]]]),
        ("score", [[[1] * 16] * 4]),
    ],
    quiet=True,
)
class Bucketed(WarmupMixin):
    """The grid declares all buckets, and the handler pads each request to one of them."""

    buckets = Buckets(batch=[1, 4], length=[8, 16])

    def __init__(self):
        net = nn.Sequential(nn.Embedding(99, 8, padding_idx=0), nn.Linear(8, 4, bias=False))
        self.model = torch.compile(net.eval(), dynamic=False)

    def warmup_inputs(self):
        return shape_grid(self.score_padded, self.buckets)

    async def score(self, texts: list[list[int]]) -> list[float]:
        sizes = self.buckets.fit(batch=len(texts), length=max(map(len, texts)))
        ids = torch.zeros(sizes["batch"], sizes["length"], dtype=torch.int64)
        for index, tokens in enumerate(texts):
            ids[index, : len(tokens)] = torch.tensor(tokens)
        return (await self.score_padded(ids))[: len(texts)]

    async def score_padded(self, ids: torch.Tensor) -> list[float]:
        with torch.inference_mode():
            return self.model(ids).sum(dim=(1, 2)).tolist()


@row(
    "rows_sent_as_bytes", [("score", [np.zeros((7, 4), np.float32).tobytes()])], says=r"\bpayload\b"
)
class Bytes(WarmupMixin):
    """The number of bytes decides how many rows the model gets, and one number is declared."""

    def __init__(self):
        self.model = torch.compile(nn.Linear(4, 2), backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, args=(np.ones((3, 4), np.float32).tobytes(),))]

    async def score(self, payload: bytes) -> list[list[float]]:
        rows = torch.tensor(np.frombuffer(payload, np.float32)).reshape(-1, 4)
        with torch.inference_mode():
            return self.model(rows).tolist()


@row("several_lengths_and_one_batch", [("embed", [[[1, 2, 3, 4]] * 3])], says=r"\bids\b")
class OneBatch(WarmupMixin):
    """The declared texts have several lengths, but each batch has two texts."""

    def __init__(self):
        net = nn.Sequential(nn.Embedding(99, 8), nn.Linear(8, 4))
        self.model = torch.compile(net, backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [
            Input(target=self.embed, kwargs={"ids": [[1] * length] * 2}) for length in (4, 8, 16)
        ]

    async def embed(self, ids: list[list[int]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(ids)).mean(1).tolist()


STEPS = (900, 500, 100)


@row("small_unet_of_fixed_latents", [("paint", [torch.ones(1, 3, 8, 8)])], quiet=True)
class FixedLatents(WarmupMixin):
    """A UNet of diffusers denoises latents of one size, which the input says to be fixed."""

    def __init__(self):
        unet = UNet2DModel(
            sample_size=8,
            layers_per_block=1,
            block_out_channels=(8, 16),
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D"),
        )
        self.unet = torch.compile(unet.eval(), backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.paint, args=(torch.zeros(1, 3, 8, 8),), fixed=True)]

    async def paint(self, latents: torch.Tensor) -> float:
        with torch.inference_mode():
            for step in STEPS:
                noise = self.unet(latents, torch.tensor([step]), return_dict=False)[0]
                latents = latents - 0.1 * noise
            return latents.mean().item()


class Texts(WarmupMixin):
    """Makes one token of each letter, and pads the texts of a list."""

    def __init__(self):
        net = nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 4))
        self.model = torch.compile(net, backend="eager", dynamic=False)

    @torch.inference_mode()
    def run(self, texts: list[str]) -> list[float]:
        ids = torch.zeros(len(texts), 16, dtype=torch.int64)
        for row_of_ids, text in zip(ids, texts, strict=True):
            row_of_ids[: len(text)] = torch.tensor([*text.encode()])[:16]
        return self.model(ids).mean((1, 2)).tolist()


@row("a_text_or_a_list", [("embed", [["one", "two"]])], says="text, never a list")
class TextOrList(Texts):
    """The handler takes one text or several, and the declared input is one text."""

    def warmup_inputs(self):
        return [Input(target=self.embed, args=("a text",), fixed=False)]

    async def embed(self, text: str | list[str]) -> list[float]:
        texts = [text] if isinstance(text, str) else [*text, ""]
        return self.run(texts)


@row("a_key_that_may_be_left_out", [("score", [{"values": [1.0] * 4}])], says="always given")
class OptionalKey(WarmupMixin):
    """The body of a request may lack the weights, and then the model gets `None`."""

    def __init__(self):
        self.model = torch.compile(self.weigh, backend="eager", dynamic=False)

    @staticmethod
    def weigh(values: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        return values.sum() if weights is None else (values * weights).sum()

    def warmup_inputs(self):
        body = {"values": [1.0] * 4, "weights": [0.5] * 4}
        return [Input(target=self.score, kwargs={"body": body})]

    async def score(self, body: dict[str, list[float]]) -> float:
        if len(body["values"]) != 4:
            raise ValueError("4 values, please")
        weights = torch.tensor(body["weights"]) if "weights" in body else None
        with torch.inference_mode():
            return self.model(torch.tensor(body["values"]), weights).item()


@row("features_by_name", [("score", [{"a": 1.0, "b": 2.0, "c": 3.0}])], says="always with 2 keys")
class Features(WarmupMixin):
    """Each request has numbers by name, and the declared one has two."""

    def __init__(self):
        self.model = torch.compile(nn.Linear(1, 2), backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, kwargs={"features": {"a": 1.0, "b": 2.0}})]

    async def score(self, features: dict[str, float]) -> list[float]:
        if len(features) < 2:
            raise ValueError("at least 2 features, please")
        with torch.inference_mode():
            return self.model(torch.tensor([*features.values()])[:, None]).sum(0).tolist()


@row("a_height_and_a_width", [("paint", [[24, 32]])], says="size, always 16 and 24")
class HeightAndWidth(WarmupMixin):
    """A pair of numbers decides how large the image is, and one pair is declared."""

    def __init__(self):
        net = nn.Conv2d(3, 4, 3, padding=1)
        self.model = torch.compile(net, backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.paint, kwargs={"size": [16, 24]})]

    async def paint(self, size: list[int]) -> float:
        height, width = size
        with torch.inference_mode():
            return self.model(torch.ones(1, 3, height, width)).mean().item()


@row(
    "a_mask_written_by_hand",
    [("embed", [torch.ones(2, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])])],
    says="mask, always a mask of ones",
)
class HandWrittenMask(WarmupMixin):
    """Eager code leaves the mask out if it masks nothing, and the declared one does."""

    def __init__(self):
        self.block = torch.compile(self.masked, backend="eager", dynamic=False)

    @staticmethod
    def masked(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return x.mean(1) if mask is None else (x * mask).sum(1) / mask.sum(1)

    def warmup_inputs(self):
        x, mask = torch.ones(2, 4), torch.ones(2, 4, dtype=torch.int64)
        return [Input(target=self.embed, args=(x, mask), fixed=("x",))]

    async def embed(self, x: torch.Tensor, mask: torch.Tensor) -> list[float]:
        if x.shape != mask.shape:
            raise ValueError("a mask of the size of x, please")
        with torch.inference_mode():
            return self.block(x, None if bool(mask.all()) else mask).tolist()


@row("one_function_of_two", [("score", [[1.0] * 4, True])], says="self.exact is compiled, and no")
class TwoFunctions(WarmupMixin):
    """Two compiled functions serve one method, and the declared inputs reach one of them."""

    def __init__(self):
        self.fast = torch.compile(lambda x: x.sum(), backend="eager", dynamic=False)
        self.exact = torch.compile(lambda x: x.double().sum(), backend="eager", dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.score, args=([1.0] * 4, False), fixed=True)]

    async def score(self, values: list[float], exact: bool) -> float:
        x = torch.tensor(values)
        return (self.exact(x) if exact else self.fast(x)).item()
