# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus on loopback, over a directory and targets of a test's own."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING

from components import require
from conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

INSTALL = "apt-get install prometheus (.ci/install-components)"

Labels = dict[str, str]


class Prometheus:
    """A server that runs, and the answers to questions."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ready(self) -> bool:
        """Whether it answers questions."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready") as response:
                return response.status == 200
        except OSError:
            return False

    def described(self) -> dict[str, tuple[str, str]]:
        """Return type and unit of each metric that a target describes, by the name it gives it."""
        with urllib.request.urlopen(f"{self._url}/api/v1/targets/metadata") as response:
            rows = json.load(response)["data"]
        return {row["metric"]: (row["type"], row["unit"]) for row in rows}

    def ask(self, expression: str, at_s: float | None = None) -> list[tuple[Labels, float]]:
        """Return labels, without the name, and value of each series that an expression has."""
        form = {"query": expression} | ({} if at_s is None else {"time": str(at_s)})
        data = urllib.parse.urlencode(form).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/query", data) as response:
                answer = json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        assert answer["resultType"] == "vector", expression
        return [
            ({k: v for k, v in each["metric"].items() if k != "__name__"}, float(each["value"][1]))
            for each in answer["result"]
        ]


@contextlib.contextmanager
def prometheus(
    directory: Path, *, scrapes: Sequence[dict[str, object]] = (), rule_files: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """Run a server whose data is in `directory/data`, which may be there already."""
    program = require("prometheus", INSTALL)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": list(scrapes),
        "rule_files": [str(file) for file in rule_files],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # which is YAML too
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [program, f"--config.file={directory / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    # A recorded day is older than what is kept by default.
    command += ["--storage.tsdb.retention.time=100y", "--log.level=warn"]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            running = Prometheus(f"http://{address}")

            def answers() -> bool:
                assert server.poll() is None, (directory / "log").read_text()
                return running.ready()

            wait_until("Prometheus is ready", answers)
            yield running
        finally:
            server.kill()
            server.wait()
