# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Right: a string selects the pooling, and each accepted string has its own declared input.

Texts are truncated and padded to 16 tokens, and an unknown mode is refused before the model is
called. So the three proven graphs are all that traffic can reach, and a warning about the string
or about the length of the text would be a false alarm.
"""

import torch
from ray import serve

import serve_warm

LENGTH = 16
MODES = ("mean", "max", "first")


class Pooled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(256, 16, padding_idx=0)
        self.out = torch.nn.Linear(16, 8)

    def forward(self, ids, mode):
        x = self.out(self.embed(ids))
        if mode == "mean":
            return x.mean(1)
        if mode == "max":
            return x.amax(1)
        return x[:, 0]


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Pooling(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = serve_warm.compile(Pooled().eval(), dynamic=False)

    def warmup_inputs(self):
        return [
            serve_warm.Input(
                target=self.embed, args=("some text",), kwargs={"mode": mode}, name=mode
            )
            for mode in MODES
        ]

    async def embed(self, text: str, mode: str = "mean") -> list[float]:
        if mode not in MODES:
            raise ValueError(f"mode is one of {MODES}")
        ids = list(text.encode())[:LENGTH]
        return await self.on_model_thread(self._run, ids + [0] * (LENGTH - len(ids)), mode)

    def _run(self, ids, mode):
        with torch.inference_mode():
            return self.model(torch.tensor([ids]), mode)[0].tolist()


app = Pooling.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "quiet": True,
    "requests": [
        ("embed", [""], {}),
        ("embed", ["schöne Grüße aus Zürich"], {"mode": "max"}),
        ("embed", ["x"], {"mode": "first"}),
    ],
}
