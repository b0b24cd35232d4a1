# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A stateful session feeds the state that the model returned back into the model.

The first message of a session starts with zeros that were made outside of inference mode. The
second message passes a tensor that was made inside: an inference tensor with other dispatch
keys, on which Dynamo guards. The declared input has no session, so each replay starts with zeros,
and the second message of the first user compiles.
"""

import torch
from ray import serve

import serve_warm


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = torch.nn.Linear(6, 8)
        self.state = torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, 2)

    def forward(self, x, state):
        state = torch.tanh(self.inputs(x) + self.state(state))
        return self.out(state), state


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Tracker(serve_warm.WarmupMixin):
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.compile(Cell().eval(), dynamic=False)
        self.states = {}

    def warmup_inputs(self):
        return [serve_warm.Input(target=self.step, args=([0.0] * 6,), name="step")]

    async def step(self, values: list[float], session: str | None = None) -> list[float]:
        if len(values) != 6:
            raise ValueError("send six numbers")
        return await self.on_model_thread(self._run, values, session)

    def _run(self, values, session):
        state = self.states.get(session)
        if state is None:
            state = torch.zeros(1, 8)
        x = torch.tensor([values])
        with torch.inference_mode():
            out, state = self.model(x, state)
            if session is not None:
                self.states[session] = state
            return out[0].tolist()


app = Tracker.bind()

ROW = {
    "blind": True,
    "kind": "first_request",
    "requests": [
        ("step", [[0.1] * 6], {"session": "alice"}),
        ("step", [[0.2] * 6], {"session": "alice"}),
    ],
}
