# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The model takes a dict of features, in the order in which the client's JSON names them.

forward loops over features.items() and adds up the towers, so the order does not matter for the
result. Dynamo guards on the list of keys with its order. The declared input has one order; a
client that writes the same features in another order causes a compile.
"""

import torch
from ray import serve

import serve_warm

NAMES = ("age", "income", "visits")


class Towers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = torch.nn.ModuleDict({name: torch.nn.Linear(1, 8) for name in NAMES})
        self.out = torch.nn.Linear(8, 1)

    def forward(self, features):
        total = 0
        for name, value in features.items():
            total = total + torch.relu(self.towers[name](value))
        return self.out(total)


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Risk(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(Towers().eval(), dynamic=False)

    def warmup_inputs(self):
        features = dict.fromkeys(NAMES, 1.0)
        return [serve_warm.Input(target=self.risk, args=(features,), name="all features")]

    async def risk(self, features: dict[str, float]) -> float:
        if set(features) != set(NAMES):
            raise ValueError(f"send exactly these features: {NAMES}")
        return await self.on_model_thread(self._run, features)

    def _run(self, features):
        tensors = {name: torch.tensor([[float(value)]]) for name, value in features.items()}
        with torch.inference_mode():
            return self.model(tensors).item()


app = Risk.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [("risk", [{"visits": 3, "age": 41, "income": 2.5}], {})],
}
