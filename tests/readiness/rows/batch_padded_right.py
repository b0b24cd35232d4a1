# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Right: @serve.batch makes batches of one to four, and each batch is padded to four rows.

Every possible batch size is declared, and the model sees only one shape. The public method checks
the width before the batch is formed. No request can cause a compile, so a warning about batch
sizes or axes would be a false alarm.
"""

import torch
from ray import serve

import serve_warm

SIZE = 4
WIDTH = 6


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=8)
class Batched(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
        )
        self.model = serve_warm.compile(model.eval(), dynamic=False)

    def warmup_inputs(self):
        return [
            serve_warm.Input(
                target=self.predict, args=([0.0] * WIDTH,), concurrency=n, name=f"batch of {n}"
            )
            for n in range(1, SIZE + 1)
        ]

    async def predict(self, values: list[float]) -> list[float]:
        if len(values) != WIDTH:
            raise ValueError(f"send {WIDTH} numbers")
        return await self.score(values)

    @serve.batch(max_batch_size=SIZE, batch_wait_timeout_s=0.05)
    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        x = torch.zeros(SIZE, WIDTH)
        x[: len(rows)] = torch.tensor(rows)
        return (await self.on_model_thread(self._run, x))[: len(rows)]

    def _run(self, x):
        with torch.inference_mode():
            return self.model(x).tolist()


app = Batched.bind()

ROW = {
    "blind": True,
    "kind": "narrow",
    "quiet": True,
    "requests": [("predict", [[1.0] * WIDTH], {}), ("predict", [[3] * WIDTH], {})],
}
