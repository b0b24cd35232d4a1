# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Damages state files, locks and tickets of one replica, and reads them beside a healthy one.

    python tests/benchmarks/faults_node.py --json tests/benchmarks/results/faults.json

Each supported Python that is installed reads 10,000 damaged files with `python -I -S`, as a probe
does (`tests/support/damaged_node_process.py`). The Python that runs this program also answers
`/readyz`, `/metrics`, `serve-warm status` and `serve-warm report` for such files. A try fails if it
raises an exception, or if an answer about the healthy replica changes. The program replaces its own
rows in the file, and keeps all others. A Python that is not installed has a row with 0 tries.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(SUPPORT)]

from benchmarks.fault_rows import FaultRow, add_rows  # noqa: E402
from damaged_node_process import FOREVER_S, VICTIM, Folder  # noqa: E402
from reports import FULL  # noqa: E402
from serve_warm import node  # noqa: E402
from serve_warm._state_file import StateFile  # noqa: E402
from serve_warm.cli import observed, reporting  # noqa: E402
from serve_warm.node_server.server import Server  # noqa: E402
from serve_warm.replica.serve.shown_state import facts_of  # noqa: E402

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TRIES = 10_000
SERVED = 2_000
"""Tries of the node server, which take longer."""


def interpreter(version: str) -> str | None:
    """Return the path of an installed Python of this version; None if there is none."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python3"))
    for found in (shutil.which(f"python{version}"), *map(str, installed)):
        if found is not None:
            said = "import sys; print('%d.%d' % sys.version_info[:2])"
            ended = subprocess.run(
                [found, "-I", "-S", "-c", said], capture_output=True, text=True, check=False
            )
            if ended.stdout.strip() == version:
                return found
    return None


@contextlib.contextmanager
def nodes(folder: Path) -> Iterator[Callable[[], None]]:
    """Prepare a folder for `damaged_node_process`, and hold the healthy replica's lock.

    Yields a function that writes the healthy replica's state again.
    """
    state = folder / "state"
    (folder / "tickets").mkdir(mode=0o700)
    who = {"application": "app", "deployment": "Embedder"}
    facts = facts_of(FULL)
    with (
        contextlib.closing(StateFile(state, **who, replica="healthy")) as healthy,
        contextlib.closing(StateFile(state, **who, replica="victim")) as victim,
    ):
        healthy.write(facts)
        victim.write(facts)
        for kind in ("json", "lock"):
            (state / f"{VICTIM}.{kind}").replace(folder / f"victim.{kind}")
        yield lambda: healthy.write(facts)


def read_with(python: str, tries: int, *, first: int = 0) -> dict[str, Any]:
    """Return the outcomes of a number of damaged files, read with a Python."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, nodes(Path(folder)):
        program = SUPPORT / "damaged_node_process.py"
        ended = subprocess.run(
            [python, "-I", "-S", "-B", str(program), folder, str(first), str(tries)],
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode != 0:
        raise RuntimeError(f"{python} {program} ended with {ended.returncode}: {ended.stderr}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def serve(tries: int, *, first: int = 0) -> dict[str, Any]:
    """Return the outcomes of damaged files that a node server and `serve-warm status` read."""
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as name, nodes(Path(name)) as beat:
        folder = Folder(Path(name))
        settings = node.Settings(str(folder.state), node.Policy("all"), FOREVER_S, ())
        server = Server(settings, host="127.0.0.1", port=0, drain_s=0.0)
        running = threading.Thread(target=server.run)
        running.start()
        expected: set[str] = set()
        for number in range(first, first + tries):
            if number % 50 == 0:
                beat()  # `status` has no option for replicas that write only once
            alive, kind = number % 2 == 1, ("json", "json", "lock")[number % 3]
            try:
                with folder.damage(kind, random.Random(number), alive=alive):
                    seen = _ask(server.port, alive=alive)
                    expected = expected or seen
                    assert seen == expected, seen ^ expected
                    [shown] = [
                        each
                        for each in observed.of_directory(str(folder.state)).replicas
                        if each.replica == "healthy"
                    ]
                    assert shown.warm, shown
                    starts = reporting.of_node(str(folder.state))
                    assert "healthy" in [start.replica for start in starts]
                    json.dumps([*map(reporting.as_data, starts)], allow_nan=False)
                outcomes[f"{kind} served"] += 1
            except Exception:  # noqa: BLE001 - a failure is counted, and the next file is tried
                failures.append(f"{kind} {number}: {traceback.format_exc()}")
        server.drain()
        running.join()
    return {
        "tries": tries,
        "outcomes": outcomes,
        "failed": len(failures),
        "first": failures[:5],
    }


def _ask(port: int, *, alive: bool) -> set[str]:
    """Return the series of the healthy replica, without the ages."""
    status, text = _get(port, "/readyz?verbose")
    assert status in ((200, 503) if alive else (200,)), text
    assert "app#Embedder healthy: warm\n" in text, text
    status, page = _get(port, "/metrics")
    assert status == 200
    lines = page.splitlines()
    assert "serve_warm_node_states_readable 1.0" in lines
    mine = {line for line in lines if 'replica="healthy"' in line}
    assert any("serve_warm_replica_alive" in line and line.endswith(" 1.0") for line in mine)
    return {line for line in mine if "_age_seconds" not in line}


def _get(port: int, path: str) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as asking:
        asking.request("GET", path)
        response = asking.getresponse()
        return response.status, response.read().decode()


def rows(tries: int, served: int, wanted: str = "") -> list[FaultRow]:
    """Return one row for each Python, and one for the server, if its name contains `wanted`."""
    found = []
    for version in PYTHONS:
        name, python = f"damaged files, python {version} -I -S", interpreter(version)
        if wanted not in name:
            continue
        if python is None:
            said = f"python{version} is not installed"
            found.append(
                {"name": name, "kind": "node", "tries": 0, "outcome": "not run", "said": said}
            )
            continue
        found.append(_row(name, read_with(python, tries)))
    name = "damaged files, the node server, status and report"
    if wanted in name:
        found.append(_row(name, serve(served)))
    return found


def _row(name: str, found: dict[str, Any]) -> FaultRow:
    outcome = "healthy replica unchanged" if not found["failed"] else f"{found['failed']} failed"
    counted = ", ".join(f"{number} {what}" for what, number in sorted(found["outcomes"].items()))
    for text in found["first"]:
        sys.stderr.write(f"{text}\n")
    return {
        "name": name,
        "kind": "node",
        "tries": found["tries"],
        "outcome": outcome,
        "said": counted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="the file to add the rows to")
    parser.add_argument("--tries", type=int, default=TRIES, help="damaged files for each Python")
    parser.add_argument("--served", type=int, default=SERVED, help="tries of the node server")
    parser.add_argument("--only", default="", help="only the rows whose names contain this text")
    asked = parser.parse_args()
    found = rows(asked.tries, asked.served, asked.only)
    for row in found:
        sys.stdout.write(f"{row['tries']:6} {row['name']}: {row['outcome']} ({row['said']})\n")
    if asked.json is not None:
        add_rows(asked.json, found)
    sys.exit(any(row["outcome"].endswith("failed") for row in found))


if __name__ == "__main__":
    main()
