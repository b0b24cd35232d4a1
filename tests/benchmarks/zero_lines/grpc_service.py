# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A scorer that answers gRPC requests, after Ray Serve's guide to its gRPC proxy.

Differs: the messages and the service are those that Ray ships for its own tests, in place of
generated ones, and the answer is a score of a small compiled model with random weights.
"""

from collections.abc import Iterator

import torch
from ray import serve
from ray.serve.generated.serve_pb2 import UserDefinedMessage, UserDefinedResponse

LENGTH = 24

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Embedding(256, 32),
    torch.nn.Conv1d(LENGTH, 16, 3),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(16 * 30, 1),
).eval()


@torch.compile
def score(ids: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(model(ids)).squeeze(-1)


def to_ids(text: str) -> torch.Tensor:
    return torch.tensor([list(text.encode()[:LENGTH].ljust(LENGTH))])


@serve.deployment
class GrpcDeployment:
    def __call__(self, message: UserDefinedMessage) -> UserDefinedResponse:
        with torch.inference_mode():
            found = float(score(to_ids(message.name)))
        return UserDefinedResponse(greeting=f"{found:.4f}", num_x2=2 * message.num)

    def Streaming(self, message: UserDefinedMessage) -> Iterator[UserDefinedResponse]:  # noqa: N802
        words = message.name.split()
        with torch.inference_mode():
            every = score(torch.cat([to_ids(" ".join(words[:end])) for end in (1, 2, 3)]))
        for number, found in enumerate(every.tolist()):
            yield UserDefinedResponse(greeting=f"{found:.4f}", num_x2=number)


app = GrpcDeployment.bind()
