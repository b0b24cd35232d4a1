# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A new user_config turns on an A/B experiment for half of the users.

reconfigure only changes a number. After the update serve_warm replays the declared input again,
but the test user "warmup" hashes into the control group, so nothing compiles and the replica
stays READY. The first user in the other group runs the candidate model for the first time.
"""

import zlib

import torch
from ray import serve

import serve_warm


def group(user):
    return zlib.crc32(user.encode()) % 100  # warmup 56, dave 88, alice 35, bob 4


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Experiment(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        control = torch.nn.Linear(8, 4)
        candidate = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)
        )
        self.control = torch.compile(control.eval(), dynamic=False)
        self.candidate = torch.compile(candidate.eval(), dynamic=False)
        self.share = 0

    def reconfigure(self, config):
        self.share = int(config.get("share", 0))

    def warmup_inputs(self):
        return [serve_warm.Input(target=self.rank, args=("warmup", [0.0] * 8), name="test user")]

    async def rank(self, user: str, values: list[float]) -> list[int]:
        if len(values) != 8:
            raise ValueError("send eight numbers")
        model = self.candidate if group(user) < self.share else self.control
        return await self.on_model_thread(self._run, model, values)

    def _run(self, model, values):
        with torch.inference_mode():
            return model(torch.tensor([values]))[0].argsort().tolist()


app = Experiment.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [("rank", ["dave", [1.0] * 8], {}), ("rank", ["alice", [1.0] * 8], {})],
    "user_config": {"share": 0},
    "update": {"share": 50},
}
