# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""In all declared pairs the query is as long as the document, because both are made in one line.

With dynamic=True torch gives equal sizes the same symbol (duck shaping), so the graph has the
guard that both lengths are equal. Two lengths are declared, so each axis varies. But real
queries are shorter than documents, and the first real pair compiles.
"""

import torch
from ray import serve

import serve_warm


class LateInteraction(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(256, 16)
        self.project = torch.nn.Linear(16, 8)

    def forward(self, query, document):
        q = torch.nn.functional.normalize(self.project(self.embed(query)), dim=-1)
        d = torch.nn.functional.normalize(self.project(self.embed(document)), dim=-1)
        return (q @ d.transpose(0, 1)).max(dim=1).values.mean()


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Matcher(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(LateInteraction().eval(), dynamic=True)

    def warmup_inputs(self):
        return [
            serve_warm.Input(
                target=self.match,
                kwargs={"query": "q" * n, "document": "d" * n},
                name=f"length {n}",
            )
            for n in (24, 10)
        ]

    async def match(self, query: str, document: str) -> float:
        if len(query) < 2 or len(document) < 2:
            raise ValueError("send at least two characters")
        return await self.on_model_thread(self._run, query.encode()[:64], document.encode()[:64])

    def _run(self, query, document):
        with torch.inference_mode():
            return self.model(torch.tensor(list(query)), torch.tensor(list(document))).item()


app = Matcher.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "requests": [
        ("match", ["same size", "same size"], {}),
        ("match", ["short", "a document that is longer"], {}),
    ],
}
