# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""One dynamic graph serves all lengths, except that the model switches to a window above 48.

The branch is on a size, not on values, so it is a guard of the dynamic graph (length <= 48). The
declared lengths 8 and 20 vary the axis, and other short lengths need no compile. The first text
that is longer than the window leads to the other side of the branch and compiles.
"""

import torch
from ray import serve

import serve_warm

WINDOW = 48


class Windowed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(256, 16)
        self.near = torch.nn.Linear(16, 8)
        self.far = torch.nn.Linear(16, 8)

    def forward(self, ids):
        x = self.embed(ids)
        if x.shape[1] > WINDOW:
            early, late = x[:, :-WINDOW], x[:, -WINDOW:]
            return self.near(late).mean(1) + self.far(early.mean(1))
        return self.near(x).mean(1)


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Summary(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(Windowed().eval(), dynamic=True)

    def warmup_inputs(self):
        return [
            serve_warm.Input(target=self.vector, args=("a" * n,), name=f"{n} characters")
            for n in (20, 8)
        ]

    async def vector(self, text: str) -> list[float]:
        ids = list(text.encode())[:512]
        if len(ids) < 2:
            raise ValueError("send at least two characters")
        return await self.on_model_thread(self._run, ids)

    def _run(self, ids):
        with torch.inference_mode():
            return self.model(torch.tensor([ids]))[0].tolist()


app = Summary.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "requests": [("vector", ["b" * 13], {}), ("vector", ["a long text " * 20], {})],
}
