# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The true states of a node's replicas over time, known independently of their state files.

A replica of a test records its actions in a separate file, with `note`. The kernel reports when the
replica ended. A `Witness` collects both. It also collects every answer of a probe or server, with
the times of the question and the answer. Afterwards, a "ready" counts as false if the node was
allowed to be ready at no moment between the question and the answer.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from processes import run_to_end
from serve_warm import node

NEVER = float("inf")
VISIBLE_S = 1.0
"""Seconds within which a new replica writes its first state, from a separate thread."""


def now_s() -> float:
    """Return the seconds of the clock that all processes of a machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# In a replica -----------------------------------------------------------------------------------


def note(word: str) -> None:
    """Append a word and the time to the replica's notes, next to the cluster's state files."""
    folder = notes_beside(os.environ["SERVE_WARM_STATE_DIR"])
    folder.mkdir(exist_ok=True)
    with (folder / str(os.getpid())).open("a") as file:
        file.write(f"{now_s():.6f} {word}\n")


def note_began() -> None:
    from ray import serve

    note(f"began {serve.get_replica_context().app_name}")


def note_answered() -> None:
    """Note an answer, and whether torch forbade compiling for it, which is the proof."""
    from torch._dynamo import eval_frame

    forbidden = eval_frame._stance.stance == "fail_on_recompile"
    note("proven" if forbidden else "answered")


def notes_beside(state_dir: str | os.PathLike[str]) -> Path:
    return Path(state_dir).parent / "notes"


# What was true ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Life:
    """The life of one replica, in seconds of `now_s`."""

    pid: int
    began_s: float
    proven_s: float = NEVER
    """Time at which its last input was answered with compiling forbidden."""
    ended_s: float = NEVER
    """Time at which the kernel reported the end of its process."""

    def alive(self, at_s: float) -> bool:
        return self.began_s <= at_s < self.ended_s

    def warm(self, at_s: float) -> bool:
        return self.proven_s <= at_s < self.ended_s


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer of a probe or a server."""

    source: str
    sent_s: float
    received_s: float
    ready: bool
    text: str = ""


def may_be_ready(lives: Sequence[Life], at_s: float, *, latch: str) -> bool:
    """Return whether a node may be called ready at a moment.

    At least one replica must be warm. With a latch, each cold replica must have begun after the
    proof of a warm one. Without a latch, no replica may be cold.
    """
    warm = [life for life in lives if life.warm(at_s)]
    cold = [
        life
        for life in lives
        if life.alive(at_s) and not life.warm(at_s) and life.began_s + VISIBLE_S <= at_s
    ]
    if latch == "off":
        return bool(warm) and not cold
    return any(all(late.began_s > life.proven_s for late in cold) for life in warm)


def must_be_ready(lives: Sequence[Life], at_s: float, *, latch: str) -> bool:
    """Return whether a node must be called ready at a moment.

    The node must be ready if all its replicas are warm. With a latch, it must also be ready if each
    cold replica began well after a moment at which all others were warm.
    """
    alive = [life for life in lives if life.began_s - VISIBLE_S <= at_s < life.ended_s]
    warm = [life for life in alive if life.warm(at_s)]
    cold = [life for life in alive if not life.warm(at_s)]
    if latch == "off" or not cold:
        return bool(warm) and not cold
    moment = max((life.proven_s for life in warm), default=NEVER)
    return all(late.began_s - VISIBLE_S > moment + VISIBLE_S for late in cold)


def false_readies(answers: Sequence[Answer], lives: Sequence[Life], *, latch: str) -> list[Answer]:
    """Return "ready" answers that no moment between question and answer allowed."""
    return [
        answer
        for answer in answers
        if answer.ready
        and not any(
            may_be_ready(lives, at_s, latch=latch)
            for at_s in _moments(lives, answer.sent_s, answer.received_s)
        )
    ]


def late_readies(
    answers: Sequence[Answer], lives: Sequence[Life], *, latch: str, period_s: float
) -> list[Answer]:
    """Return "not ready" answers after a whole period in which the node had to be ready."""
    return [
        answer
        for answer in answers
        if not answer.ready
        and all(
            must_be_ready(lives, at_s, latch=latch)
            for at_s in _moments(lives, answer.sent_s - period_s, answer.received_s)
        )
    ]


def _moments(lives: Sequence[Life], from_s: float, to_s: float) -> list[float]:
    """Return one moment from each interval in which nothing changed."""
    changes = {from_s, to_s}
    for life in lives:
        for moment in (life.began_s, life.proven_s, life.ended_s):
            for shift in (-VISIBLE_S, 0.0, VISIBLE_S):
                if from_s < moment + shift < to_s:
                    changes.add(moment + shift)
    inner = sorted(changes)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(inner)]
    return [*inner, *middles]


# Probes and servers -----------------------------------------------------------------------------


class NodeServer:
    """A node server process, which can be killed and restarted."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._port = 0
        self.begin()

    def begin(self) -> None:
        command = [sys.executable, "-m", "serve_warm.node_server", *self._options]
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        found = re.search(r"answers on port (\d+)", self.process.stderr.readline())
        assert found is not None
        self._port = int(found[1])

    def __enter__(self) -> NodeServer:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def readyz(self) -> tuple[bool, str] | None:
        """Return whether the node is ready, and the reason if not; None without an answer."""
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            status, text = self.get("/readyz?verbose")
            assert status in {200, 503}
            return status == 200, text
        return None

    def scraped(self) -> tuple[bool, str] | None:
        """Return whether the node is ready according to the metrics that Prometheus scrapes."""
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            return self.metric("serve_warm_node_ready") == 1.0, ""
        return None

    def metric(self, name: str) -> float:
        status, text = self.get("/metrics")
        assert status == 200
        (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
        return float(line.rpartition(" ")[2])


def probed(*options: str) -> tuple[bool, str]:
    """Return whether the node is ready, and the reason if not, from the exec probe."""
    command = [sys.executable, "-I", "-S", node.__file__, "probe", *options]
    ended = run_to_end(command)
    assert ended.returncode in {0, 1}, ended.stderr
    return ended.returncode == 0, ended.stdout


# The witness ------------------------------------------------------------------------------------


class Witness:
    """Watches the replicas of one application, and continuously asks probes and servers."""

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        application: str,
        *,
        inputs: int,
        ask: Mapping[str, Callable[[], tuple[bool, str] | None]],
        pause_s: float,
    ) -> None:
        self._folder = notes_beside(state_dir)
        self._application = application
        self._inputs = inputs
        self._ends: dict[int, float] = {}
        self._stop = threading.Event()
        self.sources = tuple(ask)
        self.answers: list[Answer] = []
        self._threads = [threading.Thread(target=self._watch)]
        self._threads += [
            threading.Thread(target=self._ask, args=(source, each, pause_s))
            for source, each in ask.items()
        ]

    def __enter__(self) -> Witness:  # noqa: PYI034 - Self is not in Python 3.10
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def of(self, source: str) -> list[Answer]:
        return [answer for answer in self.answers if answer.source == source]

    def agree(self) -> bool:
        """Return whether each source's last answer is "ready", to a question after all proofs."""
        warm = self.warm()
        if not warm:
            return False
        since_s = max(life.proven_s for life in warm)
        return all(
            any(answer.ready and answer.sent_s > since_s for answer in self.of(source)[-1:])
            for source in self.sources
        )

    def lives(self) -> list[Life]:
        """Return all replicas until now, oldest first."""
        # Before the notes: a replica that ends meanwhile counts as living.
        found, ends = [], dict(self._ends)
        for file in self._notes():
            # The last line may be half written.
            lines = [line.split() for line in file.read_text().split("\n")[:-1]]
            if not lines or lines[0][1:] != ["began", self._application]:
                continue
            proven = [float(line[0]) for line in lines if line[1] == "proven"]
            pid = int(file.name)
            life = Life(
                pid=pid,
                began_s=float(lines[0][0]),
                proven_s=proven[self._inputs - 1] if len(proven) >= self._inputs else NEVER,
                ended_s=ends.get(pid, NEVER),
            )
            found.append(life)
        return sorted(found, key=lambda life: life.began_s)

    def living(self) -> list[Life]:
        return [life for life in self.lives() if life.ended_s == NEVER]

    def warm(self) -> list[Life]:
        return [life for life in self.living() if life.proven_s < NEVER]

    def _notes(self) -> list[Path]:
        try:
            return list(self._folder.iterdir())
        except FileNotFoundError:
            return []

    def _watch(self) -> None:
        """Note when each process ended, as soon as the kernel reports it."""
        poll = select.poll()
        known: dict[int, int] = {}
        while not self._stop.is_set():
            for file in self._notes():
                pid = int(file.name)
                if pid in known.values() or pid in self._ends:
                    continue
                try:
                    descriptor = os.pidfd_open(pid)
                except ProcessLookupError:
                    self._ends[pid] = now_s()
                    continue
                known[descriptor] = pid
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(10):
                self._ends[known.pop(descriptor)] = now_s()
                poll.unregister(descriptor)
                os.close(descriptor)
        for descriptor in known:
            os.close(descriptor)

    def _ask(self, source: str, ask: Callable[[], tuple[bool, str] | None], pause_s: float) -> None:
        while not self._stop.is_set():
            sent_s = now_s()
            answer = ask()
            if answer is not None:  # else the server has been killed
                ready, text = answer
                given = Answer(
                    source=source, sent_s=sent_s, received_s=now_s(), ready=ready, text=text
                )
                self.answers.append(given)
            self._stop.wait(pause_s)
