# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Damages files of one replica, many times, and reads them as a probe and a worker do.

    python -I -S damaged_node_process.py FOLDER FIRST TRIES

Run by `tests/benchmarks/faults_node.py`, with each Python that is installed. FOLDER has the files
of a healthy replica, whose lock is held, and copies of another replica's files. The last line of
the output is JSON. Nothing here imports `json` before that, because the scanner of CPython behaves
differently where `json` was not imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import random
import re
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "serve_warm/node.py"
HEALTHY, VICTIM = "app#Embedder#healthy", "app#Embedder#victim"
FOREVER_S = 1e9
"""The healthy replica writes only once, and a run takes longer than its heartbeat is fresh."""
PROCESS_EVERY = 400
"""One of so many tries also runs the probe as a process."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')
ODD = (
    *(b"null", b"true", b"0", b"-1", b"1e999", b"-1e999", b"NaN", b"-Infinity", b"1e308"),
    *(b"9" * 400, b"9" * 5000, b'""', b'"x"', b'"\\ud800"', b'"\\u2028\\u001b[2K"', b'"\\u0000"'),
    *(b"[]", b"{}", b"[[]]", b'{"a": [1]}', b'"READY"', b'"FAILED"', b'"full_hit"', b'"\xff"'),
    *(b"[" * depth + b"]" * depth for depth in (100, 300, 600, 900, 980, 100_000)),
    b'{"a":' * 900 + b"1" + b"}" * 900,
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return data as a crash, a failing disk, another release or a mistake could leave it."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(DAMAGES)(data, rng)
    return data


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _flip(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 8) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + bytes(rng.randrange(256) for _ in range(rng.randint(1, 9))) + data[at:]


def _remove(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.randint(1, 40) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[max(0, at - rng.randint(1, 400)) :]


def _zeros(data: bytes, rng: random.Random) -> bytes:
    at = rng.choice((0, rng.randint(0, len(data))))
    return data[:at] + bytes(len(data) - at)


def _grow(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice((b" " * (1 << 20) + b"x", b"\n", data, b"}", b"\x00"))


def _replace(data: bytes, rng: random.Random) -> bytes:
    tokens = list(_TOKEN.finditer(data))
    for token in sorted(rng.sample(tokens, min(len(tokens), rng.randint(1, 3))), key=_end)[::-1]:
        data = data[: token.start()] + rng.choice(ODD) + data[token.end() :]
    return data


def _end(token: re.Match[bytes]) -> int:
    return token.end()


# Replaced tokens are usually still JSON, so they reach further into the readers than other damage.
DAMAGES = (_cut, _flip, _insert, _remove, _repeat, _zeros, _grow, *(_replace,) * 7)


def load_node() -> ModuleType:
    """Return `node.py` as a module, without the package around it."""
    spec = importlib.util.spec_from_file_location("lone_node", NODE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Folder:
    """A state directory with a healthy replica, and with another one whose files are damaged."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self._whole = {kind: (folder / f"victim.{kind}").read_bytes() for kind in ("json", "lock")}

    @contextlib.contextmanager
    def damage(self, kind: str, rng: random.Random, *, alive: bool) -> Iterator[None]:
        """Write the other replica's files, one of them damaged. Its lock is held if it lives."""
        data = {**self._whole, kind: damaged(self._whole[kind], rng)}
        for each, content in data.items():
            (self.state / f"{VICTIM}.{each}").write_bytes(content)
        with (self.state / f"{VICTIM}.lock").open("rb") as lock:
            if alive:
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def read(node: Any, folder: Folder, *, alive: bool, expected: Any) -> tuple[str, Any]:
    """Return the victim's condition and the healthy replica, as a probe sees both."""
    settings = node.Settings(str(folder.state), node.Policy("all"), FOREVER_S, ())
    readiness = node.judge(settings, health={})
    by_stem = {replica.stem: replica for replica in readiness.replicas}
    assert by_stem.keys() == {HEALTHY, VICTIM}, sorted(by_stem)
    healthy, victim = by_stem[HEALTHY], by_stem[VICTIM]
    assert (healthy.condition, healthy.why) == ("warm", ""), healthy.why
    assert expected in (None, healthy), healthy
    assert victim.condition in node.CONDITIONS
    assert (victim.condition == "dead") != alive, victim.condition
    assert alive or readiness.ready, readiness.reasons
    for line in (*readiness.lines(), *readiness.said(verbose=False)):
        assert line.encode().decode() == line
    return victim.condition, healthy


def probe(folder: Folder, *, alive: bool) -> None:
    """Run the probe as a process."""
    command = [sys.executable, "-I", "-S", str(NODE), "probe", "--state-dir", str(folder.state)]
    command += ["--raylet", "none", "--proxy", "none", "--stale-s", f"{FOREVER_S:g}", "--verbose"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr == "", ended.stderr
    assert "app#Embedder healthy: warm\n" in ended.stdout, ended.stdout
    assert ended.returncode in ((0, 1) if alive else (0,)), ended.stdout


def claim(records: Any, folder: Path, rng: random.Random) -> str:
    """Take a damaged ticket and a healthy one; then read a damaged seat and a healthy one."""
    seats = records.SeatFolder(folder)
    for path in folder.iterdir():
        path.unlink()
    seats.offer(records.SeatRequest(deployment="app#D", imports=("m",), paths=("/p",)))
    [whole] = folder.glob("ticket-*")
    odd = folder / f"ticket-{rng.choice('0g')}"  # read first, or last
    odd.write_bytes(damaged(whole.read_bytes(), rng))
    said, taken = "read", []
    for _ in range(2):
        try:
            found = seats.claim()
        except ValueError:
            said = "refused"
        else:
            taken += [] if found is None else [found]
    assert not list(folder.glob("*ticket-*")) + list(folder.glob("claimed-*"))
    assert whole.name in [name for name, _ in taken]
    for _, wanted in taken:
        words = (wanted.deployment, *wanted.imports, *wanted.paths, wanted.omp_threads or "")
        assert all(type(word) is str for word in words), wanted
        assert 0 <= wanted.limit_s < FOREVER_S, wanted
        assert 0 <= wanted.offered_boot_s < FOREVER_S, wanted
    seat = records.Seat(pid=7, start_ticks=1, state="waiting", deployment="app#D", ticket="t")
    seats.write(seat)
    (folder / "seat-8").write_bytes(damaged((folder / "seat-7").read_bytes(), rng))
    found = seats.seats()
    assert seat in found
    for each in found:
        words = (each.deployment, each.state, each.ticket, each.note)
        assert all(type(word) is str for word in words), each
        numbers = (each.offered_boot_s, each.began_boot_s, each.import_s, each.memory_bytes)
        assert all(abs(number) < float("inf") for number in numbers), each
        records.lives(each)
    return said


def main() -> None:
    base, first, tries = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    node, folder = load_node(), Folder(base)
    tickets = base / "tickets"
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    expected, records = None, None
    # Tickets come last: their readers import `json`.
    kinds = ["json"] * (tries // 2) + ["lock"] * (tries // 4)
    kinds += ["ticket"] * (tries - len(kinds))
    for number, kind in enumerate(kinds, first):
        rng = random.Random(number)
        try:
            if kind == "ticket":
                if records is None:
                    sys.path.insert(0, str(ROOT))
                    records = importlib.import_module("serve_warm.seats.records")
                outcome = claim(records, tickets, rng)
            else:
                alive = number % 2 == 1
                with folder.damage(kind, rng, alive=alive):
                    outcome, healthy = read(node, folder, alive=alive, expected=expected)
                    expected = expected or healthy
                    if number % PROCESS_EVERY < 2:
                        probe(folder, alive=alive)
                for name in [name for name in sys.modules if name.partition(".")[0] == "json"]:
                    del sys.modules[name]  # each try begins as a probe's process does
            outcomes[f"{kind} {outcome}"] += 1
        except Exception:  # noqa: BLE001 - a failure is counted, and the next file is tried
            failures.append(f"{kind} {number}: {traceback.format_exc()}")
    import json

    answer = {"tries": tries, "outcomes": outcomes, "failed": len(failures), "first": failures[:5]}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
