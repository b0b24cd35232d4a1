# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""If a request has no reference, the handler compares the signal with itself.

It passes the same tensor object for both arguments. Dynamo guards that two inputs are different
tensors, as in the declared input. Sizes and dtypes are the same, so only the identity of the
arguments differs. With after_ready: forbid the user gets HTTP 503 instead of waiting.
"""

import torch
from ray import serve

import serve_warm


class Similarity(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(10, 16)

    def forward(self, signal, reference):
        a = torch.tanh(self.encoder(signal))
        b = torch.tanh(self.encoder(reference))
        return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + 1e-6)


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Compare(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(Similarity().eval(), dynamic=False)

    def warmup_inputs(self):
        signal, reference = [0.1] * 10, [0.2] * 10
        return [serve_warm.Input(target=self.compare, args=(signal, reference), name="pair")]

    async def compare(self, signal: list[float], reference: list[float] | None = None) -> float:
        if any(len(values) != 10 for values in (signal, reference) if values is not None):
            raise ValueError("a signal has ten numbers")
        return await self.on_model_thread(self._run, signal, reference)

    def _run(self, signal, reference):
        first = torch.tensor([signal])
        second = first if reference is None else torch.tensor([reference])
        with torch.inference_mode():
            return self.model(first, second).item()


app = Compare.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [("compare", [[0.5] * 10], {})],
    "settings": {"after_ready": "forbid"},
}
