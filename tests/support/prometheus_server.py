# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus on loopback, with the data directory and the targets of a test."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from components import require
from conftest import wait_until

INSTALL = "apt-get install prometheus (.ci/install-components)"

Labels = dict[str, str]


class Prometheus:
    """A running server, with methods that query it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ready(self) -> bool:
        """Return whether the server answers queries."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready") as response:
                return response.status == 200
        except OSError:
            return False

    def described(self) -> dict[str, tuple[str, str]]:
        """Return the type and unit of each metric that a target describes, by metric name."""
        with urllib.request.urlopen(f"{self._url}/api/v1/targets/metadata") as response:
            rows = json.load(response)["data"]
        return {row["metric"]: (row["type"], row["unit"]) for row in rows}

    def ask(self, expression: str, at_s: float | None = None) -> list[tuple[Labels, float]]:
        """Return the labels (without the name) and the value of each series of an expression."""
        form = {"query": expression} | ({} if at_s is None else {"time": str(at_s)})
        answer = self._ask("query", form)
        assert answer["resultType"] == "vector", expression
        return [(_labels(each), float(each["value"][1])) for each in answer["result"]]

    def ask_range(
        self, expression: str, begin_s: float, end_s: float, *, step_s: float
    ) -> list[tuple[Labels, list[tuple[float, float]]]]:
        """Return the labels and the points (seconds, value) of each series in a time range."""
        form = {"query": expression, "start": str(begin_s), "end": str(end_s), "step": str(step_s)}
        return [
            (_labels(each), [(float(at), float(value)) for at, value in each["values"]])
            for each in self._ask("query_range", form)["result"]
        ]

    def _ask(self, what: str, form: dict[str, str]) -> dict[str, Any]:
        data = urllib.parse.urlencode(form).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{what}", data) as response:
                answer: dict[str, Any] = json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{form['query']}: {error.read().decode()}") from None
        return answer


def _labels(series: dict[str, Any]) -> Labels:
    return {name: value for name, value in series["metric"].items() if name != "__name__"}


@contextlib.contextmanager
def prometheus(
    directory: Path, *, scrapes: Sequence[dict[str, object]] = (), rule_files: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """Run a server whose data is in `directory/data`, which may already exist."""
    program = require("prometheus", INSTALL)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": list(scrapes),
        "rule_files": [str(file) for file in rule_files],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is valid YAML
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [program, f"--config.file={directory / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    # By default, Prometheus would delete a recorded day because of its age.
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
