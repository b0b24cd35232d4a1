# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster with Serve that tests share, and the fixtures and helpers for it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from lanes import (  # noqa: F401 - pytest finds hooks in the conftest that imports them
    _compiler_runs,
    _note_compilers,
    light_if_unit,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
)
from s3_servers import _fault_proxy, azurite, ceph, fault_proxy, moto  # noqa: F401 - pytest finds fixtures here too

HANG_S = 400.0
"""Time limit of waits in tests, in seconds. A wait that reaches it fails the test."""

POLL_S = 0.05

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background processes with SIGINT ignored. The commands
    # under test would inherit this setting, but tests stop them with SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(what: str, holds: Callable[[], Any]) -> Any:
    """Return the first true value of `holds()`. After `HANG_S`, fail with `what` in the message."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        value = holds()
        if value:
            return value
        time.sleep(POLL_S)
    pytest.fail(f"{what}: did not happen within {HANG_S:.0f} s")


def _client() -> Any:
    """Return this process's client of Serve's controller."""
    from ray.serve.context import _get_global_client

    return _get_global_client()


@dataclass(frozen=True, kw_only=True)
class App:
    """One deployed application, ready or not."""

    name: str
    url: str
    """Address without a trailing slash."""

    @property
    def handle(self) -> Any:
        """Serve's handle to the ingress deployment."""
        from ray import serve

        return serve.get_app_handle(self.name)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method through the handle, as requests do, and return its result."""
        handle = self.handle.options(**options) if options else self.handle
        return getattr(handle, method).remote(*args).result(timeout_s=HANG_S)

    def post(self, path: str = "", json: Any = None) -> Any:
        """Send a request through Serve's HTTP proxy and return the response."""
        import requests

        return requests.post(self.url + path, json=json, timeout=HANG_S)

    def report(self) -> dict[str, Any]:
        """Return the replica's current report."""
        report: dict[str, Any] = self.call("warmup_report")
        return report

    def status(self) -> tuple[str, str]:
        """Return Serve's status of the application, and its messages."""
        # `serve.status()` takes 9 ms of CPU, so polling it would use a fifth of a core.
        details = _client().get_serve_details()["applications"].get(self.name)
        if details is None:
            return "NOT_STARTED", ""
        messages = [details["message"], *(d["message"] for d in details["deployments"].values())]
        return str(details["status"].value), "\n".join(messages)

    def ready(self) -> App:
        """Wait until the application is RUNNING. Fail as soon as that has become impossible."""

        def running() -> bool:
            status, message = self.status()
            assert status in {"NOT_STARTED", "DEPLOYING", "RUNNING"}, f"{status}: {message}"
            return status == "RUNNING"

        wait_until(f"{self.name} becomes RUNNING", running)
        return self

    def failed(self) -> str:
        """Wait until the application is DEPLOY_FAILED, and return Serve's messages about it."""

        def message() -> str:
            status, text = self.status()
            assert status in {"NOT_STARTED", "DEPLOYING", "DEPLOY_FAILED"}, f"{status}: {text}"
            return text if status == "DEPLOY_FAILED" else ""

        failure: str = wait_until(f"{self.name} fails", message)
        return failure


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A local cluster of one node: the addresses of its proxies, and its state folder."""

    url: str
    grpc: str
    """Host and port of the gRPC proxy, which serves scorer.proto."""
    state_dir: Path
    numbers: Iterator[int]

    def start(self, bound: Mapping[str, Any]) -> dict[str, App]:
        """Deploy applications under unique names, all at once, without waiting for them."""
        from ray import serve

        apps = {}
        for name in bound:
            unique = f"{name}-{next(self.numbers)}"
            apps[name] = App(name=unique, url=f"{self.url}/{unique}")
        serve.run_many(
            [
                serve.RunTarget(target, name=apps[name].name, route_prefix=f"/{apps[name].name}")
                for name, target in bound.items()
            ],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        return apps

    def configure(
        self,
        import_path: str,
        deployment: str,
        user_config: Any,
        *,
        name: str = "",
        num_replicas: int = 1,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> App:
        """Deploy an application from a Serve configuration, or update the application `name`.

        `args` go to its builder function. `options` are further options of the deployment.
        """
        from ray.serve.schema import ServeDeploySchema

        unique = name or f"configured-{next(self.numbers)}"
        application = {
            "name": unique,
            "route_prefix": f"/{unique}",
            "import_path": import_path,
            "args": dict(args or {}),
            "deployments": [
                {
                    "name": deployment,
                    "user_config": user_config,
                    "num_replicas": num_replicas,
                    **options,
                }
            ],
        }
        schema = ServeDeploySchema(applications=[application])
        _client().deploy_apps(schema)
        return App(name=unique, url=f"{self.url}/{unique}")

    def delete(self, apps: Mapping[str, App]) -> None:
        """Delete applications, without waiting for the end of their replicas."""
        _client().delete_apps([app.name for app in apps.values()], blocking=False)


APPLICATIONS = (
    "test_haproxy",
    "test_readiness",
    "test_readme_app",
    "test_recipes",
    "test_s3_app",
    "test_seat_jobs",
)
"""Files of `tests/integration` that one process runs while another one runs the rest of them."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns each test file to one process, and the tests of Ray to two.

    So a fixture with module scope runs once. Each of the two processes has a Ray cluster. More
    clusters at the same time would slow each other down, and one alone would run on long after all
    other tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        if path.parent.name != "integration":
            return str(path)
        return f"{path.parent} {path.stem in APPLICATIONS}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Return the scheduler that distributes tests to the processes of pytest-xdist."""
    return ByFile(config, log)


@pytest.fixture(scope="session")
def temporary_folders() -> Iterator[Path]:
    # A short path: Ray puts sockets below it, and the path of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="sw-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_temporary_folder(temporary_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate the files of a test (private caches, the node's blobs) from the next test."""
    # pytest's mktemp lists all earlier folders on each call, and there are thousands of tests.
    folder = tempfile.mkdtemp(dir=temporary_folders)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("TMPDIR", folder)


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Run a local cluster during the block."""
    import ray
    from ray import serve

    # A short path, because the path of a socket has at most 107 characters. Replicas put their
    # private caches here too, so that the last line of this fixture removes them.
    directory = Path(tempfile.mkdtemp(prefix="sw-"))
    with pytest.MonkeyPatch.context() as patch:
        # Every process of the cluster inherits these.
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # Ray lowers the priority of its workers, which would then wait for the other test process.
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("SERVE_WARM_STATE_DIR", str(directory / "state"))
        patch.setenv("TMPDIR", str(directory))
        # Any process in which torch reads these variables, such as this one, sets them to defaults.
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            patch.delenv(name, raising=False)
        tests = Path(__file__).parent
        for folder in (tests / "support", tests):
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=80 * 2**20,
            _temp_dir=str(directory / "ray"),
        )
        port, grpc_port = _free_port(), _free_port()
        servicers = ["scorer_pb2_grpc.add_ScorerServicer_to_server"]
        serve.start(
            http_options={"host": "127.0.0.1", "port": port},
            grpc_options={"port": grpc_port, "grpc_servicer_functions": servicers},
        )
        try:
            yield Cluster(
                url=f"http://127.0.0.1:{port}",
                grpc=f"127.0.0.1:{grpc_port}",
                state_dir=directory / "state",
                numbers=itertools.count(1),
            )
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]
            ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def on(cluster: Cluster) -> Any:
    """Return the shared cluster as builds take it."""
    from serve_warm.builder import cluster as builders

    return builders.Cluster(int(cluster.url.rpartition(":")[2]))


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    """Deploy one application and delete it after the test: `start(bound)` returns its `App`."""
    started: dict[str, App] = {}

    def start_one(bound: Any, name: str = "app") -> App:
        app = cluster.start({name: bound})[name]
        started[app.name] = app
        return app

    yield start_one
    cluster.delete(started)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
