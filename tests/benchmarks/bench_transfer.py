# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The cost of a pull: parallel ranges compared with one stream, memory, and verification.

    python tests/benchmarks/bench_transfer.py [--rounds 3] [--mib 256]

A loopback server limits each connection to 85 MB/s, as S3 does. Two transfers of the same bytes
alternate, each in a fresh process. One is a plain stream into a file, without verification. The
other is serve_warm's whole pull: list, signature, ranges, digests and unpacking. Memory is the peak
of the pull's process, less its memory before the pull. JSON goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from artifacts import PLACE, build, fingerprint, trusting
from processes import peak_bytes
from serve_warm import __version__
from serve_warm.artifact.push import push
from serve_warm.stores.local import LocalStore

BYTES_PER_S = 85e6
LIMITS = {"times_a_single_stream": 4.0, "peak_mib": 160.0, "verify_ms": 5.0}
SMALL_BYTES = 32 << 20
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


# Functions that run in a fresh process -------------------------------------------------------


def one_stream(url: str) -> dict[str, Any]:
    """Read one object into a file over one connection."""
    import http.client
    import urllib.parse

    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        connection.request("GET", parts.path)
        response = connection.getresponse()
        while piece := response.read(1 << 20):
            file.write(piece)
        took = time.perf_counter() - began
    connection.close()
    return {"s": took}


def our_pull(uri: str, node: str) -> dict[str, Any]:
    """Pull as a replica does. Then pull again, with the bytes already on the node."""
    import resource

    from serve_warm.artifact.node_cache import NodeCache
    from serve_warm.artifact.pull import Pulled, pull
    from serve_warm.stores import open_store

    def pulled() -> Pulled:
        return pull(
            open_store(uri),
            place=PLACE,
            fingerprint=fingerprint(),
            trust=trusting(KEY),
            cache=NodeCache.open(Path(node)),
        )

    open_store(uri)  # imports its client before the clock starts, as `one_stream` does
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now the current size
    idle_bytes = peak_bytes()
    began = time.perf_counter()
    with pulled() as first:
        took = time.perf_counter() - began
        peak = peak_bytes() - idle_bytes
        cpu = resource.getrusage(resource.RUSAGE_SELF)
    again, verify = [], []
    for _ in range(9 if first.stored_bytes < 1 << 20 else 1):
        began = time.perf_counter()
        with pulled() as second:
            again.append(time.perf_counter() - began)
            verify.append(second.verify_s)
    return {
        "s": took,
        "peak_mib": peak / 2**20,
        "cpu_s": cpu.ru_utime + cpu.ru_stime,
        "downloaded_bytes": first.downloaded_bytes,
        "again_s": statistics.median(again),
        "again_downloaded_bytes": second.downloaded_bytes,
        "verify_s": statistics.median(verify),
    }


# The comparison --------------------------------------------------------------------------------


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder as a bucket. Yield the endpoint, and the log of GETs, filled at the end."""
    program = Path(__file__).with_name("throttled_s3.py")
    command = [sys.executable, str(program), str(folder), str(BYTES_PER_S)]
    gets: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}", gets
        finally:
            server.terminate()
            gets += server.stdout.read().splitlines()


def in_fresh_process(*arguments: str, endpoint: str = "") -> dict[str, Any]:
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REGION": "us-east-1",
    }
    ended = subprocess.run(
        [sys.executable, __file__, "--only", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def published(folder: Path, count: int) -> str:
    """Publish an artifact of `count` incompressible bytes. Return the path of its blob."""
    manifest, stored = build(raw={"cache": os.urandom(count)})
    push(LocalStore(root=folder), manifest, stored, [KEY])
    return f"blobs/sha256/{manifest.parts[0].sha256}"


def measure(rounds: int, mib: int) -> dict[str, Any]:
    single, ours, small = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        big, little = Path(scratch) / "big", Path(scratch) / "small"
        blob = published(big, mib << 20)
        published(little, SMALL_BYTES - (1 << 20))
        with serving(big) as (endpoint, gets):
            for number in range(rounds):
                node = str(Path(scratch) / f"node-{number}")
                single.append(in_fresh_process("stream", f"{endpoint}/bucket/{blob}"))
                ours.append(in_fresh_process("pull", "s3://bucket", node, endpoint=endpoint))
        with serving(little) as (endpoint, small_gets):
            node = str(Path(scratch) / "node-small")
            small.append(in_fresh_process("pull", "s3://bucket", node, endpoint=endpoint))
        tiny = Path(scratch) / "tiny"
        published(tiny, 1000)
        verify = [
            in_fresh_process("pull", str(tiny), str(Path(scratch) / "node-tiny"))["verify_s"]
            for _ in range(rounds)
        ]
    ratio = statistics.median(s["s"] / o["s"] for s, o in zip(single, ours, strict=True))
    return {
        "benchmark": f"a pull of {mib} MiB, each connection held to {BYTES_PER_S / 1e6:.0f} MB/s",
        "single_stream_s": round(statistics.median(run["s"] for run in single), 3),
        "pull_s": round(statistics.median(run["s"] for run in ours), 3),
        "pull_cpu_s": round(statistics.median(run["cpu_s"] for run in ours), 3),
        "again_from_the_node_s": round(statistics.median(run["again_s"] for run in ours), 3),
        "times_a_single_stream": round(ratio, 2),
        "peak_mib": round(max(run["peak_mib"] for run in ours), 1),
        "verify_ms": round(statistics.median(verify) * 1000, 2),
        "gets_of_the_blob": sum(blob in line for line in gets) // rounds - 1,
        "gets_of_a_blob_under_32_mib": sum("blobs/" in line for line in small_gets),
        "limits": LIMITS,
        "rounds": rounds,
        "cpus": os.cpu_count(),
        "versions": {"serve_warm": __version__, "python": platform.python_version()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds to measure (default 3)")
    parser.add_argument("--mib", type=int, default=256, help="size of the artifact (default 256)")
    parser.add_argument("--only", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        what, *arguments = options.only
        one = one_stream(*arguments) if what == "stream" else our_pull(*arguments)
        sys.stdout.write(json.dumps(one))
        return 0
    result = measure(options.rounds, options.mib)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    missed = (
        result["times_a_single_stream"] < LIMITS["times_a_single_stream"]
        or result["peak_mib"] > LIMITS["peak_mib"]
        or result["verify_ms"] > LIMITS["verify_ms"]
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
