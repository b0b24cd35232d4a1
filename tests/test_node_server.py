# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The probe and the server of a node, asked as a kubelet and Prometheus ask them."""

from __future__ import annotations

import _socket
import contextlib
import errno
import http.client
import http.server
import json
import os
import pty
import py_compile
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from conftest import wait_until
from processes import run_to_end
from reports import FULL
from serve_warm import metrics, node
from serve_warm._state_file import StateFile
from serve_warm.cli import main as command_line
from serve_warm.cli import serve_warm as group
from serve_warm.node import get
from serve_warm.node_server import server as node_server
from serve_warm.node_server.server import Server
from serve_warm.node_server.table import OUTCOMES
from serve_warm.report import EntryUse, Report, Stage
from state_files import directory_fixture  # noqa: F401 - a fixture

NO_CHECKS = ("--raylet", "none", "--proxy", "none")
NO_URL = "is neither a URL such as http://localhost:8000/-/healthz or http://[::1]:8000/-/healthz"


@pytest.fixture(name="replica")
def replica_fixture(directory: Path) -> Iterator[Callable[..., StateFile]]:
    """Write a report as a replica does, and keep its lock until the test ends."""
    files: dict[tuple[str, str], StateFile] = {}

    def write(
        name: str = "r1", stage: str = "READY", *, of: str = "Embedder", **facts: object
    ) -> StateFile:
        names = {"application": "app", "deployment": of, "replica": name}
        if (of, name) not in files:
            files[of, name] = StateFile(directory, **names)
        files[of, name].write({"stage": stage, "verdict": "full_hit", **facts})
        return files[of, name]

    yield write
    for file in files.values():
        file.close()


@pytest.fixture(name="alone", scope="module")
def alone_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file where no package is around it."""
    return Path(shutil.copy(node.__file__, tmp_path_factory.mktemp("alone") / "probe.py"))


@pytest.fixture(name="probe")
def probe_fixture(alone: Path, directory: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    command = [sys.executable, "-I", "-S", alone, "probe", "--state-dir", directory]
    return lambda *options: run_to_end([*command, *options])


class Health(http.server.ThreadingHTTPServer):
    """Stands for the raylet's agent or the proxy: answers `status` and counts."""

    daemon_threads = True

    def __init__(self) -> None:
        self.status = 200
        self.asked = 0
        self.when_asked: Callable[[], None] = lambda: None
        super().__init__(("127.0.0.1", 0), _Answer)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/health"


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Health

    def do_GET(self) -> None:
        self.server.asked += 1
        self.server.when_asked()
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(name="health")
def health_fixture() -> Iterator[Callable[[], Health]]:
    started: list[Health] = []

    def start() -> Health:
        started.append(Health())
        return started[-1]

    yield start
    for each in started:
        each.shutdown()
        each.server_close()


def server_command(directory: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "serve_warm.node_server", "--state-dir", str(directory)]
    return [*command, "--host", "127.0.0.1", *options]


class Node:
    """A server that is a process of its own."""

    def __init__(self, directory: Path, *options: str) -> None:
        command = server_command(directory, "--port", "0", *options)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        first = self.process.stderr.readline()
        self.port = int(re.search(r"answers on port (\d+)", first)[1])

    def get(self, path: str, verb: str = "GET") -> tuple[int, str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request(verb, path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def ready(self) -> bool:
        status, text = self.get("/readyz")
        assert status in {200, 503}
        assert (status == 200) == (text == "ok\n")
        return status == 200

    def metrics(self) -> dict[str, float]:
        """Return the value of each series."""
        status, text = self.get("/metrics")
        assert status == 200
        return series(text)


def wrapped(directory: Path, *options: str) -> Result:
    """Run `serve-warm probe` in this process."""
    return CliRunner().invoke(group, ["probe", "--state-dir", str(directory), *options])


def series(text: str) -> dict[str, float]:
    """Return the value of each series, by its name and labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture(name="serve")
def serve_fixture(directory: Path) -> Iterator[Callable[..., Node]]:
    started: list[Node] = []

    def start(*options: str) -> Node:
        started.append(Node(directory, *(options or NO_CHECKS)))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


# --- the probe -----------------------------------------------------------------------------
def test_a_probe_is_yes_when_all_is_well(probe, replica, health):
    """The probe prints nothing. Its exit code is the answer."""
    replica()
    raylet, proxy = health(), health()
    ended = probe("--raylet", raylet.url, "--proxy", proxy.url)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert (raylet.asked, proxy.asked) == (1, 1)


def test_a_person_at_a_terminal_gets_a_line(replica, directory, health):
    """Kubernetes gets none: it looks at the exit code only."""
    replica()
    raylet = health()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "serve_warm.cli", "probe", "--state-dir", str(directory)]
    ended = subprocess.run(
        [*command, "--raylet", raylet.url, "--proxy", "none"], stdout=theirs, check=False
    )
    os.close(theirs)
    assert (ended.returncode, os.read(ours, 1000)) == (0, b"ready: warm, raylet; replicas: 1\r\n")


def test_a_probe_says_each_reason_in_a_line(probe, replica, directory, health):
    """Whatever a replica wrote, a line feed or an escape included. Data has each reason, too."""
    replica("r1", "FAILED", error="no\nsuch \x1b[2Kmodel")
    replica("r2", "REPLAYING", inputs_done=2, inputs_expected=6)
    proxy = health()
    proxy.status = 503
    ended = probe("--raylet", "none", "--proxy", proxy.url)
    lines = ended.stdout.splitlines()
    (warm,) = json.loads(wrapped(directory, *NO_CHECKS, "--json").stdout)["checks"]
    assert warm["check"] == "warm"
    assert re.search(r"r1: FAILED: no such .*; app#Embedder r2: REPLAYING", warm["why"])
    assert ended.returncode == 1
    assert len(lines) == 3
    assert "r1: FAILED: no such \\x1b[2Kmodel" in lines[0]
    assert re.fullmatch(r"warm: app#Embedder r2: REPLAYING for \d+ s, 2/6 inputs", lines[1])
    assert lines[2] == f"proxy: {proxy.url} answered 503, not 200"


def test_verbose_shows_what_was_checked(probe, replica, health):
    """This also works if all is well, so that a reader sees what was checked."""
    replica("r1")
    replica("r2", "PENDING")
    ended = probe("--verbose", "--raylet", health().url, "--proxy", "none")
    assert ended.returncode == 0
    assert [line.strip() for line in ended.stdout.splitlines()[:2]] == ["[+] warm", "[+] raylet"]
    assert "app#Embedder r1: warm\n" in ended.stdout
    added = r"r2: PENDING for \d+ s, None/None inputs \(added to a warm node; not counted yet\)\n"
    assert re.search(added, ended.stdout)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--expect", "some"], "'some' is not valid: use 'all', 'allow-idle' or 'min=N'"),
        (["--expect", "min=0"], "'min=N', where N is at least 1"),
        (["--raylet", "localhost:52365"], NO_URL),
        (["--proxy", "https://127.0.0.1:8000/"], NO_URL),
        (["--proxy", "http://127.0.0.1/"], NO_URL),
        (["--proxy", "http://127.0.0.1:99999/"], NO_URL),
        (["--proxy", "http://::1:8000/"], NO_URL),
        (["--proxy", "http://[::1]/"], NO_URL),
        (["--proxy", "http://[::1:8000/"], NO_URL),
        (["--proxy", "http://h:1/ HTTP/1.1\r\nX: y"], NO_URL),
        (["--stale-s", "0"], "0.0 is not a positive number of seconds"),
        (["--stale-s", "nan"], "is not a positive number of seconds"),
        (["--stale-s", "soon"], "soon"),
    ],
)
def test_wrong_usage_is_two_and_never_no(probe, directory, options, said):
    """A mistake in a manifest differs from an unready node, in both forms."""
    ended = probe(*options)
    in_process = wrapped(directory, *options)
    assert (ended.returncode, in_process.exit_code) == (2, 2)
    assert said in ended.stderr
    assert said in in_process.output


def test_the_command_line_gives_the_same_answer(replica, directory, monkeypatch, capsys):
    """`serve-warm probe` finds the directory as replicas do, and ends as the file does."""
    monkeypatch.setenv("SERVE_WARM_STATE_DIR", str(directory))
    answers = []
    for stage in ("PROVING", "READY"):
        replica("r1", stage)
        monkeypatch.setattr(sys, "argv", ["serve-warm", "probe", *NO_CHECKS])
        with pytest.raises(SystemExit) as ended:
            command_line()
        answers.append((ended.value.code, capsys.readouterr().out))
    assert answers[0][0] == 1
    assert "r1: PROVING" in answers[0][1]
    assert answers[1] == (0, "")


def test_a_strict_probe_fails_for_flaws_of_ready_replicas(replica, directory):
    """Without `--strict`, a degraded replica and one with narrow inputs count as ready."""
    replica("r1", "READY", narrow=["ids[1], always 16"], degraded=["late: it missed its deadline"])
    plain, strict, data = (
        wrapped(directory, *NO_CHECKS, *more) for more in ([], ["--strict"], ["--strict", "--json"])
    )
    assert (plain.exit_code, strict.exit_code, data.exit_code) == (0, 1, 1)
    assert strict.output.splitlines() == [
        "app#Embedder r1: degraded: late: it missed its deadline",
        "app#Embedder r1: narrow: ids[1], always 16",
    ]
    assert json.loads(data.stdout)["flaws"] == strict.output.splitlines()


def test_the_page_shows_the_data_that_is_printed(directory, health):
    """The example in docs/reference/node.md is the output for such a node, apart from seconds."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "node.md").read_text()
    [shown] = re.findall(r"^\$ serve-warm probe --json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    raylet, proxy = health(), health()
    proxy.shutdown()
    proxy.server_close()
    who = {"application": "scorer", "deployment": "Scorer"}
    with (
        contextlib.closing(StateFile(directory, **who, replica="1ojoilvj")) as ready,
        contextlib.closing(StateFile(directory, **who, replica="cl5iax0z")) as starting,
    ):
        ready.write({"stage": "READY"})
        starting.write({"stage": "REPLAYING", "inputs_done": 1, "inputs_expected": 4})
        printed = wrapped(directory, "--raylet", raylet.url, "--proxy", proxy.url, "--json")

    printed_as_shown = printed.stdout.replace(proxy.url, node.PROXY)
    assert re.sub(r"for \d+ s", "for 4 s", printed_as_shown) == shown
    assert printed.exit_code == 1


def test_a_probe_of_a_poisoned_directory_is_no(probe, replica, directory):
    """States that others may have written do not make a node ready. The text has the command."""
    replica()
    directory.chmod(0o777)
    ended = probe(*NO_CHECKS)
    assert ended.returncode == 1
    assert f"chmod go-w {directory}" in ended.stdout


def test_a_probe_imports_next_to_nothing(alone, replica, directory, health):
    """Each of these modules takes longer to import than a whole probe."""
    replica("r1", metrics=metrics.as_data(FULL))
    options = ("--state-dir", directory, "--raylet", health().url, "--proxy", health().url)
    ended = run_to_end([sys.executable, "-I", "-S", "-X", "importtime", alone, "probe", *options])
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    slow = {"argparse", "collections", "contextlib", "enum", "json"}
    slow |= {"re", "socket", "threading", "typing", "urllib"}
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "fcntl" in imported
    assert imported.isdisjoint(slow)


def test_a_compiled_file_is_the_same_probe(alone, replica, directory, tmp_path):
    """It must run with the same Python. Compiling the file takes half of a probe's time.

    A missing directory means not ready, and is no failure, because each node starts this way.
    """
    compiled = py_compile.compile(str(alone), str(tmp_path / "node.pyc"))
    command = [sys.executable, "-I", "-S", compiled, "probe", "--state-dir", directory, *NO_CHECKS]
    before = run_to_end(command)
    replica()
    after = run_to_end(command)
    assert (before.returncode, after.returncode) == (1, 0)
    assert before.stdout.startswith("warm: no replica is on this node")
    assert (before.stdout.count("\n"), before.stderr) == (1, "")


def test_options_are_read_with_and_without_an_equals_sign():
    """The last value counts, and `--deployment` adds one."""
    line = (
        "--deployment a --deployment=b#c --state-dir /run/x --stale-s 7 --stale-s=9 "
        "--expect=-x --proxy=http://h:1/a=b --no-latch"
    )
    read = node.parse(line.split(" "))
    assert read == {
        "state_dir": "/run/x",
        "expect": "-x",
        "raylet": node.RAYLET,
        "proxy": "http://h:1/a=b",
        "stale_s": "9",
        "deployment": ("a", "b#c"),
        "no_latch": True,
        "require": "",
        "verbose": False,
    }


@pytest.mark.parametrize(
    "line",
    [
        *("", "serve", "prob", "probe --verb", "probe x", "probe --expect", "probe --expect -1"),
        *("probe --verbose=1", "probe -- x", "probe --port 1", "probe --deployment --verbose"),
        "--verbose probe",
    ],
)
def test_any_other_command_line_is_wrong_usage(line: str, capsys: pytest.CaptureFixture[str]):
    assert node.main(line.split()) == 2
    said = capsys.readouterr().err
    assert "\nerror: " in said
    for option in node.OPTIONS:
        assert f"  {option}" in said


def test_help_is_an_answer(capsys: pytest.CaptureFixture[str]):
    assert node.main(["probe", "--help"]) == 0
    assert capsys.readouterr().out == node.usage("node.py probe")


# --- the checks beside warmth --------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.0 200 success\n\n", ""),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "answered 503, not 200"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "answered 302, not 200"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "answered 2000, not 200"),
        (b"", "answered without an HTTP status"),
        (b"SSH-2.0-OpenSSH_9.2 200\r\n", "not 200"),
        (b"x" * 100_000, "answered without an HTTP status"),
        (None, "did not answer within 0.2 s"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_only_200_in_time_is_healthy(answer: bytes | None, said: str):
    """No redirect is followed, and nobody who is silent is waited for."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                if answer is None:
                    connection.recv(1 << 16)
                    connection.recv(1)
                else:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        limit_s = 0.2 if answer is None else 60.0
        reason = get(f"http://127.0.0.1:{listening.getsockname()[1]}/x", limit_s=limit_s)

    assert bool(reason) == bool(said)
    assert said in reason


def test_a_port_where_nobody_listens_is_not_healthy():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert "Connection refused" in get(f"http://127.0.0.1:{port}/x")


@pytest.mark.parametrize("host", ["a" * 64, "é" * 64, "..", "no-such-host.invalid"])
def test_a_host_that_is_none_is_not_healthy(probe, replica, host):
    """Whatever goes wrong in asking, it is a reason and never taken for health."""
    replica()
    ended = probe("--raylet", "none", "--proxy", f"http://{host}:1/")
    assert ended.returncode == 1
    assert ended.stdout.startswith("proxy: ")


@pytest.mark.slow
def test_dns_that_does_not_answer_is_not_waited_for(monkeypatch):
    """DNS has its own limits, far above a probe's. A late answer is ignored."""
    asked, answered, said = threading.Event(), threading.Event(), threading.Event()

    def resolve(*_: object) -> list[object]:
        asked.set()
        answered.wait()
        said.set()
        return []

    monkeypatch.setattr(_socket, "getaddrinfo", resolve)
    settings = node.Settings("", urls=(("raylet", "http://ray-head:1/x"),))

    found = node.asked(settings, limit_s=0.01)
    waited = not said.is_set()
    answered.set()

    assert asked.wait(60)
    assert waited
    assert found == {"raylet": "http://ray-head:1/x did not answer within 0.01 s"}
    assert said.wait(60)


# --- the server ----------------------------------------------------------------------------
def test_the_server_follows_the_truth(serve, replica):
    """The node is not ready before the replica, and not ready at the next request after its end."""
    server = serve()
    seen = [server.ready()]
    for stage in ("PENDING", "PULLING", "REPLAYING", "PROVING"):
        replica("r1", stage)
        seen.append(server.ready())
    file = replica("r1", "READY")
    ready = server.ready()
    file.close()
    assert seen == [False] * 5
    assert ready
    assert not server.ready()


def test_every_address_answers(serve, replica):
    server = serve()
    replica("r1", "REPLAYING", inputs_done=1, inputs_expected=2)
    assert server.get("/livez") == (200, "ok\n")
    assert server.get("/readyz")[0] == 503
    assert server.get("/readyz?verbose")[1].endswith("not ready\n")
    assert server.get("/readyz?verbose=1")[1].startswith("[-] warm\n")
    assert server.get("/readyz", "HEAD") == (503, "")
    assert server.get("/")[0] == 404
    assert server.get("/readyz/..")[0] == 404
    assert server.get("/livez", "POST")[0] == 501


def test_a_connection_is_kept_between_questions(serve, replica):
    """It ends if the client or the drain ends it, or if the client sends a body."""
    server = serve(*NO_CHECKS, "--drain-s", "600")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        statuses, sockets = [], set()

        def ask(verb: str = "GET", path: str = "/readyz") -> http.client.HTTPResponse:
            connection.request(verb, path)
            sockets.add(connection.sock)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
            return response

        for _ in range(3):
            ask()
        replica()
        ask()
        ask("HEAD")
        ask(path="/nowhere")
        kept = len(sockets)
        server.process.send_signal(signal.SIGTERM)
        closed = wait_until("it drains", lambda: ask().getheader("Connection") == "close")

    assert statuses[:6] == [503, 503, 503, 200, 200, 404]
    assert statuses[-1] == 503
    assert (kept, closed) == (1, True)


def lines_of(port: int, *pieces: bytes) -> list[bytes]:
    """Send pieces, one after the other, and return all that comes until the server hangs up."""
    said = b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Who is hung up on before all was sent is told so.
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
            while received := connection.recv(1 << 16):
                said += received
    return said.splitlines()


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"],
        [b"GET /livez HTTP/1.1\r\nCONNECTION:  Close\r\n\r\n"],
        [b"GET /livez HTTP/1.0\r\n\r\n"],
        [b"GET /livez HTTP/1.0\n\n"],
        [b"\r\nGET /livez HTTP/1.0\r\n\r\n"],
        [bytes([each]) for each in b"GET /livez HTTP/1.0\r\nHost: a\r\n\r\n"],
        [b"GET /livez HTTP/1.0\r\nX: " + b"x" * 10_000, b"\r\n\r\n"],
    ],
    ids=lambda pieces: repr(pieces[0][:60]),
)
def test_a_request_is_read_in_whatever_pieces_it_comes(serve, pieces):
    """Requests come as clients write them, and the connection ends where they expect it."""
    lines = lines_of(serve().port, *pieces)
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"Connection: close" in lines
    assert lines[-2:] == [b"", b"ok"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET /livez\r\n\r\n", b"400"),
        (b"GET /livez HTTP/2.0\r\n\r\n", b"400"),
        (b"GET /a b HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\n\n", b"400"),
        (b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, b"400"),
        (b"x" * 100_000, b"400"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"501"),
        (b"get /livez HTTP/1.1\r\n\r\n", b"501"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_what_is_no_request_of_ours_is_refused(serve, asked, status):
    """Nothing after it is taken for a request, and it takes no more memory than a request."""
    lines = lines_of(serve().port, asked)
    # What was sent and not read may take the answer with it.
    found = [line.split()[1] for line in lines if line.startswith(b"HTTP/")]
    assert found == [status] or (found == [] and len(asked) >= node_server.MAX_HEAD_BYTES)


@pytest.mark.parametrize(
    "said", ["Content-Length: 27", "content-length: 27", "Transfer-Encoding: chunked"]
)
def test_a_body_is_no_second_question(serve, said):
    """The body is not read, so the connection ends with the answer."""
    with socket.create_connection(("127.0.0.1", serve().port)) as connection:
        body = "GET /metrics HTTP/1.1\r\n\r\n"
        connection.sendall(f"GET /livez HTTP/1.1\r\n{said}\r\n\r\n{body}".encode())
        with connection.makefile("rb") as answer, contextlib.suppress(ConnectionResetError):
            lines = answer.readlines()
    assert [line for line in lines if line.startswith(b"HTTP/")] == [b"HTTP/1.1 200 OK\r\n"]
    assert b"Connection: close\r\n" in lines


@pytest.mark.slow
def test_an_unhealthy_raylet_or_proxy_is_not_ready(serve, replica, health):
    """Both failing checks are named. A healthy check passes again."""
    raylet, proxy = health(), health()
    replica()
    server = serve("--raylet", raylet.url, "--proxy", proxy.url)
    ready = server.ready()
    raylet.status = 500
    wait_until("the raylet is seen", lambda: not server.ready())
    proxy.status = 404
    wait_until("the proxy is seen", lambda: "proxy" in server.get("/readyz")[1])
    both = server.get("/readyz")[1].splitlines()
    raylet.status = proxy.status = 200
    wait_until("it is ready again", server.ready)
    assert ready
    assert [line.partition(":")[0] for line in both] == ["raylet", "proxy"]


@pytest.mark.slow
def test_questions_are_not_passed_on(serve, replica, health):
    """However often a node is asked, its raylet is asked about twice a second."""
    raylet = health()
    replica()
    server = serve("--raylet", raylet.url, "--proxy", "none")
    server.ready()
    before, questions = raylet.asked, 0
    while raylet.asked < before + 2:
        assert server.ready()
        questions += 1
    assert questions > 20


def test_adding_a_replica_does_not_take_a_node_out(serve, replica):
    """This also holds for a new server, and a gauge counts the excused replica."""
    replica("r1")
    replica("r2", "REPLAYING")
    latched = serve()
    strict = serve(*NO_CHECKS, "--no-latch")
    assert latched.ready()
    assert not strict.ready()
    assert latched.metrics()["serve_warm_node_excused"] == 1.0
    replica("r2")
    assert strict.ready()
    assert latched.metrics()["serve_warm_node_excused"] == 0.0


@pytest.mark.slow
def test_sigterm_is_not_ready_at_once_and_drains(serve, replica):
    """So no endpoint keeps the node. The server answers until a second signal."""
    replica()
    server = serve(*NO_CHECKS, "--drain-s", "600")
    ready = server.ready()
    server.process.send_signal(signal.SIGTERM)
    wait_until("it drains", lambda: not server.ready())
    text, live = server.get("/readyz")[1], server.get("/livez")[0]
    exported = server.metrics()["serve_warm_node_ready"]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
    assert ready
    assert text == "draining: this server is shutting down\n"
    assert (live, exported) == (200, 0.0)


@pytest.mark.slow
def test_drain_ends_by_itself(serve):
    server = serve(*NO_CHECKS, "--drain-s", "0.1")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0


def test_a_taken_port_is_said(serve, directory):
    port = str(serve().port)
    ended = run_to_end(server_command(directory, "--port", port))
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: port {port} of 127.0.0.1: ")


def test_a_server_begins_without_dns(directory, monkeypatch):
    """If a pod may not use DNS, or gets no answer, its probes work at once anyway."""

    def ask(*_: object) -> str:
        raise AssertionError("DNS was asked")

    for name in ("getfqdn", "gethostbyaddr"):
        monkeypatch.setattr(socket, name, ask)

    server = Server(node.Settings(str(directory), urls=()), host="", port=0)
    server._http.server_close()

    assert server.port > 0


@pytest.mark.slow
def test_changes_are_logged_once(serve, replica):
    log = serve().process.stderr
    assert "not ready: warm: no replica is on this node" in log.readline()
    file = replica()
    assert log.readline().endswith("serve_warm node: ready\n")
    file.close()
    assert "not ready: warm: no replica is on this node" in log.readline()


class Broken(Server):
    """A server that cannot tell whether its node is ready, for a reason that nobody foresaw."""

    error: Exception

    def readiness(self) -> node.Readiness:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("hush"), OSError(errno.EMFILE, "hush")])
def test_an_unexpected_error_is_answered_and_logged_once(directory, capsys, error):
    """The client gets 500, the log names the line of the error, and the server goes on."""
    server = Broken(node.Settings(str(directory), urls=()), host="127.0.0.1", port=0)
    server.error = error
    threading.Thread(target=server._http.serve_forever, args=(0.01,), daemon=True).start()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:

        def ask(path: str, verb: str = "GET") -> tuple[int, str]:
            connection.request(verb, path, headers={"X-Token": "hush"})
            response = connection.getresponse()
            return response.status, response.read().decode()

        answers = [ask("/readyz?hush"), ask("/readyz", "HEAD"), ask("/livez")]
    server._http.shutdown()
    server._http.server_close()

    said = "internal error: see the log of the node server\n"
    assert answers == [(500, said), (500, ""), (200, "ok\n")]
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(
        r"a request was answered with 500: (RuntimeError|OSError) in \S+\.py:\d+$", line
    )
    assert "hush" not in line


@contextlib.contextmanager
def one_client_at_a_time(directory: Path, *, request_s: float) -> Iterator[int]:
    """Run a server for one client, who has this time for a request; yields its port."""
    settings = node.Settings(str(directory), urls=())
    node_of = Server(settings, host="127.0.0.1", port=0)
    node_of._clients.max_connections, node_of._clients.request_s = 1, request_s
    server = node_of._http
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(name="listening")
def listening_fixture(directory: Path) -> Iterator[int]:
    """The port of a server for one client at a time, who has a tenth of a second."""
    with one_client_at_a_time(directory, request_s=0.1) as port:
        yield port


def test_a_slow_client_does_not_keep_its_place(listening):
    """A byte now and then is no request: it is hung up on, and the next client is answered."""
    with socket.create_connection(("127.0.0.1", listening)) as slow:

        def hung_up() -> bool:
            try:
                slow.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until("it is hung up on", hung_up)

        wait_until("the next is", lambda: get(f"http://127.0.0.1:{listening}/livez") == "")


def test_a_crowd_that_keeps_its_connections_shuts_nobody_out(directory: Path):
    """An idle client that was answered makes room for a new client."""
    with (
        one_client_at_a_time(directory, request_s=3600.0) as port,
        socket.create_connection(("127.0.0.1", port)) as kept,
    ):
        kept.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        assert kept.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert get(f"http://127.0.0.1:{port}/livez") == ""
        assert kept.recv(1) == b""


def address_of_this_machine() -> str:
    """Return an address of this machine; an unused address if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.4"
        return str(unsent.getsockname()[0])


class Crowd:
    """Connections that say nothing, or a byte now and then, and come back.

    They come from one address, or each from an address of its own if `address` is None.
    """

    def __init__(self, address: str | None, port: int, *, silent: int, dripping: int) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.address, self.port = address, port
        self._made = 0
        self.silent = [self._connected() for _ in range(silent)]
        self.dripping = [self._connected() for _ in range(dripping)]
        self.rounds = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _connected(self) -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        self._made += 1
        own = f"127.{1 + self._made % 100}.{self._made // 250 % 250}.{1 + self._made % 250}"
        made.bind((self.address or own, 0))
        made.connect_ex((self.address or "127.0.0.1", self.port))  # goes on by itself
        return made

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            self.rounds += 1
            for sockets, byte in ((self.silent, b""), (self.dripping, b"x")):
                for place, each in enumerate(sockets):
                    try:
                        each.send(byte)
                        if each.recv(1):
                            continue
                    except BlockingIOError:
                        continue
                    except OSError:
                        pass
                    each.close()
                    sockets[place] = self._connected()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        for each in (*self.silent, *self.dripping):
            each.close()


HERE = address_of_this_machine()


@pytest.mark.long
@pytest.mark.parametrize(
    ("crowd", "each", "host"),
    [
        (HERE, 300, "127.0.0.2"),
        ("127.0.0.2", 300, HERE),
        pytest.param(None, 1000, HERE, marks=pytest.mark.stress),
    ],
    ids=["from-an-interface", "host-on-an-interface", "from-many-addresses"],
)
def test_a_crowd_of_slow_clients_shuts_no_probe_out(serve, replica, crowd, each, host):
    """Probes come from this machine, its kubelet, or an address that no other client has."""
    other = "127.0.0.3"
    replica()
    # On all addresses, so the clients' addresses are mapped to IPv6.
    server = serve(*NO_CHECKS, "--host=", "--host-ip", host)
    slow = Crowd(crowd, server.port, silent=each, dripping=each)

    def answered(source: str) -> bool:
        connection = http.client.HTTPConnection(
            source, server.port, timeout=30.0, source_address=(source, 0)
        )
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        return False

    counts = Counter(dict.fromkeys(("127.0.0.1", host, other), 0))
    for number in range(20):
        wait_until("the crowd is back", lambda least=2 * number: slow.rounds > least)
        replica()  # a heartbeat: on a slow machine, the rounds take longer than one is valid
        for source in counts:
            counts[source] += answered(source)
    slow.end()

    assert counts == {"127.0.0.1": 20, host: 20, other: 20}


@pytest.fixture(name="pairs")
def pairs_fixture() -> Iterator[Callable[[], tuple[socket.socket, socket.socket]]]:
    with contextlib.ExitStack() as opened:

        def pair() -> tuple[socket.socket, socket.socket]:
            ours, theirs = socket.socketpair()
            theirs.settimeout(0.0)
            return opened.enter_context(ours), opened.enter_context(theirs)

        yield pair


class Peers:
    """Connections of a server's clients, by name."""

    def __init__(
        self,
        pair: Callable[[], tuple[socket.socket, socket.socket]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.clients = node_server._Clients({"127.0.0.1", "192.0.2.7"})
        self.ends: dict[str, tuple[socket.socket, socket.socket]] = {}
        self._pair = pair

    def come(self, address: str, count: int = 1) -> None:
        for _ in range(count):
            name = f"{address} {sum(name.startswith(f'{address} ') for name in self.ends)}"
            self.ends[name] = self._pair()
            self.now_s += 0.001
            self.clients.admit(self.ends[name][0], address)

    def answer(self, name: str) -> None:
        self.clients.renew(self.ends[name][0])

    def gone(self) -> list[str]:
        found = []
        for name, (_, theirs) in self.ends.items():
            with contextlib.suppress(BlockingIOError):
                theirs.recv(1)
                found.append(name)
        return found


@pytest.fixture(name="peers")
def peers_fixture(pairs, monkeypatch: pytest.MonkeyPatch) -> Peers:
    return Peers(pairs, monkeypatch)


def test_an_address_has_so_many_connections(peers):
    """Its oldest one makes room for its newest, and no other address pays."""
    peers.come("192.0.2.1")
    peers.come("192.0.2.2", node_server.PEER_CONNECTIONS)
    assert peers.gone() == []
    peers.come("192.0.2.2")
    peers.come("::ffff:192.0.2.2")
    assert peers.gone() == ["192.0.2.2 0", "192.0.2.2 1"]


def test_strangers_do_not_get_the_places_of_probes(peers):
    """However many addresses they have; probes get them, and then those of strangers."""
    free = node_server.MAX_CONNECTIONS - node_server.KEPT_CONNECTIONS
    for number in range(free):
        peers.come(f"198.51.100.{number}")
    assert peers.gone() == []
    peers.come("203.0.113.1")
    assert peers.gone() == ["198.51.100.0 0"]
    for trusted in ("127.0.0.1", "192.0.2.7"):
        peers.come(trusted, node_server.PEER_CONNECTIONS)
    assert peers.gone() == ["198.51.100.0 0"]


@pytest.mark.parametrize(
    ("waited_s", "oldest"),
    [(node_server.SLOW_S, "192.0.2.1 1"), (node_server.SLOW_S / 2, "192.0.2.1 0")],
    ids=["all-that-ask-are-slow", "none-is-slow"],
)
def test_the_oldest_slow_client_goes_first(peers, waited_s, oldest):
    """Without a slow client, the longest idle client goes. A new request is not cut off."""
    peers.come("192.0.2.1")
    peers.answer("192.0.2.1 0")
    peers.come("192.0.2.1", node_server.PEER_CONNECTIONS - 1)
    peers.now_s += waited_s
    peers.come("192.0.2.1")
    assert peers.gone() == [oldest]


def test_a_stranger_gets_no_thread_while_all_are_busy(peers, pairs, monkeypatch):
    """Addresses with reserved connections still get one."""
    monkeypatch.setattr(node_server, "MAX_THREADS", 2)
    addresses = ("198.51.100.1", "198.51.100.2", "198.51.100.3", "127.0.0.1")
    admitted = [peers.clients.admit(pairs()[0], address) for address in addresses]
    assert admitted == [True, True, False, True]


@pytest.mark.parametrize("said", ["nowhere", "10.0.0.1/8", "10.0.0.1,x"])
def test_a_host_ip_that_is_none_is_wrong_usage(directory, said):
    """The error comes at once, not later under load."""
    ended = run_to_end(server_command(directory, "--host-ip", said))
    assert ended.returncode == 2
    assert "is not an IP address; use, for example, the value of status.hostIP" in ended.stderr


# --- metrics -------------------------------------------------------------------------------

WHO = 'application="app",deployment="Embedder",replica="r1"'


def test_counters_are_zero_before_there_is_work(serve, replica):
    """A counter that is born at 1 has no increase: all are there at 0 before they move."""
    known = (EntryUse(callable="app.Net", call="(t0)", level=2),)  # each callable has its counters
    replica("r1", "PENDING", metrics=metrics.as_data(Report(stage=Stage.PENDING, entries=known)))
    found = serve(*NO_CHECKS, "--deployment", "other#Named").metrics()
    counters = {name: value for name, value in found.items() if "_total" in name}
    assert set(counters.values()) == {0.0}
    for app, of in (("app", "Embedder"), ("other", "Named")):
        who = f'application="{app}",deployment="{of}"'
        for outcome in OUTCOMES:
            assert f'serve_warm_starts_total{{{who},outcome="{outcome}"}}' in counters
    assert {f"{m.name}_total" for m in metrics.METRICS if m.kind == "counter"} == {
        name.partition("{")[0] for name in counters if 'replica="r1"' in name
    }


def test_starts_are_counted_once_each(serve, replica):
    """Starts are counted by outcome. Starts that ended before the server began do not count."""
    replica("before", "READY")
    server = serve()
    for name, stage, verdict in (
        ("r1", "READY", "full_hit"),
        ("r2", "READY", "miss"),
        ("r3", "FAILED", "miss"),
        ("r4", "REPLAYING", "full_hit"),
    ):
        replica(name, stage, verdict=verdict)
    for _ in range(2):
        found = server.metrics()
        of = 'serve_warm_starts_total{application="app",deployment="Embedder"'
        counts = {outcome: found[f'{of},outcome="{outcome}"}}'] for outcome in OUTCOMES}
        moved = {outcome: count for outcome, count in counts.items() if count}
        assert moved == {"full_hit": 1.0, "miss": 1.0, "failed": 1.0}


def test_names_are_escaped(serve, replica):
    """Whatever an application is called, the exposition is one."""
    replica('r"1\\\n\ud800', metrics=metrics.as_data(FULL))
    found = serve().metrics()
    assert any('replica="r"1\\\n?"' in name for name in found)


@pytest.mark.slow
def test_a_poisoned_directory_is_a_failed_check(serve, replica, directory):
    """Figures of replicas stay as they were last seen, a gauge says so, and nobody is buried."""
    server = serve()
    replica(metrics=metrics.as_data(FULL))
    dying = replica("r2", metrics=metrics.as_data(FULL))
    before = server.metrics()
    directory.chmod(0o777)
    dying.close()
    during = server.metrics()
    text = server.get("/readyz")[1]
    directory.chmod(0o700)
    after = server.metrics()

    def of(found: dict[str, float]) -> list[float]:
        names = ("node_states_readable", 'node_check{check="warm"}', "node_ready")
        alive = (f"replica_alive{{{WHO}}}", f"replica_alive{{{WHO.replace('r1', 'r2')}}}")
        return [found[f"serve_warm_{name}"] for name in (*names, *alive)]

    assert of(before) == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert of(during) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert during[f"serve_warm_to_proof_seconds{{{WHO}}}"] == 3.5
    assert "is not a private directory" in text
    assert of(after) == [1.0, 1.0, 1.0, 1.0, 0.0]
