# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A process that opens the library in a folder and calls it once: `library_process.py FOLDER`.

The process prints the output, and which parts of torch's compiler were imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from serve_warm.precompile import aoti_library


class Perceptron(torch.nn.Module):
    """The perceptron of test_aoti_build.py without code, because a library needs only weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)
        self.register_buffer("offset", torch.zeros(4))


def main(folder: Path) -> None:
    state, x = torch.load(folder / "state.pt")
    model = Perceptron()
    model.load_state_dict(state)
    fn = aoti_library.load(folder / "library.so", json.loads((folder / "plan.json").read_text()))
    with torch.inference_mode():
        y = fn(model, x)["y"].tolist()
    imported = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
    sys.stdout.write(json.dumps({"y": y, "imported": imported}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
