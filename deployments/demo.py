# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`make demo`: starts the text embedder cold, builds its artifact, and starts it warm.

    python -m deployments.demo          publishes to ./artifacts
    python -m deployments.demo --s3     publishes to a local S3 server, which it starts
    python -m deployments.demo --store s3://bucket/prefix     publishes to any other store

The demo sends real sentences over HTTP to a model with real weights, on a local Ray Serve cluster.
Every start is a fresh replica process with a fresh cache directory. The demo compares the served
embeddings with those of the eager model. It writes `build/demo.json` in the format of
`serve-warm bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
import torch
import transformers

from deployments.text_embedder.app import MAX_LENGTH, mean_pooled
from deployments.text_embedder.model import load_model, load_tokenizer
from serve_warm.builder import bench
from serve_warm.builder.app import load_app
from serve_warm.builder.build import build
from serve_warm.builder.cluster import Cluster, open_cluster
from serve_warm.builder.publishing import Destination
from serve_warm.builder.torch_cache import TorchCache
from serve_warm.cli import screen
from serve_warm.cli.starts import show
from serve_warm.stores import open_store

APP = "deployments/text_embedder/serve.yaml"
FOLDER = "./artifacts"
RESULT = Path("build/demo.json")

SENTENCES = (
    "Hello.",
    "The replica is ready when it is proven warm.",
    "How long does a new replica need before it can answer its first request?",
    "Compilers are patient, users are not.",
    (
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the "
        "age of foolishness, it was the epoch of belief, it was the epoch of incredulity."
    ),
    (
        "Call me Ishmael. Some years ago, never mind how long precisely, having little or no "
        "money in my purse, and nothing particular to interest me on shore, I thought I would "
        "sail about a little and see the watery part of the world. It is a way I have of driving "
        "off the spleen and regulating the circulation. Whenever I find myself growing grim about "
        "the mouth; whenever it is a damp, drizzly November in my soul."
    ),
    "Ein Satz auf Deutsch.",
    "def warm_up(self): ...",
    "42",
)
"""Sentences of 3 to about 100 tokens, which use every length bucket."""

TOLERANCE = 1e-4
"""Largest allowed difference between a component of a served embedding and its eager value.
Embeddings have unit length."""


def main() -> int:
    """Run the demo, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", default=FOLDER, help="the store to publish to")
    where.add_argument("--s3", action="store_true", help="start an S3 server and publish to it")
    options = parser.parse_args()
    if not options.s3:
        return run(options.store)
    with s3_server() as store:
        return run(store)


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Start moto's S3 server on loopback, and yield the address of a bucket on it.

    Sets the variables that an operator sets for any S3 server: address, plain HTTP, credentials.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
        AWS_ALLOW_HTTP="true",
        AWS_REGION="us-east-1",
        AWS_ACCESS_KEY_ID="demo",
        AWS_SECRET_ACCESS_KEY="demo",  # noqa: S106 - this server takes any
    )
    bucket = f"http://127.0.0.1:{port}/serve-warm-demo"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(300):
                with contextlib.suppress(requests.ConnectionError):
                    requests.put(bucket, timeout=60).raise_for_status()
                    break
                time.sleep(0.1)
            yield "s3://serve-warm-demo/artifacts"
        finally:
            server.terminate()


def run(store: str) -> int:
    """Build the artifact, start the deployment in each mode, and return the exit code."""
    transformers.logging.disable_progress_bar()
    app = load_app(APP)
    runs: list[dict[str, Any]] = []
    checked: dict[str, float] = {}
    torch_cache = TorchCache()

    def start(mode: str, on: Cluster, progress: Any) -> None:
        runs.append(
            bench.one(
                app,
                store,
                mode,
                on=on,
                request_count=24,
                torch_cache=torch_cache,
                progress=lambda text: progress(f"{mode}: {text}"),
                inspect=lambda started: checked.update({mode: largest_error(started.url)}),
            )
        )

    with screen.progress() as progress:
        progress("starting Ray")
        with open_cluster(num_cpus=app.num_cpus) as cluster:
            start("cold", cluster, progress)
            built = build(
                app,
                # An earlier demo may have published the variant.
                Destination(store=open_store(store), if_published="supersede"),
                on=cluster,
                progress=lambda text: progress(f"build, {text}"),
            )
            start("torch_bytes", cluster, progress)
            start("warm", cluster, progress)
        progress("floor: imports in a fresh process")
        result = bench.collect(app, store, runs, import_s=bench.measure_imports())

    show(result)
    size = screen.size(built.parts["cache"])
    print(f"artifact: {size} in {store}, signed, proven by a round trip")
    for mode, error in checked.items():
        print(f"{mode}: {len(SENTENCES)} sentences, within {error:.1e} of eager")
    screen.write_json(result, RESULT)
    wrong = {mode: error for mode, error in checked.items() if not error <= TOLERANCE}
    if wrong:
        print(
            f"error: embeddings differ from eager by more than {TOLERANCE}: {wrong}",
            file=sys.stderr,
        )
        return 1
    return 0


def largest_error(url: str) -> float:
    """Send all sentences at once, and return the largest difference from eager embeddings."""

    def embed(text: str) -> list[float]:
        answer = requests.post(f"{url}/embed", json={"text": text}, timeout=60)
        answer.raise_for_status()
        embedding: list[float] = answer.json()["embedding"]
        return embedding

    with ThreadPoolExecutor(len(SENTENCES)) as pool:
        served = torch.tensor(list(pool.map(embed, SENTENCES)))
    return float((served - eager()).abs().max())


@functools.cache
def eager() -> torch.Tensor:
    """Return the eager model's embeddings of the sentences, computed one by one and unpadded."""
    tokenizer, model = load_tokenizer(), load_model()
    rows = []
    with torch.inference_mode():
        for text in SENTENCES:
            tokens = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
            ids, mask = tokens["input_ids"], tokens["attention_mask"]
            rows.append(mean_pooled(model(input_ids=ids, attention_mask=mask)[0], mask)[0])
    return torch.stack(rows)


if __name__ == "__main__":
    sys.exit(main())
