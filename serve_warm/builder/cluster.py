# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster on which applications are started, and waited for."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from serve_warm import _private_folders, node
from serve_warm.builder.app import App
from serve_warm.errors import BuildFailed, ConfigError

if TYPE_CHECKING:
    from serve_warm.replica.pack import PackedReplica

logger = logging.getLogger(__name__)

POLL_S = 0.05
"""How often a start is looked at while it is waited for."""


ASK_S = 0.2
"""How often it is told what a replica does while it is waited for its answer."""

REPORT_LIMIT_S = 30.0
"""Wall seconds for the replicas of a deployment to tell their reports."""

START_LIMIT_S = 1800.0
"""Wall seconds for one replica to become ready; the replica's own deadline comes first."""


Progress = Callable[[str], None]
"""Told, in a few words, where a start is; called many times a second with the same words."""

Look = Callable[[Sequence[Mapping[str, Any]]], None]
"""Called with the states of a start's replicas as they change; what it raises ends the start."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A replica that is ready, and how long that took."""

    url: str
    """Base URL of the application, without a slash at its end."""
    ready_s: float
    """Creation of the replica's actor → RUNNING, as Serve reports it."""
    handle: Any
    """Serve's handle to the deployment."""
    state_dir: Path
    replicas: int = 1

    def report(self) -> dict[str, Any]:
        """Return the replica's report as of now; of a gang that of its first rank."""
        return self.ask("warmup_report", timeout_s=60)[0]

    def pack(self, *, timeout_s: float, progress: Progress = lambda _: None) -> list[PackedReplica]:
        """Return what each replica packs, by their ranks; once."""

        def tell() -> None:
            doing = [state.get("doing") for state in node.read_states(self.state_dir)]
            progress(next((text for text in doing if text), "asking the replica"))

        packed = self.ask("warmup_artifact", timeout_s=timeout_s, meanwhile=tell)
        return cast("list[PackedReplica]", packed)

    def ask(
        self, method: str, *, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> list[dict[str, Any]]:
        """Return what each replica answers to a method of the mixin's, by their ranks.

        All of them work on it at the same time: what one does may wait for the others.
        """
        from ray.exceptions import RayTaskError

        end = time.monotonic() + timeout_s
        alone = self.replicas == 1
        asked = getattr(self.handle, method).remote() if alone else self.handle.broadcast(method)
        while True:
            meanwhile()
            try:
                if alone:
                    return [asked.result(timeout_s=ASK_S)]
                return sorted(asked.results(timeout_s=ASK_S), key=_rank)
            except TimeoutError as error:
                # Of this wait, and not of what the replica does.
                if isinstance(error, RayTaskError) or time.monotonic() > end:
                    raise


def _rank(answer: Mapping[str, Any]) -> int:
    """Return the rank of the replica that gave a report, or its parts: `2 of 4` is 2."""
    rank: str = ((answer["fingerprint"] or {}).get("app") or {}).get("rank", "0")
    return int(rank.partition(" ")[0])


class ReplicaDied(BuildFailed):
    """A replica ended while it started, without a word of its own: it was killed, for example."""


class Starting:
    """An application that was deployed, and may not be ready yet."""

    def __init__(self, app: App, name: str, *, port: int, state_dir: Path, look: Look) -> None:
        self._app = app
        self._name = name
        self._port = port
        self._state_dir = state_dir
        self._look = look
        self._end = time.monotonic() + START_LIMIT_S
        self.said = "deploying"
        """Where the start is, in a few words."""
        self.is_placed = False
        """Whether each replica of the application has its resources."""

    def poll(self) -> Start | None:
        """Return the start if it is ready by now; None if it is still under way.

        Raises:
            BuildFailed: the replica failed to start; the text is its own.
            ReplicaDied: it left no text.
        """
        deployment = self._app.deployment
        details = _client().get_serve_details()["applications"].get(self._name, {})
        status = details.get("status")
        replicas = (details.get("deployments") or {}).get(deployment, {}).get("replicas")
        if status == "RUNNING" and replicas:
            return self._ready(float(replicas[0]["start_time_s"]))
        states = [s for s in node.read_states(self._state_dir) if s["deployment"] == deployment]
        self._look(states)
        failed = next((s for s in states if s["stage"] == "FAILED"), None)
        if failed is not None:
            raise BuildFailed(f"{deployment} did not become ready: {failed['error']}")
        if status == "DEPLOY_FAILED":
            # A replica that dies in its constructor writes no state: Serve has its traceback.
            raise ReplicaDied(f"{deployment} did not become ready: {_message(details, deployment)}")
        if time.monotonic() > self._end:
            raise BuildFailed(f"{deployment} was not ready within {START_LIMIT_S:.0f} s")
        self.said = _describe(states, replicas)
        self.is_placed = self.is_placed or _are_placed(details)
        return None

    def _ready(self, created_unix: float) -> Start:
        from ray import serve

        return Start(
            url=f"http://127.0.0.1:{self._port}/{self._name}",
            ready_s=time.time() - created_unix,
            handle=serve.get_deployment_handle(self._app.deployment, app_name=self._name),
            replicas=self._app.replicas,
            state_dir=self._state_dir,
        )


def _are_placed(details: Mapping[str, Any]) -> bool:
    """Return whether Serve has found a node for every replica of an application."""
    deployments = (details.get("deployments") or {}).values()
    return bool(deployments) and all(
        len(each["replicas"]) == each["target_num_replicas"]
        and all(replica.get("node_id") for replica in each["replicas"])
        for each in deployments
    )


class Cluster:
    """A Ray cluster with Serve on it, on which applications are started."""

    def __init__(
        self,
        port: int,
        *,
        place: Literal["here", "address"] = "here",
        working_dir: str | None = None,
    ) -> None:
        self.port = port
        self.working_dir = working_dir
        """Where Ray has the code that replicas work in; None where the nodes have it already."""
        self.place = place
        """Whether it runs on this machine alone, or was found at an address."""

    @contextlib.contextmanager
    def deployed(self, app: App, settings: Mapping[str, Any]) -> Iterator[str]:
        """Deploy `app` under a name and route of its own, yield the name, and delete it afterwards.

        Nothing else that runs on the cluster is touched, and nothing is waited for.
        """
        name = f"serve_warm-{secrets.token_hex(4)}"
        client = _client()
        client.deploy_applications(
            [app.built(name, settings, working_dir=self.working_dir)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        try:
            yield name
        finally:
            client.delete_apps([name], blocking=True)

    @contextlib.contextmanager
    def starting(
        self, app: App, settings: Mapping[str, Any], *, look: Look = lambda _: None
    ) -> Iterator[Starting]:
        """Start `app` with one replica, yield the start at once, and delete it afterwards."""
        with _private_folders.temporary_folder() as scratch:
            state_dir = scratch / "state"
            with self.deployed(app, {"state_dir": str(state_dir), **settings}) as name:
                yield Starting(app, name, port=self.port, state_dir=state_dir, look=look)

    @contextlib.contextmanager
    def running(
        self,
        app: App,
        settings: Mapping[str, Any],
        *,
        progress: Progress = lambda _: None,
        look: Look = lambda _: None,
    ) -> Iterator[Start]:
        """Start `app` with one replica, yield it when it is ready, and delete it afterwards.

        Raises:
            BuildFailed: the replica failed to start; the text is its own.
        """
        with self.starting(app, settings, look=look) as starting:
            while (start := starting.poll()) is None:
                progress(starting.said)
                time.sleep(POLL_S)
            yield start

    def has_room(self, resources: Mapping[str, float]) -> bool:
        """Return whether the nodes together have this much free, by Ray's count.

        That is late by a second or so.
        """
        import ray

        free = cast("Any", ray).available_resources()
        return all(free.get(name, 0.0) >= count for name, count in resources.items())


def _message(details: Mapping[str, Any], deployment: str) -> str:
    own = ((details.get("deployments") or {}).get(deployment) or {}).get("message")
    return str(own or details.get("message") or "Serve gives no reason").strip()


def _describe(states: list[dict[str, Any]], replicas: Any) -> str:
    if not states:
        return "importing and loading weights" if replicas else "deploying"
    state = states[-1]
    text = str(state["stage"]).lower()
    if state["inputs_expected"]:
        done = f"{state['inputs_done']}/{state['inputs_expected']}"
        text += f" pass {max(1, state['passes'])}, {done} inputs"
    return text


@contextlib.contextmanager
def open_cluster(
    *,
    address: str | None = None,
    num_cpus: float = 0.0,
    working_dir: Path | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Iterator[Cluster]:
    """Yield a cluster: the one at `address`, or a local one that ends with the block.

    Until then SIGTERM ends the block as an exception does, with exit code 143.

    Args:
        address: what `ray.init` takes, for example `auto`.
        num_cpus: logical CPUs that a local cluster must offer; the machine's if more.
        working_dir: folder that Ray copies to the nodes at `address`, for replicas to work in.
        progress: is told that Ray starts, once SIGTERM is taken care of.

    Raises:
        ConfigError: there is no cluster at `address`, or Ray cannot start one here.
    """
    with _sigterm_as_exit() as take_over:
        take_over()
        progress("starting Ray")
        import ray
        from ray import serve

        port = _free_port()
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        copied = _connect(address, num_cpus, working_dir)
        take_over()  # from Ray, whose own prints a C++ stack
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            yield Cluster(
                _port_of_serve(port),
                place="here" if address is None else "address",
                working_dir=copied,
            )
        finally:
            # A local cluster ends with this; Serve on somebody's cluster is left as it was found.
            ray.shutdown()


def _connect(address: str | None, num_cpus: float, working_dir: Path | None) -> str | None:
    """Connect to a cluster, or start a local one, and return where Ray has put `working_dir`."""
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if working_dir is not None:
        options["runtime_env"] = {"working_dir": str(working_dir)}
    try:
        if address is not None:
            ray.init(address=address, **options)
        else:
            # num_cpus is bookkeeping for Ray: a replica gets its threads from its own num_cpus.
            # "local", because RAY_ADDRESS may be set, as it is inside a Ray job.
            cpus = max(int(num_cpus + 0.999), os.cpu_count() or 1)
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at {address or 'this machine'}: {error}",
            hint="check --address, or leave it out for a local cluster",
        ) from error
    except OSError as error:
        # Seen in 2.60: a socket's path in the temporary folder is too long, or the disk is full.
        raise ConfigError(
            f"Ray does not start on this machine: {error}",
            hint="set TMPDIR to a short path with room, for example /tmp",
        ) from error
    copied = ray.get_runtime_context().runtime_env.get("working_dir")
    return None if copied is None else str(copied)


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[Callable[[], None]]:
    """Yield a function that makes SIGTERM an exception, and undo that at the end.

    `ray.init` installs handlers of its own (seen in 2.60): one that exits with 15, and one that
    prints a C++ stack. So the function is called again after it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = signal.getsignal(signal.SIGTERM)

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one does not wait
        raise SystemExit(128 + signal.SIGTERM)

    def take_over() -> None:
        signal.signal(signal.SIGTERM, end)

    try:
        yield take_over
    except SystemExit as ended:
        if ended.code != signal.SIGTERM:
            raise
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def ask_replicas(address: str) -> list[dict[str, Any]]:
    """Return the report of each running replica that has the mixin, on the cluster at `address`.

    Raises:
        ConfigError: there is no cluster.
    """
    import ray
    from ray import serve

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at {address}: {error}", hint="check --address"
        ) from error
    try:
        return [
            report
            for name, application in serve.status().applications.items()
            for deployment in application.deployments
            for report in _ask_all(serve.get_deployment_handle(deployment, app_name=name))
        ]
    finally:
        ray.shutdown()


def _ask_all(handle: Any) -> list[dict[str, Any]]:
    """Return the reports of all replicas of a deployment; of one without the mixin none."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        if hasattr(handle, "broadcast"):  # not in 2.53, where one of them answers
            return list(handle.broadcast("warmup_report").results(timeout_s=REPORT_LIMIT_S))
        return [handle.warmup_report.remote().result(timeout_s=REPORT_LIMIT_S)]
    except (AttributeError, RayError, RayServeException, TimeoutError) as error:
        logger.info("no report of %s: %s", handle.deployment_name, error)
        return []


def _client() -> Any:
    """Return Serve's client to its controller; it is running, because `cluster` started it."""
    from ray.serve.context import _get_global_client

    return _get_global_client()


def _port_of_serve(wanted: int) -> int:
    """Return the HTTP port: of a Serve that was there before, its own."""
    options = _client().get_serve_details().get("http_options") or {}
    return int(options.get("port") or wanted)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
