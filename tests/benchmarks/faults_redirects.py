# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Which credentials follow a redirect or a link to another host.

    python tests/benchmarks/faults_redirects.py

Two local servers: the first one sends each client to the second one, which notes what it receives.
A row of kind `secret` has a credential, and a try for each kind of request. Its outcome is `hidden`
if the second server received no credential, else `leaked`. `faults_trust.py` runs this program and
keeps its rows.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from benchmarks.fault_rows import FaultRow  # noqa: E402 - found through the line above
from redirecting import SECRET, Redirected, credentials, redirecting  # noqa: E402
from serve_warm.errors import ServeWarmError  # noqa: E402
from serve_warm.stores import Store, list_keys, open_store  # noqa: E402

ASKS: Mapping[str, Callable[[Store], object]] = {
    "list": lambda store: list_keys(store, "statements/"),
    "read": lambda store: store.get("statements/a", max_bytes=100),
    "head": lambda store: store.head("statements/a"),
    "write": lambda store: store.create("statements/a", b"1"),
}


def run() -> Iterator[FaultRow]:
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, redirecting() as servers:
        places = credentials(servers.url, Path(folder))
        hub = {"HF_ENDPOINT": servers.url, "HF_HOME": folder, "HF_TOKEN": SECRET}
        places["the Hub"] = ("hf://owner/name", {**hub, "HF_HUB_DISABLE_XET": "1"})
        try:
            for name, (uri, environ) in places.items():
                os.environ.clear()
                os.environ.update({**_without_stores(before), **environ})
                yield _row(name, uri, servers)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _without_stores(environ: Mapping[str, str]) -> dict[str, str]:
    known = ("AWS_", "AZURE_", "GOOGLE_", "HF_")
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(known) and "PROXY" not in name.upper()
    }


def _row(name: str, uri: str, servers: Redirected) -> FaultRow:
    servers.seen.clear()
    servers.asked.clear()
    said = ""
    for ask in ASKS.values():
        try:
            ask(open_store(uri))
        except ServeWarmError as error:
            said = said or str(error)
    outcome = "leaked" if servers.leaked or SECRET in said else "hidden"
    return {
        "name": f"a redirect or link to another host: {name}",
        "kind": "secret",
        "tries": len(ASKS),
        "outcome": outcome if servers.asked else "not run",
        "said": said.replace(servers.url, "http://STORE").replace(servers.other, "http://OTHER"),
    }


def main() -> int:
    rows = list(run())
    sys.stdout.writelines(f"{row['outcome']}: {row['name']}: {row['said']}\n" for row in rows)
    return 1 if any(row["outcome"] != "hidden" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
