# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A program that kills pushes and pulls with SIGKILL, and checks what is visible afterwards.

    python killed_transfers.py push|pull STORE NODE_CACHE random|steps COUNT

The program runs as its own process, because it forks: it imports everything once, and runs each
transfer in a fork. `random` kills COUNT transfers, each after a random part of the time that a
whole transfer takes. `steps` kills one transfer before its first file operation, the next before
its second, and so on until a transfer finishes, but at most COUNT. The program prints one JSON
object: how many transfers were killed and finished, and every violation.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from artifacts import DEPLOYMENT, build, fingerprint, trusting
from serve_warm.artifact.node_cache import NodeCache
from serve_warm.artifact.pull import pull
from serve_warm.artifact.push import push
from serve_warm.errors import ArtifactNotFound
from serve_warm.stores import list_keys, open_store

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIZES = {"cache": 36 << 20, "other": 1 << 20}
"""One part is larger than the size up to which one GET is enough, and one is smaller. Both are
incompressible."""

FILE_OPERATIONS = ("open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.truncate")


class Campaign:
    """One operation on one store, which is killed again and again."""

    def __init__(self, operation: str, uri: str, node_cache: str) -> None:
        self.uri = uri
        self.node_cache = Path(node_cache)
        self.noise = random.Random(2)
        self.raw = {name: self.noise.randbytes(size) for name, size in SIZES.items()}
        self.manifest, self.stored = build(raw=self.raw)
        self.transfer, self.reset, self.look = (
            (self.push, self.empty_store, self.nothing_or_all)
            if operation == "push"
            else (self.pull, self.empty_node, self.no_partial_blob)
        )
        if operation == "pull":
            run(self.push)

    def push(self) -> None:
        push(open_store(self.uri), self.manifest, self.stored, [KEY])

    def pull(self) -> None:
        with pull(
            open_store(self.uri),
            deployment=DEPLOYMENT,
            fingerprint=fingerprint(),
            trust=trusting(KEY),
            cache=NodeCache.open(self.node_cache),
            parts=tuple(SIZES),
        ) as pulled:
            for name, file in pulled.raw.items():
                if file.read() != self.raw[name]:
                    sys.exit("the bytes differ")

    def nothing_or_all(self) -> None:
        """Check as another replica does: there is no artifact, or a whole one."""
        try:
            self.pull()
        except ArtifactNotFound:
            return

    def no_partial_blob(self) -> None:
        for path in self.node_cache.glob("*"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if path.suffix not in (".tmp", ".lock") and digest != path.name:
                sys.exit(f"a partial blob has its final name: {path.name}")

    def empty_store(self) -> None:
        store = open_store(self.uri)
        for key in list_keys(store, ""):
            store.delete(key)

    def empty_node(self) -> None:
        shutil.rmtree(self.node_cache, ignore_errors=True)

    def whole_s(self) -> float:
        run(self.reset)
        began = time.perf_counter()
        failed = run(self.transfer)
        if failed:
            sys.exit(f"the transfer fails without a kill: {failed}")
        return time.perf_counter() - began

    def kill_at(self, point: float) -> tuple[bool, list[str]]:
        """Kill one transfer. Return whether it was still running, and the problems afterwards."""
        run(self.reset)
        run(self.empty_node)
        killed = run(self.transfer, kill_at=point) == KILLED
        checks = {"look": self.look, "repeated": self.transfer, "pull": self.pull}
        failures = {what: run(check) for what, check in checks.items()}
        return killed, [f"{what} at {point}: {why}" for what, why in failures.items() if why]

    def points(self, how: str, count: int) -> Iterator[float]:
        if how == "steps":
            yield from range(1, count + 1)
            return
        # The shortest time, so that most of the kills come in time even on a busy machine.
        whole_s = min(self.whole_s() for _ in range(5))
        # Some transfers end before the kill, so there are more points than `count`.
        for _ in range(4 * count):
            yield self.noise.uniform(0, 1) * whole_s


def main() -> None:
    operation, uri, node_cache, how, count = sys.argv[1:]
    campaign = Campaign(operation, uri, node_cache)
    killed = finished = 0
    violations = []
    for point in campaign.points(how, int(count)):
        in_time, wrong = campaign.kill_at(point)
        killed, finished = killed + in_time, finished + (not in_time)
        violations += wrong
        if finished if how == "steps" else killed == int(count):
            break
    result = {"killed": killed, "finished": finished, "violations": violations}
    sys.stdout.write(json.dumps(result))


KILLED = f"signal {signal.SIGKILL}"


def run(what: Callable[[], None], *, kill_at: float | None = None) -> str:
    """Run a function in a fork. Return why it failed, or an empty string.

    If `kill_at` is an int, the fork kills itself before the file operation of this number. If it is
    a float, the parent kills the fork after this many seconds.
    """
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            if isinstance(kill_at, int):
                kill_before(kill_at)
            what()
            failed = 0
        finally:
            # The fork must not continue with the parent's code, even if an exception was raised.
            if failed:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(failed)
    if isinstance(kill_at, float):
        time.sleep(kill_at)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else ""


def kill_before(number: int) -> None:
    seen = 0

    def count(event: str, _arguments: object) -> None:
        nonlocal seen
        if event in FILE_OPERATIONS:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


if __name__ == "__main__":
    main()
