# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The user's id goes into the compiled model as a Python int, to pick a row of a bias table.

With dynamic=False torch makes a graph for each id. Warm-up proves the two test users, and every
other user waits for a compile, until the recompile limit turns the function eager. No list of
declared inputs can cover this: the useful advice is to pass the id as a tensor.
"""

import torch
from ray import serve

import serve_warm

BINS = 64


class Recommender(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Linear(8, 16)
        self.bias = torch.nn.Parameter(torch.randn(BINS, 16))

    def forward(self, x, user):
        return self.items(x) + self.bias[user % BINS]


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Recommend(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(Recommender().eval(), dynamic=False)

    def warmup_inputs(self):
        return [
            serve_warm.Input(
                target=self.recommend,
                kwargs={"user": user, "profile": [0.0] * 8},
                name=f"test user {user}",
            )
            for user in (1001, 1002)
        ]

    async def recommend(self, user: int, profile: list[float]) -> list[int]:
        if len(profile) != 8:
            raise ValueError("a profile has eight numbers")
        return await self.on_model_thread(self._run, user, profile)

    def _run(self, user, profile):
        with torch.inference_mode():
            scores = self.model(torch.tensor([profile]), user)
            return scores[0].topk(3).indices.tolist()


app = Recommend.bind()

ROW = {
    "blind": True,
    "kind": "advice",
    "requests": [("recommend", [user, [0.25] * 8], {}) for user in range(2001, 2013)],
}
