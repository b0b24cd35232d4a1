# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""`make demo`: runs the first console session of the README, and times it.

    python -m deployments.demo          a folder of its own is the store
    python -m deployments.demo --s3     a local S3 server is the store, which the demo starts
    python -m deployments.demo --store s3://bucket/prefix     any other store

The session serves an application that names no serve_warm: first cold, so that requests wait for
the compiler, and then from an artifact. Everything runs in a folder of its own, on a Ray cluster of
its own. The exit code is 1 if an output is not the README's, if an answer differs between the two
starts, or if the second start is not proven. The times go to `build/demo.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import requests

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path("build/demo.json")
LIMIT_S = 900.0
"""Maximum seconds until a replica is ready, and for each command."""

DIFFERS = re.compile(r"\d+\.\d+|#\w+ [0-9a-z]{8}\b|for \d+ s.*")
"""Parts of an output that differ from run to run: floats, names of replicas and ages."""


def main() -> int:
    """Run the demo, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", help="the store to publish to")
    where.add_argument("--s3", action="store_true", help="start an S3 server and publish to it")
    options = parser.parse_args()
    if shutil.which("curl") is None:
        sys.exit("error: the README's session needs curl: apt-get install curl")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8000)) == 0:
            sys.exit("error: port 8000 is in use: stop the program that listens there")
    with tempfile.TemporaryDirectory(prefix="sw-demo-") as folder:
        if not options.s3:
            return Session(Path(folder), options.store).run()
        with s3_server() as store:
            return Session(Path(folder), store).run()


def commands_of(readme: str) -> list[tuple[str, str]]:
    """Return the commands of the first console session, with the output that the README shows."""
    block = readme.partition("```console\n")[2].partition("```")[0]
    found = re.findall(r"^\$ (.*?)(?: +#.*)?\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    return [(command, output) for command, output in found if not command.startswith("pip ")]


class Session:
    """One run of the README's commands, in an empty folder."""

    def __init__(self, folder: Path, store: str | None) -> None:
        self._folder, self._store = folder, store
        self._app: subprocess.Popen[bytes] | None = None
        self._answers: list[dict[str, str]] = []
        """The answers of each start, by request."""
        self._ready: list[float] = []
        self._requests: list[list[float]] = []
        self._wrong: list[str] = []
        bin_folder = Path(sys.executable).parent
        self._environ = {
            **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
            "PATH": os.pathsep.join((str(bin_folder), os.environ["PATH"])),
            "RAY_TMPDIR": str(folder / "ray"),
            "XDG_DATA_HOME": str(folder / "data"),
            "SERVE_WARM_STATE_DIR": str(folder / "state"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        }

    def run(self) -> int:
        """Run all commands, print what they print, and return the exit code."""
        began = time.monotonic()
        where = self._folder
        try:
            for command, expected in commands_of((ROOT / "README.md").read_text()):
                print(f"$ {command}", flush=True)
                words = shlex.split(command)
                if words[0] == "cd":
                    where = self._folder / "app"
                    shutil.copytree(ROOT / words[1], where)
                elif words[:2] == ["serve-warm", "run"]:
                    self._start(words, where)
                elif words[0] == "curl":
                    self._ask(command, words, expected, where)
                else:
                    self._do(command, words, expected, where)
        finally:
            self._stop()
        self._compare(time.monotonic() - began)
        return 1 if self._wrong else 0

    def _start(self, words: list[str], where: Path) -> None:
        self._stop()
        if self._answers:
            # In the first start, users wait for the compiler. Here, torch's own cache is empty too.
            shutil.rmtree(self._folder / "torch", ignore_errors=True)
        self._answers.append({})
        self._requests.append([])
        store = [f"--artifact={self._store}"] if self._store else []
        began = time.monotonic()
        log = self._folder / "serve.log"
        with log.open("wb") as output:
            self._app = subprocess.Popen(
                [*words, *store], cwd=where, env=self._environ, stdout=output, stderr=output
            )
        while b"is ready at" not in log.read_bytes() or not _is_routed():
            if self._app.poll() is not None or time.monotonic() - began > LIMIT_S:
                sys.exit(f"error: the application did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)
        self._ready.append(time.monotonic() - began)
        print(f"    ready after {self._ready[-1]:.1f} s, on a new Ray cluster", flush=True)

    def _ask(self, command: str, words: list[str], expected: str, where: Path) -> None:
        began = time.monotonic()
        answer = self._output(words, where)
        took = time.monotonic() - began
        self._requests[-1].append(took)
        self._answers[-1][command] = answer
        print(f"{answer}\n    answered after {took:.3f} s", flush=True)
        if not _is_close(answer, expected):
            self._wrong.append(f"{command} answered {answer}, but the README shows {expected}")

    def _do(self, command: str, words: list[str], expected: str, where: Path) -> None:
        if words[:2] == ["serve-warm", "build"] and self._store:
            words = [*words, f"--store={self._store}"]
        began = time.monotonic()
        output = self._output(words, where)
        print(f"{output}\n    took {time.monotonic() - began:.1f} s", flush=True)
        self._check(command, output, expected)

    def _output(self, words: list[str], where: Path) -> str:
        silent = ["--silent", "--show-error"] if words[0] == "curl" else []
        done = subprocess.run(
            [words[0], *silent, *words[1:]],
            cwd=where,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
        output = done.stdout.decode().strip()
        if done.returncode:
            self._wrong.append(f"{shlex.join(words)} ended with exit code {done.returncode}")
        return output

    def _check(self, command: str, output: str, expected: str) -> None:
        """Note an output that lacks a line of the README's, but for what differs in each run."""
        found = {DIFFERS.sub("", line).strip() for line in output.splitlines()}
        for line in expected.splitlines():
            if not any(each.startswith(DIFFERS.sub("", line).strip()) for each in found):
                self._wrong.append(f"{command} did not print what the README shows: {line}")

    def _stop(self) -> None:
        if self._app is not None:
            self._app.send_signal(signal.SIGINT)
            try:
                self._app.wait(60)
            except subprocess.TimeoutExpired:
                self._app.kill()
            self._app = None

    def _compare(self, took: float) -> None:
        """Print and write the times of both starts, and note what is wrong with the second."""
        cold, warm = self._answers
        shared = cold.keys() & warm.keys()
        equal = [each for each in shared if _is_close(cold[each], warm[each])]
        self._wrong += [f"{each}: {cold[each]}, then {warm[each]}" for each in shared - {*equal}]
        for name, number in (("cold", 0), ("warm", 1)):
            times = ", ".join(f"{each:.3f} s" for each in self._requests[number])
            print(f"{name}: ready after {self._ready[number]:.1f} s; first requests: {times}")
        print(f"equal answers in both starts: {len(equal)} of {len(shared)}; in all {took:.0f} s")
        result = {
            "seconds": round(took, 1),
            "ready_s": [round(each, 2) for each in self._ready],
            "first_requests_s": [[round(x, 4) for x in each] for each in self._requests],
            "wrong": self._wrong,
        }
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
        for each in self._wrong:
            print(f"error: {each}", file=sys.stderr)


def _is_routed() -> bool:
    """Return whether Serve's proxy knows the application, which may be after Serve's own line."""
    with contextlib.suppress(requests.RequestException, ValueError):
        return "/" in requests.get("http://127.0.0.1:8000/-/routes", timeout=5.0).json()
    return False


def _is_close(answer: str, other: str) -> bool:
    """Return whether two answers have the same numbers, but for rounding on another CPU."""
    try:
        ours, theirs = json.loads(answer), json.loads(other)
    except ValueError:  # an error page
        return False
    return len(ours) == len(theirs) and all(
        abs(a - b) <= 1e-4 * abs(a) for a, b in zip(ours, theirs, strict=True)
    )


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


if __name__ == "__main__":
    sys.exit(main())
